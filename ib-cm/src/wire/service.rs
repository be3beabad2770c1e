//! [`ServiceId`]: the id of a service, and its mapping to and from RDMA IP CM ports.
//!
//! ```text
//!  63          32 31     24 23    16 15     0
//!  +-------------+---------+--------+--------+
//!  |      0      |   0x01  | proto  |  port  |   6 TCP, 0x11 UDP, 0x3f IB
//!  +-------------+---------+--------+--------+
//! ```
//!
//! # References
//! IBTA annex A11.2; Linux `rdma_get_service_id`, `enum rdma_ucm_port_space`.

use core::fmt;

use super::field::Field;

/// The id of a service. A request contains one service id. A listener has one service id or accepts
/// all ids that match under a mask.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// Returns the service id for an RDMA IP CM port.
    pub const fn ip(space: PortSpace, port: u16) -> Self {
        Self((space.0 as u64) << 16 | port as u64)
    }

    /// Returns the port space and port for an RDMA IP CM service id; `None` for other ids.
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace((self.0 >> 16) as u16);
        match (self.0 >> 32, space) {
            (0, PortSpace::TCP | PortSpace::UDP | PortSpace::IB | PortSpace::IPOIB) => {
                Some((space, self.0 as u16))
            }
            _ => None,
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space:?} port {port}"),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

impl Field for ServiceId {
    fn get(bytes: &[u8], first: usize, width: usize) -> Self {
        Self(Field::get(bytes, first, width))
    }

    fn put(self, bytes: &mut [u8], first: usize, width: usize) {
        self.0.put(bytes, first, width);
    }
}

number! {
    /// A port space of RDMA IP CM (`RDMA_PS_*`).
    PortSpace(u16);
    /// Ports for datagrams through IPoIB's queue pair. Their service ids are outside the range of
    /// annex A11.
    IPOIB = 0x0002, "IPoIB";
    /// Ports for connections.
    TCP = 0x0106, "TCP";
    /// Ports for datagrams. Service id resolution finds a port's queue pair.
    UDP = 0x0111, "UDP";
    /// Ports for any kind of queue pair.
    IB = 0x013f, "IB";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_map_to_the_service_ids_that_linux_uses() {
        assert_eq!(ServiceId::ip(PortSpace::TCP, 7174), ServiceId(0x0106_1c06));
        assert_eq!(ServiceId::ip(PortSpace::UDP, 7174), ServiceId(0x0111_1c06));
        assert_eq!(ServiceId::ip(PortSpace::IB, 1), ServiceId(0x013f_0001));
        assert_eq!(ServiceId(0x0106_1c06).port(), Some((PortSpace::TCP, 7174)));
        for other in [0x1_0106_1c06, 0x0206_1c06, 0x0107_1c06, 0x0002_c902_0000_0001] {
            assert_eq!(ServiceId(other).port(), None, "{other:#x}");
        }
    }

    #[test]
    fn a_service_id_is_shown_as_the_port_that_it_is() {
        assert_eq!(format!("{:?}", ServiceId::ip(PortSpace::TCP, 7174)), "TCP port 7174");
        assert_eq!(format!("{:?}", ServiceId(0x10_0000_0000)), "0x0000001000000000");
    }
}
