//! Tests of the ABI versions and the probe for InfiniBand addresses.

use super::*;

/// Returns the probe's commands: create an id in the space IB, bind it, destroy it.
fn probe(bind: Reply) -> Vec<Expect> {
    let create = "0: in ffffffffffffffff00000000000000003f01020000000000, out 4";
    let address = [
        "1b00",
        "0000",
        "00000000",
        "00000000000000000000000000000000",
        "0000000001060000",
        "ffffffffffff0000",
        "0000000000000000",
    ]
    .concat();
    let bind_text = format!("20: in 0900000030000000{address}{}", "00".repeat(80));
    vec![
        Expect::command(create, Reply::bytes(&9_u32.to_ne_bytes())),
        Expect::command(&bind_text, bind),
        Expect::command("1: in 00000000000000000900000000000000, out 4", Reply::bytes(&[0; 4])),
    ]
}

#[test]
fn versions_3_and_4_of_the_abi_are_known_and_no_others() {
    for version in [0, 2, 5, u32::MAX] {
        let error = Ucma::new(Scripted::default(), version).unwrap_err();
        assert_eq!(error.errno, Errno::NOSYS);
        let both = format!("ABI version {version}, this library 3 to 4");
        assert!(error.to_string().contains(&both), "{error}");
    }
    assert!(!Ucma::new(Scripted::default(), MIN_ABI).unwrap().computes_init());
    assert!(Ucma::new(Scripted::default(), MAX_ABI).unwrap().computes_init());
}

#[test]
fn the_kernel_is_asked_once_for_infiniband_addresses() {
    for (reply, takes_ib) in [(Reply::ok(), true), (Reply::Errno(Errno::INVAL), false)] {
        let kernel = Scripted::new(probe(reply));
        let ucma = Ucma::new(kernel.clone(), MAX_ABI).unwrap();
        assert_eq!(ucma.takes_ib(), takes_ib);
        assert_eq!(ucma.takes_ib(), takes_ib);
        assert_eq!(kernel.seen().len(), 3);
    }
}

#[test]
fn a_kernel_that_makes_no_id_for_the_probe_takes_no_infiniband_addresses() {
    let kernel = Scripted::new([Expect::anything(Reply::Errno(Errno::NOMEM))]);
    assert!(!Ucma::new(kernel, MAX_ABI).unwrap().takes_ib());
}
