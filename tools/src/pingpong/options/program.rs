//! [`Program`]: the programs and their differences.

use verbs::{Grh, QpType};

/// `ibv_srq_pingpong` has fewer queue pairs than this.
pub(super) const MAX_QP: u32 = 256;

/// The programs. The first four differ in their queue pairs and a few words;
/// [`ibv_xsrq_pingpong`](super::super::xsrq) is separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ibv_rc_pingpong`: a reliable connection.
    Rc,
    /// `ibv_uc_pingpong`: an unreliable connection.
    Uc,
    /// `ibv_ud_pingpong`: unreliable datagrams.
    Ud,
    /// `ibv_srq_pingpong`: reliable connections that share a receive queue.
    Srq,
    /// `ibv_xsrq_pingpong`: extended reliable connections (XRC), whose requests name the shared
    /// receive queue.
    Xsrq,
}

impl Program {
    /// The program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "ibv_rc_pingpong",
            Self::Uc => "ibv_uc_pingpong",
            Self::Ud => "ibv_ud_pingpong",
            Self::Srq => "ibv_srq_pingpong",
            Self::Xsrq => "ibv_xsrq_pingpong",
        }
    }

    /// The transport service of the sending queue pairs.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::RC,
            Self::Uc => QpType::UC,
            Self::Ud => QpType::UD,
            Self::Xsrq => QpType::XRC_SEND,
        }
    }

    /// The number of bytes in front of a received message: the GRH of a datagram.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ud => Grh::LEN,
            _ => 0,
        }
    }

    /// The number of addresses sent by each side. C's `ibv_srq_pingpong` always sends the
    /// largest number of queue pairs, with zeros for missing ones.
    pub const fn addresses(self) -> usize {
        match self {
            Self::Srq => MAX_QP as usize,
            _ => 1,
        }
    }
}
