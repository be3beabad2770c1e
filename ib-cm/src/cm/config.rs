//! [`Config`]: properties of a device and the limits of a [`Cm`](super::Cm).

/// The configuration of a [`Cm`](super::Cm).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The GUID of the device. It must be unique, because peers distinguish devices by GUID.
    pub node_guid: u64,
    /// The time the device needs to acknowledge a packet, a 5-bit code (`local_ca_ack_delay`). rxe
    /// uses 15.
    pub ack_delay: u8,
    /// The upper 8 bits of every local communication id. Devices that share an address need
    /// different prefixes. With prefix 0, all bits are random.
    pub id_prefix: u8,
    /// The maximum number of connections and resolutions, whatever their state.
    pub max_connections: usize,
    /// The maximum number of peers' requests waiting for the caller's response, across all
    /// listeners. Further requests are dropped, so their senders try again. One source address may
    /// hold at most as many slots as remain free, hence at most half of all slots. The rest stays
    /// available to other senders.
    pub max_pending: usize,
    /// The maximum number of listeners.
    pub max_listeners: usize,
    /// The maximum number of connections still being released after
    /// [`destroy`](super::Cm::destroy). Beyond this limit, the oldest connection is dropped.
    pub max_orphans: usize,
    /// The maximum number of messages waiting for [`poll_transmit`](super::Cm::poll_transmit).
    /// Further messages are dropped, as a network might.
    pub max_transmits: usize,
    /// The limit on events waiting for [`poll_event`](super::Cm::poll_event). Once the limit is
    /// reached, new requests from peers are dropped.
    pub max_events: usize,
    /// The longest timeout accepted from peers, a 5-bit code. It limits how long an unknown peer's
    /// request occupies memory. Linux requests at most 24, which counts as 65.5 s
    /// ([`nanoseconds`](crate::time::nanoseconds)).
    pub max_peer_timeout: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_guid: 0,
            ack_delay: 15,
            id_prefix: 0,
            max_connections: 65_536,
            max_pending: 4096,
            max_listeners: 4096,
            max_orphans: 1024,
            max_transmits: 4096,
            max_events: 8192,
            max_peer_timeout: 24,
        }
    }
}
