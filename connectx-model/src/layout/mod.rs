//! The device's structures as tables: name, dword, high bit, low bit. Read them beside the manual.
//!
//! The row `NAME 0xDWORD HIGH LOW;` describes bits in the big-endian dword at a byte offset. A row
//! with a high bit above 31 spans two dwords and names the first. The row `NAME bytes 0xOFFSET
//! 0xLENGTH;` describes a part that has its own table or consists of plain bytes. The row `NAME @
//! 0xOFFSET;` describes the start of a list.
//!
//! Invariant: getters and setters never panic. Bytes beyond the end read as 0 and are not written.
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

/// One row of a table: bits `high` to `low` in the big-endian dword at byte `dword`. A `high` of 32
/// to 63 spans two dwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the row.
    pub name: &'static str,
    /// Byte offset of the dword, or of the first of two dwords.
    pub dword: usize,
    /// Highest bit of the field.
    pub high: u32,
    /// Lowest bit of the field.
    pub low: u32,
}

impl Field {
    /// Returns the field's width in bits.
    pub const fn width(&self) -> u32 {
        self.high - self.low + 1
    }

    /// Returns the field's maximum value.
    pub const fn max(&self) -> u64 {
        u64::MAX >> (64 - self.width())
    }

    /// Returns the field's value in `bytes`.
    pub fn get(&self, bytes: &[u8]) -> u64 {
        self.word(bytes) >> self.low & self.max()
    }

    /// Returns the value of a field with at most 32 bits.
    pub fn get32(&self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Returns whether any of the field's bits is set.
    pub fn is_set(&self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Sets the field's value, truncated to the field's width.
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
    /// Name of the part.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Part {
    /// Returns the part's bytes, truncated at the end of `bytes`.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = (self.offset + self.len).min(bytes.len());
        bytes.get(self.offset..end).unwrap_or_default()
    }

    /// Returns the part's bytes, truncated at the end of `bytes`.
    pub fn bytes_mut<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let end = (self.offset + self.len).min(bytes.len());
        bytes.get_mut(self.offset..end).unwrap_or_default()
    }
}

/// The table of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Name of the structure.
    pub name: &'static str,
    /// Length of the structure in bytes, without lists at the end.
    pub size: usize,
    /// The rows of the table.
    pub fields: &'static [Field],
    /// The parts that rows do not describe.
    pub parts: &'static [Part],
}

impl Table {
    /// Returns the first dword with set bits that no row names, and those bits.
    pub fn reserved(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        (0..self.size.min(bytes.len()) / 4).map(|n| n * 4).find_map(|offset| {
            let set = dword(bytes, offset) & !self.known(offset);
            (set != 0).then_some((offset, set))
        })
    }

    /// Returns the bits that rows name in the dword at this byte offset.
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

    /// Returns `name=value` for each nonzero row, for logs and traces.
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

/// Returns the big-endian dword at this byte offset; bytes beyond the end make it 0.
pub fn dword(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

/// Returns the big-endian quadword at this byte offset; bytes beyond the end make it 0.
pub fn qword(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

/// Writes bytes at this offset, if they fit.
pub fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}

/// Defines one module of constants per table.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($rows:tt)* })*) => {$(
        $(#[$doc])*
        pub mod $name {
            #[allow(unused_imports)]
            use $crate::layout::{Field, Part, Table};

            /// Length of the structure in bytes, without lists at the end.
            pub const SIZE: usize = $size;

            $crate::layout::rows! { $name; []; []; $($rows)* }
        }
    )*};
}

/// Defines the rows of one table: the constants first, then the table.
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
