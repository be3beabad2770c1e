//! [`Ece`]: connection options that only the two providers interpret.

/// Enhanced connection establishment (ECE) options.
///
/// Both ends exchange them along with their queue pair numbers, and each passes the peer's options
/// to its provider. A provider ignores another vendor's options.
///
/// # References
/// `ibv_set_ece(3)`, `ibv_query_ece(3)`
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The IEEE number of the vendor that defines the options; 0 for no options.
    pub vendor_id: u32,
    /// The ECE options, in the encoding that the vendor defines.
    pub options: u32,
}
