//! Tests of the ABI versions.

use super::*;

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
