//! The device list: drivers, skipped devices with reasons, and the errors of `find`.

use std::sync::OnceLock;

use crate::common::{Paper, found, info, info_with};
use verbs::{DeviceInfo, DeviceList, Driver, Errno, NamedProvider, OwnDevice, SkipReason, Skipped};
use verbs_core::discovery::{Found, NetlinkError};

fn named(name: &'static str, prefix: fn(&DeviceInfo) -> bool) -> Driver {
    Driver { name, matches: prefix, ..Paper::DRIVER }
}

fn starts_with_a(device: &DeviceInfo) -> bool {
    device.name().starts_with('a')
}

fn any(_: &DeviceInfo) -> bool {
    true
}

/// A device with a driver id, as reported by the kernel.
fn with_id(name: &str, id: u32) -> DeviceInfo {
    let driver_id = Some(uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId(id));
    info_with(name, |parts| parts.driver_id = driver_id)
}

#[test]
fn the_first_driver_that_matches_gets_the_device() {
    let list = DeviceList::from_found(
        found(vec![info("alpha"), info("beta")]),
        &[named("first", starts_with_a), named("second", any)],
    );
    let drivers: Vec<_> = list.iter().map(|device| (device.name(), device.driver().name)).collect();
    assert_eq!(drivers, [("alpha", "first"), ("beta", "second")]);
}

#[test]
fn a_driver_id_that_the_kernel_told_decides_alone() {
    let list = DeviceList::from_found(
        found(vec![with_id("alpha", 0xfeed), with_id("beta", 0xbeef)]),
        &[named("a", any)],
    );
    assert_eq!(list.iter().map(|device| device.name()).collect::<Vec<_>>(), ["alpha"]);
    assert!(matches!(list.skipped()[0].reason, SkipReason::NoProvider { driver_id: Some(_) }));
}

#[test]
fn a_registered_driver_comes_after_those_given_and_before_those_built_in() {
    fn is_rxe_name(device: &DeviceInfo) -> bool {
        device.name() == "rxe-registered"
    }
    verbs::register(named("registered", is_rxe_name));
    let devices = || found(vec![info("rxe-registered")]);
    let of = |drivers: &[Driver]| DeviceList::from_found(devices(), drivers).first().unwrap().driver().name;
    assert_eq!(of(&[]), "registered");
    assert_eq!(of(&[named("given", any)]), "given");
    if cfg!(feature = "rxe") {
        let list = DeviceList::from_found(found(vec![info("rxe7")]), &[]);
        assert_eq!(list.first().unwrap().driver().name, "rxe");
    }
}

#[test]
fn an_abi_out_of_range_is_a_reason_unless_another_driver_knows_it() {
    let device = || info_with("alpha", |parts| parts.abi_version = 3);
    let list = DeviceList::from_found(found(vec![device()]), &[named("old", any)]);
    assert!(list.is_empty());
    let reason = SkipReason::AbiOutOfRange { abi: 3, provider: "old", min: 1, max: 2 };
    assert_eq!(list.skipped(), [Skipped { name: "alpha".into(), reason }]);

    let new = Driver { name: "new", min_abi: 3, max_abi: 3, ..named("", any) };
    let list = DeviceList::from_found(found(vec![device()]), &[named("old", any), new]);
    assert_eq!(list.first().unwrap().driver().name, "new");
}

#[test]
fn find_says_which_devices_there_are_and_why_others_are_not() {
    let missing = SkipReason::NodeMissing { path: "/dev/infiniband/uverbs4".into(), errno: Errno::NOENT };
    let list = DeviceList::from_found(
        Found {
            skipped: vec![Skipped { name: "mlx5_0".into(), reason: missing }],
            ..found(vec![info("alpha"), info("amber"), with_id("siw0", 18)])
        },
        &[named("a", starts_with_a)],
    );
    assert_eq!(list.len(), 2);
    let error = list.find("rxe9").unwrap_err();
    assert_eq!(error.errno, Errno::NODEV);
    assert_eq!(
        error.to_string(),
        "open_device: there is no RDMA device rxe9, only alpha, amber; left out: mlx5_0: /dev/infiniband/uverbs4 is \
         missing: let udev create it (udevadm trigger), or pass it into the container; siw0: no provider for the kernel \
         driver siw: build with one, or register one (ENODEV)"
    );
    assert_eq!(list.find("amber").unwrap().name(), "amber");
}

