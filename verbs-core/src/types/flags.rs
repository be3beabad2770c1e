//! [`bitflags!`]: sets of flags.

use core::fmt;

/// Defines sets of flags as `bitflags::bitflags!` does, but without that macro's second, hidden
/// type per set, which took a quarter of this crate's compile time. `Debug` is implemented here.
macro_rules! bitflags {
    ($(
        $(#[$outer:meta])*
        $vis:vis struct $name:ident: $t:ty {
            $( $(#[$inner:ident $($args:tt)*])* const $flag:tt = $value:expr; )*
        }
    )*) => { $(
        $(#[$outer])*
        #[repr(transparent)]
        $vis struct $name($t);

        bitflags::bitflags! {
            impl $name: $t {
                $( $(#[$inner $($args)*])* const $flag = $value; )*
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let names = [$((stringify!($flag), $value)),*];
                $crate::types::flags::debug(f, stringify!($name), self.bits(), &names)
            }
        }
    )* };
}
pub(crate) use bitflags;

/// Writes a set as the names of its flags, and the bits without a name as a number. A flag called
/// `_` has no name.
pub(crate) fn debug<B: Copy + Into<u64>>(
    f: &mut fmt::Formatter<'_>,
    set: &str,
    bits: B,
    names: &[(&str, B)],
) -> fmt::Result {
    let (bits, mut text) = (bits.into(), String::new());
    let mut rest = bits;
    for (name, flag) in names.iter().map(|(name, flag)| (*name, (*flag).into())) {
        if name != "_" && bits & flag == flag && rest & flag != 0 {
            rest &= !flag;
            text.extend([if text.is_empty() { "" } else { " | " }, name]);
        }
    }
    if rest != 0 || text.is_empty() {
        text.extend([if text.is_empty() { "" } else { " | " }, &*format!("{rest:#x}")]);
    }
    f.debug_tuple(set).field(&format_args!("{text}")).finish()
}

#[cfg(test)]
mod tests {
    bitflags! {
        #[derive(Clone, Copy, PartialEq, Eq)]
        struct Set: u32 {
            const ONE = 1;
            const TWO = 1 << 1;
            const THREE = Self::ONE.bits() | Self::TWO.bits();
            const HIGHEST = 1 << 31;
            const _ = !0;
        }
    }

    #[test]
    fn a_set_is_shown_by_its_names_and_unknown_bits_as_a_number() {
        let show = |bits| format!("{:?}", Set::from_bits_retain(bits));
        assert_eq!(show(0), "Set(0x0)");
        assert_eq!(show(1), "Set(ONE)");
        assert_eq!(show(1 << 31 | 3), "Set(ONE | TWO | HIGHEST)");
        assert_eq!(show(0x32), "Set(TWO | 0x30)");
        assert_eq!(show(0x30), "Set(0x30)");
        assert_eq!(format!("{:#?}", Set::ONE), "Set(\n    ONE,\n)");
    }
}
