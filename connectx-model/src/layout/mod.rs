//! The device's structures as tables: name, dword, high bit, low bit. They have the same rows as
//! the manual's tables.
//!
//! The row `NAME 0xDWORD HIGH LOW;` describes bits in the big-endian dword at a byte offset. A row
//! with a high bit above 31 spans two dwords; its offset is that of the first. The row
//! `NAME bytes 0xOFFSET 0xLENGTH;` describes a part that has its own table or consists of plain
//! bytes. The row `NAME @ 0xOFFSET;` describes the start of a list.
//!
//! Invariant: getters and setters never panic. Bytes beyond the end of a buffer read as 0 and are
//! not written.
//!
//! | file | tables |
//! |---|---|
//! | `hca` | lifecycle of the function: enabling, pages, capabilities, UARs, counters |
//! | `caps`, `flow_caps` | capability structures |
//! | `register` | registers behind ACCESS_REG |
//! | `eq`, `cq`, `mkey`, `qp`, `srq` | commands and contexts for these objects |
//! | `memic` | device memory |
//! | `vport` | ports, GIDs, partition keys, RoCE addresses, MADs |
//! | `eth`, `steering` | Ethernet queues, flow steering |
//! | `wqe`, `cqe`, `eqe` | queue entries |
//! | `iseg` | the initialisation segment and the command queue's entries |

pub mod caps;
pub mod cq;
pub mod cqe;
pub mod eq;
pub mod eqe;
pub mod eth;
pub mod flow_caps;
pub mod hca;
pub mod iseg;
pub mod memic;
pub mod mkey;
pub mod qp;
pub mod register;
pub mod srq;
pub mod steering;
pub mod vport;
pub mod wqe;

/// One row of a table: bits `high` to `low` in the big-endian dword at byte `dword`. A field with a
/// `high` of 32 to 63 spans two dwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name of the row.
    pub name: &'static str,
    /// The byte offset of the dword, or of the first of two dwords.
    pub dword: usize,
    /// The highest bit of the field.
    pub high: u32,
    /// The lowest bit of the field.
    pub low: u32,
}

impl Field {
    /// Returns the width of the field, in bits.
    pub const fn width(&self) -> u32 {
        self.high - self.low + 1
    }

    /// Returns the field's maximum value.
    pub const fn max(&self) -> u64 {
        u64::MAX >> (64 - self.width())
    }

    /// Reads the field from `bytes`.
    pub fn get(&self, bytes: &[u8]) -> u64 {
        self.word(bytes) >> self.low & self.max()
    }

    /// Reads a field of at most 32 bits from `bytes`.
    pub fn get32(&self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Returns whether any bit of the field is set in `bytes`.
    pub fn is_set(&self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Writes the field, truncating `value` to the field's width.
    pub fn set(&self, bytes: &mut [u8], value: impl Into<u64>) {
        let mask = self.max() << self.low;
        let word = self.word(bytes) & !mask | value.into() << self.low & mask;
        if self.high > 31 {
            put(bytes, self.dword, &word.to_be_bytes());
        } else {
            put(bytes, self.dword, &(word as u32).to_be_bytes());
        }
    }

    fn word(&self, bytes: &[u8]) -> u64 {
        let first = u64::from(dword(bytes, self.dword));
        if self.high > 31 { first << 32 | u64::from(dword(bytes, self.dword + 4)) } else { first }
    }
}

/// A part of a structure: plain bytes, or a structure with its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name of the part.
    pub name: &'static str,
    /// The offset of the part in the structure, in bytes.
    pub offset: usize,
    /// The length of the part, in bytes.
    pub len: usize,
}

impl Part {
    /// Returns the part's bytes in a structure. The slice ends early if `bytes` does.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = (self.offset + self.len).min(bytes.len());
        bytes.get(self.offset..end).unwrap_or_default()
    }

    /// Returns the part's bytes in a structure, mutably. The slice ends early if `bytes` does.
    pub fn bytes_mut<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let end = (self.offset + self.len).min(bytes.len());
        bytes.get_mut(self.offset..end).unwrap_or_default()
    }
}

