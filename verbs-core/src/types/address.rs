//! Where a datagram or a connection goes: [`AhAttr`] before it is resolved, [`Av`] after.

use core::fmt;

use super::Gid;

/// The global part of an address: what becomes the GRH, or on RoCE the IP header.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The destination.
    pub dgid: Gid,
    /// 20 bits; on RoCE v2 it chooses the UDP source port.
    pub flow_label: u32,
    /// The entry of the local port's GID table that is the source.
    pub sgid_index: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// Traffic class; on RoCE the IP header's TOS/DSCP.
    pub traffic_class: u8,
}

/// The path to a peer, as it is given to `create_ah` and to `modify`.
///
/// # References
/// `ibv_create_ah(3)`, `ibv_modify_qp(3)`
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// The global part; required on RoCE and across InfiniBand subnets.
    pub grh: Option<GlobalRoute>,
    /// Destination local id; 0 on RoCE.
    pub dlid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// The low bits of the source local id.
    pub src_path_bits: u8,
    /// Static rate, in the encoding of `ibv_rate`; 0 is the port's own.
    pub static_rate: u8,
    /// The local port that packets leave by, from 1.
    pub port_num: u8,
}

/// A resolved address (address vector): what a provider copies into a datagram's WQE.
///
/// Opaque to all but the provider that made it, which recognises its own by the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Av {
    tag: u32,
    len: u32,
    bytes: [u8; Self::MAX],
}

impl Av {
    /// The most bytes that a provider can keep in one.
    pub const MAX: usize = 96;

    /// An address vector of the provider that owns `tag` (its kernel driver id).
    ///
    /// # Panics
    /// When `bytes` is longer than [`Av::MAX`]: a defect of the provider.
    pub fn new(tag: u32, bytes: &[u8]) -> Self {
        let mut av = Self { tag, len: bytes.len() as u32, bytes: [0; Self::MAX] };
        av.bytes[..bytes.len()].copy_from_slice(bytes);
        av
    }

    /// The provider's bytes, or `None` when another provider made this.
    #[inline(always)]
    pub fn bytes(&self, tag: u32) -> Option<&[u8]> {
        if self.tag == tag { self.bytes.get(..self.len as usize) } else { None }
    }
}

impl fmt::Debug for Av {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Av").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Where one datagram goes: the path, the queue there and the key that opens it.
#[derive(Clone, Copy, Debug)]
pub struct UdAddr<'a> {
    /// The path, from an address handle.
    pub av: &'a Av,
    /// The peer's queue pair number, 24 bits.
    pub remote_qpn: u32,
    /// The peer's queue key; with the top bit set, the sender's own is used.
    pub remote_qkey: u32,
}
