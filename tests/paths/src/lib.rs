//! A test that compiles every path of docs/libibverbs.md and of the tables in the manual. The build
//! script generates its code from these pages.
//!
//! It is a package, so that a change of a page rebuilds only this.

/// One statement for each path, with types named without their lifetimes.
#[cfg(test)]
#[allow(elided_lifetimes_in_paths, unused_imports)]
mod paths {
    include!(concat!(env!("OUT_DIR"), "/paths.rs"));
}
