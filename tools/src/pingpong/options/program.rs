//! [`Program`]: the programs and their differences.

use verbs::{Grh, QpType};

/// The exclusive upper limit on the number of queue pairs of `ibv_srq_pingpong`.
pub(super) const MAX_QP: u32 = 256;

/// The programs. The first four differ in their queue pairs and a few words of output, and
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
    /// `ibv_xsrq_pingpong`: extended reliable connections (XRC). Each request names the shared
    /// receive queue.
    Xsrq,
}

impl Program {
    /// Returns the program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "ibv_rc_pingpong",
            Self::Uc => "ibv_uc_pingpong",
            Self::Ud => "ibv_ud_pingpong",
            Self::Srq => "ibv_srq_pingpong",
            Self::Xsrq => "ibv_xsrq_pingpong",
        }
    }

    /// Returns the transport service of the sending queue pairs.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::RC,
            Self::Uc => QpType::UC,
            Self::Ud => QpType::UD,
            Self::Xsrq => QpType::XRC_SEND,
        }
    }

    /// Returns the number of bytes before a received message, which is the length of a datagram's
    /// GRH.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ud => Grh::LEN,
            _ => 0,
        }
    }

    /// Returns the number of addresses that each side sends. The C `ibv_srq_pingpong` always sends
    /// as many as the largest number of queue pairs, with zeros for missing ones.
    pub const fn addresses(self) -> usize {
        match self {
            Self::Srq => MAX_QP as usize,
            _ => 1,
        }
    }
}
