//! Replies that no kernel sends: truncated, shuffled, repeated, forged.

use super::*;

/// Returns the files of one device, which netlink reports too.
fn files() -> Files {
    Files::none().with_device("rxe0", "uverbs0", "231:192")
}

fn wire(device: &[Vec<u8>], chardev: &[Vec<u8>]) -> Canned {
    let device = message(GET, MULTI, &device.concat());
    Canned::new(&[&[device, done()], &[message(GET_CHARDEV, 0, &chardev.concat())]])
}

/// Returns the only device, without the properties that sysfs lacks.
fn common(found: Found) -> DeviceInfo {
    assert_eq!(found.skipped, []);
    let [device] = <[DeviceInfo; 1]>::try_from(found.devices).unwrap();
    DeviceInfo { index: None, driver_id: None, phys_port_cnt: None, ..device }
}

#[test]
fn wherever_the_attributes_end_sysfs_tells_the_same() {
    let files = files();
    let (device, chardev) = (device_attrs(0, b"rxe0"), chardev_attrs(b"uverbs0", 192));
    let whole = common(files.discover(&mut wire(&device, &chardev)));
    assert_eq!(whole, common(files.discover_by_sysfs().unwrap()));
    let mut sources = Vec::new();
    for (request, payload) in [(0, device.concat()), (1, chardev.concat())] {
        for len in 0..payload.len() {
            let mut wire = wire(&device, &chardev);
            let message_type = if request == 0 { GET } else { GET_CHARDEV };
            wire.replies[request][0].1 = message(message_type, 0, &payload[..len]);
            let found = files.discover(&mut wire);
            sources.push(found.source);
            assert_eq!(common(found), whole, "request {request} cut to {len}");
        }
    }
    // The node type is the last attribute, and its padding can be cut off without loss.
    assert!(sources.contains(&Source::Netlink) && sources.contains(&Source::NetlinkAndSysfs));
    assert!(sources.contains(&Source::Sysfs) && !sources.contains(&Source::None));
}

#[test]
fn any_one_attribute_may_be_missing_or_of_the_wrong_size() {
    let files = files();
    let (device, chardev) = (device_attrs(0, b"rxe0"), chardev_attrs(b"uverbs0", 192));
    let whole = common(files.discover(&mut wire(&device, &chardev)));
    let is_name =
        |attr: &[u8]| [RDMA_NLDEV_ATTR_DEV_NAME, RDMA_NLDEV_ATTR_CHARDEV_NAME].contains(&kind(attr));
    for at in 0..device.len() + chardev.len() {
        for size in [None, Some(0), Some(1), Some(2), Some(3), Some(5), Some(7), Some(9), Some(300)] {
            let (mut device, mut chardev) = (device.clone(), chardev.clone());
            let (attrs, at) = if at < device.len() {
                (&mut device, at)
            } else {
                (&mut chardev, at - device_attrs(0, b"").len())
            };
            match size {
                None => drop(attrs.remove(at)),
                Some(_) if is_name(&attrs[at]) => continue,
                // One byte is the right size for a node type.
                Some(1) if kind(&attrs[at]) == RDMA_NLDEV_ATTR_DEV_NODE_TYPE => continue,
                Some(size) => attrs[at] = attr(kind(&attrs[at]), &vec![0xa5; size]),
            }
            assert_eq!(common(files.discover(&mut wire(&device, &chardev))), whole, "{at} {size:?}");
        }
    }
}

fn kind(attr: &[u8]) -> u16 {
    u16::from_ne_bytes([attr[2], attr[3]])
}

#[test]
fn the_order_of_attributes_does_not_matter() {
    let files = files();
    let (mut device, mut chardev) = (device_attrs(0, b"rxe0"), chardev_attrs(b"uverbs0", 192));
    let whole = files.discover(&mut wire(&device, &chardev));
    assert_eq!(whole.source, Source::Netlink);
    for _ in 0..device.len() * chardev.len() {
        device.rotate_left(1);
        chardev.rotate_right(1);
        if device[0] < device[1] {
            device.swap(0, 1);
        }
        assert_eq!(files.discover(&mut wire(&device, &chardev)), whole);
    }
}

#[test]
fn of_an_attribute_that_comes_twice_the_last_counts() {
    let mut device = device_attrs(0, b"evil");
    device.extend(device_attrs(0, b"rxe0"));
    let mut chardev = chardev_attrs(b"uverbs9", 9);
    chardev.extend(chardev_attrs(b"uverbs0", 192));
    let found = files().discover(&mut wire(&device, &chardev));
    assert_eq!((names(&found), found.source), (vec!["rxe0"], Source::Netlink));
    assert_eq!(found.devices[0].dev, Some(DevNum { major: 231, minor: 192 }));
}

#[test]
fn attributes_that_nobody_knows_and_nested_garbage_are_passed_over() {
    const NESTED: u16 = 0x8000;
    let files = files();
    let (device, chardev) = (device_attrs(0, b"rxe0"), chardev_attrs(b"uverbs0", 192));
    let whole = files.discover(&mut wire(&device, &chardev));
    let garbage = [
        attr(0x3fff, &[0xff; 40]),
        attr(NESTED | RDMA_NLDEV_ATTR_RES_SUMMARY, &[0xff; 13]),
        attr(NESTED | RDMA_NLDEV_ATTR_RES_SUMMARY, &attr(RDMA_NLDEV_ATTR_DEV_NAME, b"evil\0")),
        attr(RDMA_NLDEV_ATTR_UNSPEC, &[]),
    ];
    for extra in garbage {
        for at in 0..=device.len() {
            let mut device = device.clone();
            device.insert(at, extra.clone());
            assert_eq!(files.discover(&mut wire(&device, &chardev)), whole);
        }
    }
}

