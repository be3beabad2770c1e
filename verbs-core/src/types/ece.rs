//! [`Ece`]: the options of a connection that only its two providers understand.

/// The options of an enhanced connection establishment (ECE).
///
/// Both ends exchange them beside their queue pair numbers, and each passes what it got to its own
/// provider. A provider ignores options of another vendor.
///
/// # References
/// `ibv_set_ece(3)`, `ibv_query_ece(3)`
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor that defines the options, by its IEEE number; 0 for none.
    pub vendor_id: u32,
    /// The options, as the vendor defines them.
    pub options: u32,
}
