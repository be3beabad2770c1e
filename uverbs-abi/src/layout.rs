//! The layout records that the `header!` macro writes for each type and constant. The golden test
//! compares them with the kernel's own headers, so there is no second list to maintain.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// All definitions of one kernel header.
#[derive(Debug)]
pub struct Header {
    /// The header's path under `include/uapi`, e.g. `rdma/ib_user_verbs.h`.
    pub path: &'static str,
    /// Types and constants, in the header's order.
    pub items: &'static [Item],
}

/// One definition of a header.
#[derive(Debug)]
pub enum Item {
    /// A struct or a union.
    Type(Type),
    /// The constants of an enum, or a run of `#define`s.
    Constants(Constants),
}

/// A struct or a union.
#[derive(Debug)]
pub struct Type {
    /// C tag, or the path of members that leads to an untagged type.
    pub c_name: &'static str,
    /// Name of the Rust type.
    pub rust_name: &'static str,
    /// Whether the type is a C `union`.
    pub union: bool,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Fields in order, padding (`_pad..`) included.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
#[derive(Debug)]
pub struct Field {
    /// Name in Rust, such as `r#type` for the C name `type`.
    pub name: &'static str,
    /// Offset in bytes from the start of the type.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A group of constants.
#[derive(Debug)]
pub struct Constants {
    /// C enum tag, `anonymous` for an enum without a tag, `define` for macros.
    pub c_name: &'static str,
    /// Name of the Rust newtype, `None` for plain constants.
    pub rust_name: Option<&'static str>,
    /// Width of the Rust type, in bits.
    pub bits: u32,
    /// C names and values of the constants.
    pub constants: &'static [(&'static str, i128)],
}

/// Returns the size of the field selected by `field`.
#[must_use]
pub const fn size_of_field<S, F>(_field: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Returns the number of words of `word` bytes needed for the largest of `sizes`.
#[must_use]
pub const fn words(sizes: &[usize], word: usize) -> usize {
    let mut largest = 0;
    let mut i = 0;
    while i < sizes.len() {
        if sizes[i] > largest {
            largest = sizes[i];
        }
        i += 1;
    }
    largest.div_ceil(word)
}

/// Reads the member `T` at the start of the union `U`.
#[inline(always)]
pub(crate) fn read_member<U: IntoBytes + Immutable, T: FromBytes>(union: &U) -> T {
    const { assert!(size_of::<T>() <= size_of::<U>()) }
    match T::read_from_prefix(union.as_bytes()) {
        Ok((member, _)) => member,
        Err(_) => unreachable!(),
    }
}

/// Returns a union `U` with `member` at its start and zeros after it.
#[inline(always)]
pub(crate) fn write_member<U: FromBytes + IntoBytes, T: IntoBytes + Immutable>(member: &T) -> U {
    const { assert!(size_of::<T>() <= size_of::<U>()) }
    let mut union = U::new_zeroed();
    union.as_mut_bytes()[..size_of::<T>()].copy_from_slice(member.as_bytes());
    union
}

/// Formats a set of flags: named bits by name, the other bits as a number.
pub(crate) fn debug_flags<B: Copy + Into<u64>>(
    f: &mut fmt::Formatter<'_>,
    set: &str,
    bits: B,
    names: &[(&str, B)],
) -> fmt::Result {
    let bits = bits.into();
    let (mut rest, mut separator) = (bits, "");
    write!(f, "{set}(")?;
    for (name, flag) in names.iter().map(|(name, flag)| (name, (*flag).into())) {
        if bits & flag == flag && rest & flag != 0 {
            rest &= !flag;
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
    }
    match rest {
        0 if bits == 0 => f.write_str("0)"),
        0 => f.write_str(")"),
        _ => write!(f, "{separator}{rest:#x})"),
    }
}