#[test]
fn lengths_that_lie_are_found_out() {
    let files = Files::nodes(&["uverbs0"]);
    let good = wire(&device_attrs(0, b"rxe0"), &chardev_attrs(b"uverbs0", 192));
    assert_eq!(names(&files.discover(&mut good.clone())), ["rxe0"]);
    for lie in [0_u16, 1, 2, 3, 0x7fff, 0xffff] {
        // The length of the first attribute, then the length of the message.
        for at in [16, 0] {
            let mut wire = good.clone();
            wire.replies[0][0].1[at..at + 2].copy_from_slice(&lie.to_ne_bytes());
            let found = files.discover(&mut wire);
            assert!(
                matches!(found.netlink_error, Some(NetlinkError::Malformed(_))),
                "{lie} at {at}: {found:?}"
            );
        }
    }
    for lie in [15_u32, 0x8000_0000, 0xffff_fffd, u32::MAX] {
        let mut wire = good.clone();
        wire.replies[0][0].1[..4].copy_from_slice(&lie.to_ne_bytes());
        assert!(matches!(files.discover(&mut wire).netlink_error, Some(NetlinkError::Malformed(_))));
    }
}

/// Names that lead elsewhere, that no directory can contain, or that send control characters to the
/// operator's terminal.
const BAD_NAMES: [&[u8]; 11] = [
    b"",
    b".",
    b"..",
    b"../rxe0",
    b"rxe0/..",
    b"/etc/passwd",
    b"\0rxe0",
    b"rxe\xff0",
    b"rxe0\n",
    b"\x1b[2Jrxe0",
    &[b'x'; 256],
];

#[test]
fn a_name_that_is_no_file_name_never_becomes_a_path() {
    let files = files();
    for bad in BAD_NAMES {
        let mut found = files.discover(&mut wire(&device_attrs(0, bad), &chardev_attrs(b"uverbs0", 192)));
        assert_eq!(found.devices, [], "{bad:?}");
        let skipped = found.skipped.pop().unwrap();
        assert_eq!(skipped.reason, SkipReason::BadName);
        assert!(!skipped.to_string().contains(|c: char| c.is_control()));

        let found = files.discover(&mut wire(&device_attrs(0, b"rxe0"), &chardev_attrs(bad, 192)));
        assert_eq!(found.devices, [], "{bad:?}");
        assert_eq!(reasons(&found), [("rxe0", &SkipReason::BadName)]);
    }
}

#[test]
fn a_name_ends_at_its_nul() {
    let found =
        files().discover(&mut wire(&device_attrs(0, b"rxe0\0/../x"), &chardev_attrs(b"uverbs0\0/", 192)));
    assert_eq!(names(&found), ["rxe0"]);
    assert_eq!(found.devices[0].dev_name, "uverbs0");
}

#[test]
fn thousands_of_devices_are_no_problem() {
    let dump: Vec<_> = (0..20_000).map(|index| device(index, "rxe0")).chain([done()]).collect();
    let found = Files::none().discover(&mut Canned::new(&[&dump]));
    assert_eq!((found.devices.len(), found.skipped.len()), (0, 20_000));
}

#[test]
fn whatever_the_bytes_nothing_panics_and_no_path_leaves_the_roots() {
    let files = files();
    let good = Canned::new(&[
        &[device(0, "rxe0"), device(1, "rxe1"), done()],
        &[chardev("uverbs0", 192)],
        &[chardev("uverbs1", 193)],
    ]);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let (mut whole, mut none) = (0, 0);
    for _ in 0..5_000 {
        let mut wire = good.clone();
        for _ in 0..=next() % 4 {
            let request = next() % wire.replies.len();
            let at = next() % wire.replies[request].len();
            let bytes = &mut wire.replies[request][at].1;
            match next() % 5 {
                0 => bytes.truncate(next() % (bytes.len() + 1)),
                1 => bytes.extend_from_within(..next() % (bytes.len() + 1)),
                2 if bytes.len() > 16 => bytes[16..].fill(next() as u8),
                _ => {
                    if let Some(byte) = bytes.get_mut(next() % 120) {
                        *byte = [0, 1, 4, 0x7f, 0xff, b'/', b'.', next() as u8][next() % 8];
                    }
                }
            }
        }
        let found = files.discover(&mut wire);
        for device in &found.devices {
            assert_eq!(device.cdev_path.parent(), Some(&*files.roots.dev));
            assert_eq!(device.ibdev_path.parent(), Some(&*files.roots.sysfs.join("class/infiniband")));
        }
        whole += usize::from(found.source == Source::Netlink);
        none += usize::from(found.netlink_error.is_some());
    }
    // Both outcomes occur: some replies pass and some do not.
    assert!(whole > 100 && none > 100, "{whole} {none}");
}
