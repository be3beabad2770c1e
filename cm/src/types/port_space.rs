//! [`PortSpace`]: the meaning of a port number.

use verbs::QpType;
use verbs_core::open_enum;

open_enum! {
    /// The space of an id's port, which determines the transport service.
    ///
    /// Ports of different spaces are independent: listeners on port 7471 of [`TCP`](Self::TCP) and
    /// on port 7471 of [`UDP`](Self::UDP) do not collide with each other or with a socket.
    ///
    /// # References
    /// `rdma_create_id(3)`; IBTA volume 1, annex A11
    #[doc(alias = "rdma_port_space")]
    pub enum PortSpace(u16) {
        /// Datagrams through the multicast groups of IP over InfiniBand.
        #[doc(alias = "RDMA_PS_IPOIB")]
        IPOIB = 0x0002, "IPOIB";
        /// Reliable connections.
        #[doc(alias = "RDMA_PS_TCP")]
        TCP = 0x0106, "TCP";
        /// Datagrams.
        #[doc(alias = "RDMA_PS_UDP")]
        UDP = 0x0111, "UDP";
        /// InfiniBand services of any transport service.
        #[doc(alias = "RDMA_PS_IB")]
        IB = 0x013f, "IB";
    }
}

impl PortSpace {
    /// The Q_Key of datagram queue pairs and multicast groups in the space [`UDP`](Self::UDP).
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub const UDP_QKEY: u32 = 0x0123_4567;

    /// Returns the default transport service of ids in this space: UD in [`UDP`](Self::UDP) and
    /// [`IPOIB`](Self::IPOIB), otherwise RC.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::UDP | Self::IPOIB => QpType::UD,
            _ => QpType::RC,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spaces_of_datagrams_are_udp_and_ipoib() {
        let ud: Vec<_> =
            PortSpace::NAMED.iter().filter(|space| space.qp_type() == QpType::UD).copied().collect();
        assert_eq!(ud, [PortSpace::IPOIB, PortSpace::UDP]);
    }

    #[test]
    fn a_space_without_a_name_is_shown_as_its_number() {
        assert_eq!(PortSpace(7).to_string(), "unknown (7)");
        assert_eq!(format!("{:?} {:?}", PortSpace::TCP, PortSpace(7)), "TCP PortSpace(7)");
    }
}
