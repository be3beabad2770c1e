//! [`Ece`]: connection options interpreted only by the two providers.

/// The options of enhanced connection establishment (ECE).
///
/// Both ends exchange them along with their queue pair numbers, and each passes the peer's to its
/// provider. A provider ignores options of another vendor.
///
/// # References
/// `ibv_set_ece(3)`, `ibv_query_ece(3)`
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor that defines the options, by its IEEE number; 0 for none.
    pub vendor_id: u32,
    /// The options, as defined by the vendor.
    pub options: u32,
}
