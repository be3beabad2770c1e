//! Discovery with complete and incomplete sysfs and `/dev/infiniband` trees.

use super::*;

#[test]
fn no_rdma_at_all_is_an_empty_list_that_says_so() {
    let found = Files::none().discover_by_sysfs().unwrap();
    assert_eq!((found.devices.len(), found.skipped.len()), (0, 0));
    assert_eq!(found.source, Source::None);
    assert_eq!(found.netlink_error, Some(NetlinkError::NoSocket(Errno::PROTONOSUPPORT)));
    assert!(found.source.to_string().contains("modprobe"));
}

#[test]
fn a_class_without_devices_is_rdma() {
    let files = Files::none();
    files.write("sys/class/infiniband_verbs/abi_version", "6\n");
    let found = files.discover_by_sysfs().unwrap();
    assert_eq!((found.devices.len(), found.skipped.len(), found.source), (0, 0, Source::Sysfs));
}

#[test]
fn sysfs_alone_tells_all_but_index_driver_and_ports() {
    let files = Files::none().with_device("rxe0", "uverbs7", "231:199");
    let found = files.discover_by_sysfs().unwrap();
    assert_eq!(found.source, Source::Sysfs);
    assert_eq!(
        found.devices,
        [DeviceInfo {
            name: "rxe0".into(),
            dev_name: "uverbs7".into(),
            dev: Some(DevNum { major: 231, minor: 199 }),
            node_type: NodeType::CA,
            node_guid: Guid(0x5054_00ff_fe12_3456),
            index: None,
            driver_id: None,
            abi_version: 2,
            phys_port_cnt: None,
            ibdev_path: files.roots.sysfs.join("class/infiniband/rxe0"),
            cdev_path: files.roots.dev.join("uverbs7"),
            own: None,
        }]
    );
}

#[test]
fn a_presented_soft_device_is_not_one_of_the_kernel() {
    let files =
        Files::none().with_device("rxe0", "uverbs0", "231:192").with_device("soft0", "uverbs1", "1:3");
    files.write("sys/class/infiniband_verbs/uverbs1/soft_address", "127.0.0.1\n");
    let found = files.discover_by_sysfs().unwrap();
    assert_eq!((names(&found), found.skipped.len()), (vec!["rxe0"], 0));
}

#[test]
fn sysfs_alone_lists_in_the_order_of_the_directory() {
    let mut files = Files::none();
    for (at, name) in ["mm", "aa", "zz", "bb", "yy", "cc"].into_iter().enumerate() {
        files = files.with_device(name, &format!("uverbs{at}"), &format!("231:{at}"));
    }
    let directory: Vec<String> = fs::read_dir(files.roots.uverbs_class())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "abi_version")
        .collect();
    let found = files.discover_by_sysfs().unwrap();
    let ours: Vec<_> = found.devices.iter().map(|device| device.dev_name.clone()).collect();
    assert_eq!(ours, directory);
}

#[test]
fn a_refusing_netlink_gives_way_to_sysfs() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    let found = files.discover(&mut Canned::new(&[&[refusal(Errno::INVAL)]]));
    assert_eq!((names(&found), found.source), (vec!["rxe0"], Source::Sysfs));
    assert_eq!(found.netlink_error, Some(NetlinkError::Refused(Errno::INVAL)));
}

#[test]
fn what_cannot_be_read_is_left_out_with_the_files_name() {
    let class = "sys/class/infiniband_verbs";
    for (missing, name) in [("ibdev", "uverbs0"), ("dev", "rxe0")] {
        let files =
            Files::none().with_device("rxe0", "uverbs0", "231:192").with_device("rxe1", "uverbs1", "231:193");
        files.remove(&format!("{class}/uverbs0/{missing}"));
        let found = files.discover_by_sysfs().unwrap();
        assert_eq!(names(&found), ["rxe1"]);
        let path = files.roots.uverbs_class().join("uverbs0").join(missing);
        assert_eq!(reasons(&found), [(name, &SkipReason::Unreadable { path, errno: Errno::NOENT })]);
    }
}

#[test]
fn what_makes_no_sense_is_left_out_with_the_files_name() {
    for garbage in ["", "\n", "231", "231:192:1", "-1:2", "\u{1F980}", &"9".repeat(9000)] {
        let files = Files::none().with_device("rxe0", "uverbs0", garbage);
        let found = files.discover_by_sysfs().unwrap();
        let path = files.roots.uverbs_class().join("uverbs0/dev");
        assert_eq!(reasons(&found), [("rxe0", &SkipReason::Nonsense { path })], "{garbage:?}");
    }
}

#[test]
fn names_in_files_are_no_paths_either() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    for bad in ["", "\n", "..", "../../etc", "a/b", "rxe\n0", "\u{1b}[2J", &"x".repeat(256)] {
        files.write("sys/class/infiniband_verbs/uverbs0/ibdev", bad);
        let found = files.discover_by_sysfs().unwrap();
        assert_eq!(found.devices, [], "{bad:?}");
        assert_eq!(found.skipped[0].reason, SkipReason::BadName);
    }
}

#[test]
fn details_that_are_missing_or_garbage_become_unknown() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    for (node_type, node_guid, abi) in [
        ("", "", ""),
        ("CA", "5054:00ff:fe12", "one"),
        ("-1: CA", "5054:00ff:fe12:3456:7890", "-1"),
        ("99999999999: X", "5054:00ff:+e12:3456", "4294967296"),
        (":", "5054:00ff:fe12:13456", " 2"),
    ] {
        files.write("sys/class/infiniband/rxe0/node_type", node_type);
        files.write("sys/class/infiniband/rxe0/node_guid", node_guid);
        files.write("sys/class/infiniband_verbs/uverbs0/abi_version", abi);
        let device = files.discover_by_sysfs().unwrap().devices.pop().unwrap();
        assert_eq!((device.node_type, device.node_guid, device.abi_version), (NodeType::UNKNOWN, Guid(0), 0));
    }
    files.write("sys/class/infiniband/rxe0/node_type", "8: <unknown>\n");
    assert_eq!(files.discover_by_sysfs().unwrap().devices[0].node_type, NodeType(8));
}

