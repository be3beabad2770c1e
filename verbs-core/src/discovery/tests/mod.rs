//! Discovery without a kernel: recorded and invented netlink messages, and files in the test's
//! directory.

mod conversation;
mod files;
mod hostile;
mod misc;
mod recorded;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use uverbs_abi::rdma_netlink::*;

use super::*;
use crate::types::Guid;

/// A sysfs and a `/dev/infiniband` in a directory removed on drop.
struct Files {
    top: PathBuf,
    roots: Roots,
}

impl Files {
    /// Creates the directory, without a sysfs or a `/dev/infiniband`.
    fn none() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("verbs-discovery-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let top = std::env::temp_dir().join(name);
        fs::create_dir_all(&top).unwrap();
        let roots = Roots { sysfs: top.join("sys"), dev: top.join("dev") };
        Self { top, roots }
    }

    /// Creates a `/dev/infiniband` with these files, and no sysfs.
    fn nodes(names: &[&str]) -> Self {
        let files = Self::none();
        names.iter().for_each(|name| files.write(&format!("dev/{name}"), ""));
        files
    }

    /// Adds the kernel's files for one device without a bus, in sysfs and `/dev/infiniband`.
    fn with_device(self, ibdev: &str, uverbs: &str, dev: &str) -> Self {
        self.write("sys/class/infiniband_verbs/abi_version", "6\n");
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"), &format!("{ibdev}\n"));
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/dev"), &format!("{dev}\n"));
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/abi_version"), "2\n");
        self.write(&format!("sys/class/infiniband/{ibdev}/node_type"), "1: CA\n");
        self.write(&format!("sys/class/infiniband/{ibdev}/node_guid"), "5054:00ff:fe12:3456\n");
        self.write(&format!("dev/{uverbs}"), "");
        self
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.top.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.top.join(path)).unwrap();
    }

    /// Runs discovery with `wire` as netlink.
    fn discover(&self, wire: &mut dyn Wire) -> Found {
        search(&self.roots, Ok(wire)).unwrap()
    }

    /// Runs discovery without netlink.
    fn discover_by_sysfs(&self) -> Result<Found> {
        search(&self.roots, Err(Errno::PROTONOSUPPORT))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

/// A netlink that replies to each request with the datagrams prepared for it.
///
/// A message with the sequence number 0 is sent with the sequence number of the request.
#[derive(Clone, Default)]
struct Canned {
    replies: VecDeque<Vec<(u32, Vec<u8>)>>,
    pending: VecDeque<(u32, Vec<u8>)>,
}

impl Canned {
    /// Prepares the kernel's replies, with one datagram per inner slice.
    fn new(replies: &[&[Vec<u8>]]) -> Self {
        let from_kernel = |datagrams: &&[Vec<u8>]| datagrams.iter().map(|bytes| (0, bytes.clone())).collect();
        Self { replies: replies.iter().map(from_kernel).collect(), pending: VecDeque::new() }
    }
}

impl Wire for Canned {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        let Some(reply) = self.replies.pop_front() else { return Ok(()) };
        for (port, mut bytes) in reply {
            if bytes.get(8..12) == Some(&[0; 4]) {
                bytes[8..12].copy_from_slice(&datagram[8..12]);
            }
            self.pending.push_back((port, bytes));
        }
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        let (port, bytes) = self.pending.pop_front().ok_or(Errno::TIMEDOUT)?;
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok((bytes.len(), port))
    }
}

/// Returns one attribute as bytes, with padding.
fn attr(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut bytes = [(len as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

/// Returns one message of the conversation, with the request's sequence number.
fn message(message_type: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&message_type.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the attributes that a kernel reports for a device, in the kernel's order.
fn device_attrs(index: u32, name: &[u8]) -> Vec<Vec<u8>> {
    vec![
        attr(RDMA_NLDEV_ATTR_DEV_INDEX, &index.to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_DEV_NAME, &[name, b"\0"].concat()),
        attr(RDMA_NLDEV_ATTR_PORT_INDEX, &1_u32.to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_NODE_GUID, &0x5054_00ff_fe12_3456_u64.to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_DEV_NODE_TYPE, &[1]),
    ]
}

/// Returns the attributes that a kernel reports for a character device `231:minor`, in the kernel's
/// order.
fn chardev_attrs(name: &[u8], minor: u8) -> Vec<Vec<u8>> {
    vec![
        attr(RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, &14_u32.to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_CHARDEV, &(231_u64 << 8 | u64::from(minor)).to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_CHARDEV_ABI, &2_u64.to_ne_bytes()),
        attr(RDMA_NLDEV_ATTR_CHARDEV_NAME, &[name, b"\0"].concat()),
    ]
}

fn device(index: u32, name: &str) -> Vec<u8> {
    message(GET, MULTI, &device_attrs(index, name.as_bytes()).concat())
}

fn chardev(name: &str, minor: u8) -> Vec<u8> {
    message(GET_CHARDEV, 0, &chardev_attrs(name.as_bytes(), minor).concat())
}

fn done() -> Vec<u8> {
    message(NLMSG_DONE, MULTI, &0_i32.to_ne_bytes())
}

fn refusal(errno: Errno) -> Vec<u8> {
    message(NLMSG_ERROR, 0, &(-errno.raw()).to_ne_bytes())
}

fn names(found: &Found) -> Vec<&str> {
    found.devices.iter().map(|device| device.name.as_str()).collect()
}

fn reasons(found: &Found) -> Vec<(&str, &SkipReason)> {
    found.skipped.iter().map(|skipped| (skipped.name.as_str(), &skipped.reason)).collect()
}

const GET: u16 = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET);
const GET_CHARDEV: u16 = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV);
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
const MULTI: u16 = 2;
const DUMP_INTR: u16 = 16;
