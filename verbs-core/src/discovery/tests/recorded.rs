//! Conversations with real kernels, replayed. See `testdata/README.md`.

use super::*;

/// A recording: requests, replies, and the output of rdma-core's `ibv_devices` during the same
/// boot.
struct Recording {
    steps: VecDeque<(char, Vec<u8>)>,
    rdma_core: Vec<(String, Guid)>,
}

impl Recording {
    fn new(text: &str) -> Self {
        let mut recording = Self { steps: VecDeque::new(), rdma_core: Vec::new() };
        for line in text.lines() {
            let mut words = line.split(' ');
            match words.next().unwrap() {
                ">" => recording.steps.push_back(('>', bytes(words.next().unwrap()))),
                "<" => {
                    assert_eq!(words.next(), Some("0"), "the kernel is port 0");
                    recording.steps.push_back(('<', bytes(words.next().unwrap())));
                }
                "=" => {
                    let name = words.next().unwrap().to_owned();
                    let guid = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
                    recording.rdma_core.push((name, Guid(guid)));
                }
                "#" => {}
                other => panic!("unknown line {other}"),
            }
        }
        recording
    }

    /// Returns the replies without their sequence numbers.
    fn canned(&self) -> Canned {
        let mut canned = Canned::default();
        for (direction, bytes) in &self.steps {
            match direction {
                '>' => canned.replies.push_back(Vec::new()),
                _ => {
                    let mut bytes = bytes.clone();
                    bytes[8..12].fill(0);
                    canned.replies.back_mut().unwrap().push((0, bytes));
                }
            }
        }
        canned
    }
}

impl Wire for Recording {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        let (direction, expected) = self.steps.pop_front().expect("more questions than were recorded");
        assert_eq!((direction, &expected[..]), ('>', datagram));
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        let (direction, bytes) = self.steps.pop_front().expect("more replies awaited than were recorded");
        assert_eq!(direction, '<');
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok((bytes.len(), 0))
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

const KERNELS: [&str; 4] = [
    include_str!("../testdata/5.10.txt"),
    include_str!("../testdata/6.1.txt"),
    include_str!("../testdata/6.12.txt"),
    include_str!("../testdata/7.2.txt"),
];

const NODES: [&str; 4] = ["uverbs0", "uverbs1", "uverbs2", "uverbs3"];

#[test]
fn every_kernel_tells_all_by_netlink_alone() {
    for text in KERNELS {
        let mut recording = Recording::new(text);
        let files = Files::nodes(&NODES);
        let found = files.discover(&mut recording);
        assert!(recording.steps.is_empty(), "something was not asked");
        assert_eq!((found.source, found.netlink_error), (Source::Netlink, None));
        assert_eq!(found.skipped, []);
        let of = |name: &str, index, dev_name: &str, minor, node_guid| DeviceInfo {
            name: name.into(),
            dev_name: dev_name.into(),
            dev: Some(DevNum { major: 231, minor }),
            node_type: NodeType::CA,
            node_guid,
            index: Some(index),
            driver_id: Some(RdmaDriverId::RDMA_DRIVER_RXE),
            abi_version: 2,
            phys_port_cnt: Some(1),
            ibdev_path: files.roots.sysfs.join("class/infiniband").join(name),
            cdev_path: files.roots.dev.join(dev_name),
            own: None,
        };
        let guids: Vec<Guid> = recording.rdma_core.iter().map(|(_, guid)| *guid).collect();
        assert_eq!(
            found.devices,
            [
                of("rxe0", 0, "uverbs0", 192, guids[0]),
                of("zz", 1, "uverbs1", 193, guids[1]),
                of("mm", 3, "uverbs3", 195, guids[2]),
                of("aa", 4, "uverbs2", 194, guids[3]),
            ]
        );
    }
}

#[test]
fn the_order_and_the_guids_are_those_of_rdma_core() {
    for text in KERNELS {
        let mut recording = Recording::new(text);
        let found = Files::nodes(&NODES).discover(&mut recording);
        let ours: Vec<_> =
            found.devices.iter().map(|device| (device.name.clone(), device.node_guid)).collect();
        assert_eq!(ours.len(), 4);
        assert_eq!(ours, recording.rdma_core);
    }
}

#[test]
fn a_device_whose_file_is_missing_is_left_out_as_in_rdma_core() {
    let files = Files::nodes(&["uverbs0", "uverbs2", "uverbs3"]);
    let found = files.discover(&mut Recording::new(KERNELS[1]));
    assert_eq!(names(&found), ["rxe0", "mm", "aa"]);
    let path = files.roots.dev.join("uverbs1");
    assert_eq!(reasons(&found), [("zz", &SkipReason::NodeMissing { path, errno: Errno::NOENT })]);
}

#[test]
fn wherever_a_recorded_datagram_is_cut_the_answer_is_not_believed() {
    let whole = Recording::new(KERNELS[3]).canned();
    let files = Files::nodes(&NODES);
    for (request, at) in [(0, 0), (0, 2), (0, 4), (1, 0), (4, 0)] {
        for len in 0..whole.replies[request][at].1.len() {
            let mut cut = whole.clone();
            cut.replies[request][at].1.truncate(len);
            let found = files.discover(&mut cut);
            if request == 0 {
                assert!(matches!(found.netlink_error, Some(NetlinkError::Malformed(_))), "{at} cut to {len}");
                assert_eq!((found.source, found.devices.len()), (Source::None, 0));
            } else {
                // One device is missing from the replies, and sysfs is not available.
                assert_eq!(names(&found).len(), 3, "{request} cut to {len}");
                assert_eq!(reasons(&found)[0].1, &SkipReason::NoChardev { errno: None });
            }
        }
    }
}

/// The reply of Linux 5.10 and 6.1 to a request for a character device whose module is not loaded.
const NO_SUCH_TYPE: &str = "3c000000020000000000000000000000a1ffffff280000000f140100070000000000000008000100000000000d00\
                            45006e6f6e73656e736500000000";

#[test]
fn a_recorded_refusal_says_that_the_module_is_missing() {
    let mut wire = Canned::new(&[&[device(0, "rxe0"), done()], &[bytes(NO_SUCH_TYPE)]]);
    let found = Files::nodes(&NODES).discover(&mut wire);
    assert_eq!(reasons(&found), [("rxe0", &SkipReason::NoChardev { errno: Some(Errno::OPNOTSUPP) })]);
    assert_eq!(found.source, Source::NetlinkAndSysfs);
}