/// The table of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name of the structure.
    pub name: &'static str,
    /// The length of the structure, in bytes, without any list at its end.
    pub size: usize,
    /// The rows of the table.
    pub fields: &'static [Field],
    /// The parts, which have their own tables or consist of plain bytes.
    pub parts: &'static [Part],
}

impl Table {
    /// Finds the first dword in which bits are set that belong to no row or part. Returns the
    /// dword's offset and these bits.
    pub fn reserved(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        (0..self.size.min(bytes.len()) / 4).map(|n| n * 4).find_map(|offset| {
            let set = dword(bytes, offset) & !self.known(offset);
            (set != 0).then_some((offset, set))
        })
    }

    /// Returns the mask of the bits that belong to a row or part, in the dword at byte `offset`.
    pub fn known(&self, offset: usize) -> u32 {
        if self.parts.iter().any(|part| offset + 4 > part.offset && offset < part.offset + part.len) {
            return u32::MAX;
        }
        self.fields.iter().fold(0, |known, field| {
            let bits = field.max() << field.low;
            known
                | match (field.high > 31, offset.checked_sub(field.dword)) {
                    (false, Some(0)) | (true, Some(4)) => bits as u32,
                    (true, Some(0)) => (bits >> 32) as u32,
                    _ => 0,
                }
        })
    }

    /// Formats each nonzero row as `name=value`, for logs and traces.
    pub fn describe(&self, bytes: &[u8]) -> String {
        let mut text = String::new();
        for field in self.fields {
            let value = field.get(bytes);
            if value != 0 {
                if !text.is_empty() {
                    text.push(' ');
                }
                text += &format!("{}={value:#x}", field.name.to_ascii_lowercase());
            }
        }
        text
    }
}

/// Returns the big-endian dword at byte `offset`, or 0 if it extends beyond the end.
pub fn dword(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

/// Returns the big-endian quadword at byte `offset`, or 0 if it extends beyond the end.
pub fn qword(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

/// Writes `value` at byte `offset` if it fits.
pub fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}

/// Defines one module per table: a constant for each row, and the table itself.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($rows:tt)* })*) => {$(
        $(#[$doc])*
        pub mod $name {
            #[allow(unused_imports)]
            use $crate::layout::{Field, Part, Table};

            /// The length of the structure, in bytes, without any list at its end.
            pub const SIZE: usize = $size;

            $crate::layout::rows! { $name; []; []; $($rows)* }
        }
    )*};
}

/// Defines the constants for a table's rows, then the table.
macro_rules! rows {
    ($table:ident; [$($field:ident)*]; [$($part:ident)*];) => {
        /// The table of the structure.
        pub static TABLE: Table = Table {
            name: stringify!($table),
            size: SIZE,
            fields: &[$($field),*],
            parts: &[$($part),*],
        };
    };
    ($table:ident; [$($field:ident)*]; $parts:tt; $name:ident $dword:literal $high:literal $low:literal; $($rest:tt)*) => {
        #[doc = concat!("Dword ", stringify!($dword), ", bits ", stringify!($high), " to ", stringify!($low), ".")]
        pub const $name: Field = Field { name: stringify!($name), dword: $dword, high: $high, low: $low };
        $crate::layout::rows! { $table; [$($field)* $name]; $parts; $($rest)* }
    };
    ($table:ident; $fields:tt; [$($part:ident)*]; $name:ident bytes $offset:literal $len:literal; $($rest:tt)*) => {
        #[doc = concat!("From byte ", stringify!($offset), " on, ", stringify!($len), " bytes.")]
        pub const $name: Part = Part { name: stringify!($name), offset: $offset, len: $len };
        $crate::layout::rows! { $table; $fields; [$($part)* $name]; $($rest)* }
    };
    ($table:ident; $fields:tt; $parts:tt; $name:ident @ $offset:literal; $($rest:tt)*) => {
        #[doc = concat!("A list from byte ", stringify!($offset), " on.")]
        pub const $name: usize = $offset;
        $crate::layout::rows! { $table; $fields; $parts; $($rest)* }
    };
}

pub(crate) use {layout, rows};

#[cfg(test)]
#[allow(unreachable_pub)]
mod tests;
