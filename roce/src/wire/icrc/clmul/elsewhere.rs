//! Stubs for other architectures, which use the tables.

pub(in super::super) fn is_emulated() -> bool {
    false
}

pub(in super::super) fn has_clmul() -> bool {
    false
}

pub(in super::super) fn has_clmul512() -> bool {
    false
}

pub(in super::super) fn update(_state: u32, _bytes: &[u8], _ones: u64) -> Option<u32> {
    None
}

pub(in super::super) fn update512(_state: u32, _bytes: &[u8], _ones: u64) -> Option<u32> {
    None
}

pub(in super::super) fn multiply(_a: u32, _b: u32) -> Option<u32> {
    None
}
