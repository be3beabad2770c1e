//! Ways to evade the scanner, one test for each: the scanner catches all of them.

use crate::{items, of};

fn is_island(text: &str) -> bool {
    !of(text).islands.is_empty()
}

#[test]
fn every_level_but_deny_and_forbid_allows_unsafe_code() {
    for level in ["allow", "expect", "warn"] {
        assert!(is_island(&format!("#![{level}(unsafe_code)]")), "{level}");
        assert!(
            is_island(&format!("fn f() {{ #[{level}(missing_docs, unsafe_code)] let x = 1; }}")),
            "{level}"
        );
    }
    for level in ["deny", "forbid"] {
        assert!(!is_island(&format!("#![{level}(missing_docs, unsafe_code)]")), "{level}");
    }
}

#[test]
fn a_condition_or_a_bracket_in_a_reason_hides_no_attribute() {
    assert!(is_island("#![cfg_attr(feature = \"x\", deny(missing_docs), allow(unsafe_code))]"));
    assert!(is_island("#[allow(reason = \"a slice [u8] of it\", unsafe_code)] fn f() {}"));
    assert!(!is_island("#![cfg_attr(feature = \"x\", allow(missing_docs), deny(unsafe_code))]"));
    assert!(!is_island("#![allow(missing_docs, reason = \"allow(unsafe_code)\")]"));
}

#[test]
fn an_attribute_in_a_macro_is_seen() {
    assert!(is_island("macro_rules! m { () => { #[allow(unsafe_code)] fn f() {} } }"));
}

#[test]
fn a_file_that_no_lint_covers_is_seen_by_its_unsafe_block() {
    assert!(is_island("fn f() { unsafe { g() } }"));
    assert!(is_island("macro_rules! m { () => { unsafe { g() } } }"));
    assert!(!is_island("unsafe fn f() {} fn g() -> &'static str { \"unsafe { }\" }"));
}

#[test]
fn unsafe_impls_in_constants_and_bodies_are_found() {
    let found = of("
        const _: () = { unsafe impl Send for A {} };
        fn f() { unsafe impl Sync for B {} vec![{ unsafe impl Send for C {} }]; }
        #[cfg(test)] mod tests { unsafe impl Send for D {} }
    ");
    let wanted = [
        "`unsafe impl Send for A`",
        "`unsafe impl Send for C` in a macro",
        "`unsafe impl Send for D`",
        "`unsafe impl Sync for B`",
    ];
    assert_eq!(items(&found.impls), wanted);
}

#[test]
fn only_a_condition_that_demands_tests_makes_a_test() {
    for condition in ["test", "loom", "all(test, unix)", "all(unix, all(loom, test))"] {
        let found = of(&format!("#[cfg({condition})] pub fn f(fd: i32) {{}}"));
        assert!(found.functions.is_empty(), "{condition}");
    }
    for condition in ["any(test, unix)", "not(test)", "feature = \"test\"", "all(unix, any(test, unix))"] {
        let found = of(&format!("#[cfg({condition})] pub fn f(fd: i32) {{}}"));
        assert_eq!(items(&found.functions), ["`f(fd: i32)`"], "{condition}");
    }
}

#[test]
fn conversions_are_found_by_any_path() {
    let found = of("
        impl TryFrom<OwnedFd> for A { fn try_from(from: OwnedFd) {} }
        impl core::convert::From<OwnedFd> for B { fn from(from: OwnedFd) {} }
        impl Ours for C { fn ours(&self, fd: OwnedFd) {} }
    ");
    assert_eq!(items(&found.functions), ["`A::try_from(from: OwnedFd)`", "`B::from(from: OwnedFd)`"]);
}

#[test]
fn numbers_and_pointers_are_found_in_any_clothes() {
    for parameter in [
        "at: &AtomicPtr<u8>",
        "handle: Option<u32>",
        "fd: c_int",
        "fd: std::ffi::c_int",
        "key: u32",
        "address: u64",
        "ptr: usize",
        "pointer: NonZero<usize>",
        "handles: &[u32]",
        "(fd, len): (i32, usize)",
        "file: File",
    ] {
        let found = of(&format!("pub fn f({parameter}) {{}}"));
        assert_eq!(items(&found.functions), [format!("`f({parameter})`")]);
    }
    for parameter in ["keyboard: u32", "address: &str", "len: usize", "key: &str"] {
        assert!(of(&format!("pub fn f({parameter}) {{}}")).functions.is_empty(), "{parameter}");
    }
}

#[test]
fn a_bound_of_the_implementation_is_one_of_its_functions() {
    let found = of("impl<F: AsFd> A<F> { pub fn new(file: F) {} pub fn get(&self) {} }");
    assert_eq!(items(&found.functions), ["`A<F>::new(a descriptor by a bound)`"]);
}

#[test]
fn handles_of_the_engine_are_found_in_its_crate_alone() {
    let text = "pub fn f(qpn: Qpn, pd: Pd, cq: Option<CqId>, srq: SrqId, slot: SlotId) {}";
    let wanted = "`f(qpn: Qpn, pd: Pd, cq: Option<CqId>, srq: SrqId, slot: SlotId)`";
    assert_eq!(items(&of(text).functions), [wanted]);
    let mut found = crate::Found::default();
    // In other libraries, a `Pd` is an object that callers cannot forge.
    found.file("libibverbs-rs/src/y.rs", "pub fn f(pd: &Pd) {}");
    assert!(found.functions.is_empty());
}
