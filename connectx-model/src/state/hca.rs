//! [`Hca`]: the stage of a function, its pages and its object numbers. [`CommandQueue`]: the
//! location of the command queue.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{ISEG_SIZE, UAR_SIZE, UARS_SIZE};
use crate::ids::Ids;

/// The stage of a function in its lifecycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Disabled,
    Enabled,
    Initialised,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Disabled => "disabled",
            Stage::Enabled => "enabled",
            Stage::Initialised => "initialised",
        })
    }
}

/// The state that belongs to the function as a whole.
#[derive(Debug)]
pub(crate) struct Hca {
    pub(crate) stage: Stage,
    pub(crate) issi: u32,
    /// The guest-physical addresses of the pages that the driver has given to the function.
    pub(crate) pages: BTreeSet<u64>,
    /// The numbers of the allocated UAR pages, counted from the start of BAR 0.
    pub(crate) uars: Ids,
    pub(crate) eqns: Ids,
    pub(crate) counters: Ids,
}

impl Default for Hca {
    fn default() -> Self {
        Self {
            stage: Stage::Disabled,
            issi: 0,
            pages: BTreeSet::new(),
            // The initialisation segment occupies the first page numbers.
            uars: Ids::new((ISEG_SIZE / UAR_SIZE) as u32..=(UARS_SIZE / UAR_SIZE) as u32 - 1),
            eqns: Ids::new(1..=127),
            counters: Ids::new(1..=255),
        }
    }
}

impl Hca {
    /// Frees all object numbers. The driver's pages remain.
    pub(crate) fn drop_objects(&mut self) {
        let Self { stage, issi, pages, .. } = std::mem::take(self);
        *self = Self { stage, issi, pages, ..Self::default() };
    }
}

/// Number of entries in the command queue, log2.
pub(crate) const LOG_SIZE: u32 = 5;

/// Size of an entry in the command queue, in bytes, log2.
pub(crate) const LOG_STRIDE: u32 = 6;

/// The location of the command queue.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    /// Guest-physical address of the command queue; 0 until the driver has set it.
    pub(crate) address: u64,
}