#[test]
fn a_missing_directory_of_files_leaves_every_device_out() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    fs::remove_dir_all(&files.roots.dev).unwrap();
    let found = files.discover_by_sysfs().unwrap();
    let path = files.roots.dev.join("uverbs0");
    assert_eq!(reasons(&found), [("rxe0", &SkipReason::NodeMissing { path, errno: Errno::NOENT })]);
}

#[test]
fn a_uverbs_abi_that_nobody_knows_is_an_error() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    for (content, sentence) in
        [("2\n", "ABI version 2, this library 3 to 6"), ("7\n", "7, this library"), ("six\n", "")]
    {
        files.write("sys/class/infiniband_verbs/abi_version", content);
        let error = files.discover_by_sysfs().unwrap_err();
        assert_eq!((error.verb, error.errno), ("get_device_list", Errno::NOSYS));
        assert!(error.to_string().contains(sentence), "{error}");
    }
    files.write("sys/class/infiniband_verbs/abi_version", "3\n");
    assert_eq!(names(&files.discover_by_sysfs().unwrap()), ["rxe0"]);
}

#[test]
fn an_old_netlink_without_get_chardev_is_completed_by_the_class() {
    let files =
        Files::none().with_device("rxe0", "uverbs0", "231:192").with_device("rxe1", "uverbs1", "231:193");
    let mut wire = Canned::new(&[
        &[device(4, "rxe1"), device(5, "rxe0"), done()],
        &[refusal(Errno::OPNOTSUPP)],
        &[refusal(Errno::OPNOTSUPP)],
    ]);
    let found = files.discover(&mut wire);
    assert_eq!((names(&found), found.source), (vec!["rxe1", "rxe0"], Source::NetlinkAndSysfs));
    let [rxe1, rxe0] = &found.devices[..] else { panic!() };
    assert_eq!((rxe1.dev_name.as_str(), rxe1.index, rxe1.driver_id), ("uverbs1", Some(4), None));
    assert_eq!((rxe0.dev_name.as_str(), rxe0.dev), ("uverbs0", Some(DevNum { major: 231, minor: 192 })));
    // Without GET_CHARDEV, only sysfs reports the version of uverbs itself.
    files.write("sys/class/infiniband_verbs/abi_version", "7\n");
    let mut wire = Canned::new(&[&[device(4, "rxe1"), done()], &[refusal(Errno::OPNOTSUPP)]]);
    assert!(search(&files.roots, Ok(&mut wire)).is_err());
}

#[test]
fn of_two_devices_on_one_bus_device_each_gets_its_own_file() {
    let files = Files::nodes(&["uverbs0", "uverbs1"]);
    for (at, ibdev) in ["mlx5_0", "mlx5_1"].into_iter().enumerate() {
        for neighbour in ["mlx5_0", "mlx5_1"] {
            let near = format!("sys/class/infiniband/{neighbour}/device/infiniband_verbs/uverbs{at}");
            files.write(&format!("{near}/ibdev"), &format!("{ibdev}\n"));
            files.write(&format!("{near}/dev"), &format!("231:{}\n", 192 + at));
            files.write(&format!("{near}/abi_version"), "1\n");
        }
    }
    files.write("sys/class/infiniband_verbs/abi_version", "6\n");
    let mut wire = Canned::new(&[
        &[device(0, "mlx5_0"), device(1, "mlx5_1"), done()],
        &[refusal(Errno::OPNOTSUPP)],
        &[refusal(Errno::OPNOTSUPP)],
    ]);
    let found = files.discover(&mut wire);
    let pairs: Vec<_> = found.devices.iter().map(|d| (d.name.as_str(), d.dev_name.as_str())).collect();
    assert_eq!(pairs, [("mlx5_0", "uverbs0"), ("mlx5_1", "uverbs1")]);
}

#[test]
fn a_device_without_character_device_is_left_out_with_what_the_kernel_said() {
    let mut wire = Canned::new(&[&[device(0, "rxe0"), done()], &[refusal(Errno::OPNOTSUPP)]]);
    let found = Files::none().discover(&mut wire);
    assert_eq!(reasons(&found), [("rxe0", &SkipReason::NoChardev { errno: Some(Errno::OPNOTSUPP) })]);
    assert_eq!((found.source, found.netlink_error), (Source::NetlinkAndSysfs, None));
}

#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let files = Files::none().with_device("rxe0", "uverbs0", "231:192");
    let path = files.roots.uverbs_class().join("uverbs0/dev");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let found = files.discover_by_sysfs().unwrap();
    assert_eq!(reasons(&found), [("rxe0", &SkipReason::Nonsense { path })]);
}

#[test]
fn the_modalias_is_what_the_bus_says_and_none_without_a_bus() {
    let files = Files::none().with_device("mlx5_0", "uverbs0", "231:192");
    let device = files.discover_by_sysfs().unwrap().devices.pop().unwrap();
    assert_eq!(device.modalias(), None);
    let modalias = "pci:v000015B3d00001017sv000015B3sd00000007bc02sc07i00";
    files.write("sys/class/infiniband/mlx5_0/device/modalias", &format!("{modalias}\n"));
    assert_eq!(device.modalias().as_deref(), Some(modalias));
    files.write("sys/class/infiniband/mlx5_0/device/modalias", "\n");
    assert_eq!(device.modalias(), None);
}
