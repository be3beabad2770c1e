//! Protection domains, memory regions and their access rights.
//!
//! | file | content |
//! |---|---|
//! | [`domains`] | protection domains |
//! | [`regions`] | rights, bounds, addresses, overlaps and keys of regions |
//! | [`changes`] | changes to regions |
//! | [`kinds`] | null, imported and dma-buf regions |
//! | [`dm`] | device memory, copies, and regions in it |
//! | `requests` | requests that use regions, and their results |

pub mod changes;
pub mod dm;
pub mod domains;
pub mod kinds;
pub mod regions;
mod requests;

use verbs_harness::runner::Case;

pub(super) fn cases() -> Vec<Case> {
    let files = [domains::cases(), regions::cases(), changes::cases(), kinds::cases(), dm::cases()];
    files.into_iter().flatten().collect()
}