#[test]
fn no_device_at_all_is_no_error_until_one_is_wanted() {
    let list = DeviceList::from_found(
        Found {
            source: verbs::Source::None,
            netlink_error: Some(NetlinkError::NoSocket(Errno::PROTONOSUPPORT)),
            ..found(Vec::new())
        },
        &[],
    );
    assert!(list.is_empty());
    assert_eq!(list.source(), verbs::Source::None);
    assert_eq!(list.netlink_error(), Some(&NetlinkError::NoSocket(Errno::PROTONOSUPPORT)));
    let hint = if cfg!(feature = "soft") {
        "; VERBS_SOFT=auto in the environment makes one in software (soft0)"
    } else {
        ""
    };
    assert_eq!(
        list.first().unwrap_err().to_string(),
        format!("open_device: there is no RDMA device{hint} (ENODEV)")
    );
    let error = list.find("rxe0").unwrap_err();
    assert_eq!(error.to_string(), format!("open_device: there is no RDMA device rxe0{hint} (ENODEV)"));
    // Printed by a program that returns the error from `main`.
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
#[cfg(feature = "rxe")]
fn a_device_does_not_open_as_one_of_another_provider() {
    let (_, device) = crate::common::world("not-rxe");
    let error = device.open_as::<verbs::rxe::Rxe>().unwrap_err();
    assert_eq!(error.errno, Errno::NODEV);
    assert!(matches!(error.cause, verbs::Cause::NoDevice { .. }), "{error}");
    assert!(error.to_string().contains("of the provider rxe"), "{error}");
}

/// Returns the same device on every call, and reports a second device as failed.
fn bring() -> Vec<Result<DeviceInfo, Skipped>> {
    static OWN: OnceLock<OwnDevice> = OnceLock::new();
    let own = OWN.get_or_init(|| OwnDevice::new(17u8)).clone();
    let reason =
        SkipReason::Address { address: "192.0.2.1".parse().unwrap(), port: 4791, errno: Errno::ADDRINUSE };
    vec![
        Ok(DeviceInfo::brought("paper0", 0xbeef, verbs::Guid(5), own)),
        Err(Skipped { name: "paper1".into(), reason }),
    ]
}

const BRINGING: Driver =
    Driver { name: "bringing", driver_id: 0xbeef, min_abi: 0, max_abi: 0, devices: bring, ..Paper::DRIVER };

#[test]
fn what_a_provider_brings_follows_what_the_kernel_has() {
    let list = DeviceList::from_found(found(vec![info("alpha")]), &[BRINGING, named("a", starts_with_a)]);
    let drivers: Vec<_> = list.iter().map(|device| (device.name(), device.driver().name)).collect();
    assert_eq!(drivers, [("alpha", "a"), ("paper0", "bringing")]);
    assert_eq!(list.skipped()[0].name, "paper1");
    let error = list.find("paper1").unwrap_err().to_string();
    assert!(error.contains("only alpha, paper0; left out: paper1: UDP port 4791 of 192.0.2.1"), "{error}");
    let device = list.find("paper0").unwrap();
    assert_eq!(device.info().own().unwrap().downcast_ref::<u8>(), Some(&17));
}

#[test]
fn a_brought_device_opens_with_the_provider_that_brings_it() {
    let list = DeviceList::from_found(found(Vec::new()), &[BRINGING]);
    let error = list.first().unwrap().open_as::<Paper>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "open_device on paper0: there is no RDMA device paper0 of the provider paper; left out: paper0: the provider \
         bringing brings it (ENODEV)"
    );
}

#[test]
fn a_provider_that_is_given_twice_brings_its_devices_once() {
    let list = DeviceList::from_found(found(Vec::new()), &[BRINGING, BRINGING]);
    assert_eq!((list.len(), list.skipped().len()), (1, 1));
}

#[test]
fn a_device_that_is_added_is_found_and_added_once() {
    let (_, added) = crate::common::world("added");
    let mut list = DeviceList::from_found(found(vec![info("alpha")]), &[named("a", starts_with_a)]);
    list.push(added.clone());
    list.push(added);
    assert_eq!(list.iter().map(|device| device.name()).collect::<Vec<_>>(), ["alpha", "added"]);
    assert_eq!(list.find("added").unwrap().driver().name, "paper");
}

#[test]
fn a_device_says_what_discovery_learned() {
    let (_, device) = crate::common::world("informed");
    assert_eq!((device.name(), device.guid(), device.index()), ("informed", verbs::Guid(1), None));
    assert_eq!(device.transport_type(), verbs::TransportType::IB);
    assert_eq!(device.info().dev_name(), "uverbs0");
    let context = device.open().unwrap();
    assert_eq!((context.device_name(), context.provider_name()), ("informed", "paper"));
}
