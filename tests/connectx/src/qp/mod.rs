//! [`Qp`]: queue pairs.

use crate::function::pages::Pages;

/// A queue pair, beside what the transport engine keeps of it.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    /// The context, kept as the device would answer QUERY_QP.
    pub(crate) context: [u8; 0xe8],
    /// Receive queue first, send queue behind it.
    pub(crate) pages: Pages,
    /// Where the heads of both queues are, guest-physical.
    pub(crate) doorbell_record: u64,
    pub(crate) uar: u32,
    pub(crate) user_index: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
}
