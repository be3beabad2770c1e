//! [`Config`]: the facts about a device, and the limits of a [`Cm`](super::Cm).

/// The configuration of a [`Cm`](super::Cm).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The GUID of the device. Peers distinguish devices by it, so it must be unique.
    pub node_guid: u64,
    /// The time within which the device acknowledges a packet, a code of 5 bits
    /// (`local_ca_ack_delay`). rxe has 15.
    pub ack_delay: u8,
    /// The maximum number of connections and resolutions in all states.
    pub max_connections: usize,
    /// The maximum number of requests of strangers that wait for the caller, of all listeners
    /// together. Further requests are dropped, so that their senders try again. One source address
    /// may have at most as many as there are free places, which is at most half of them; the others
    /// are for other senders.
    pub max_pending: usize,
    /// The maximum number of listeners.
    pub max_listeners: usize,
    /// The maximum number of connections whose release continues after
    /// [`destroy`](super::Cm::destroy). Beyond it the oldest one is forgotten.
    pub max_orphans: usize,
    /// The maximum number of messages that wait for [`poll_transmit`](super::Cm::poll_transmit).
    /// Further ones are lost, as on a network.
    pub max_transmits: usize,
    /// The number of events that wait for [`poll_event`](super::Cm::poll_event) from which on
    /// requests of strangers are dropped.
    pub max_events: usize,
    /// The maximum of timeouts that peers ask for, a code of 5 bits. It bounds the time for which a
    /// stranger's request occupies memory. Linux asks for at most 24, 65 s.
    pub max_peer_timeout: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_guid: 0,
            ack_delay: 15,
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
