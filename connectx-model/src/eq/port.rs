//! Port state changes and the events they raise.

use crate::bus::Bus;
use crate::function::Core;
use crate::layout::eqe;
use crate::state::eq::EventType;

/// Subtypes of a port change event: port down and port active.
const SUBTYPE_DOWN: u8 = 1;

const SUBTYPE_ACTIVE: u8 = 4;

impl<B: Bus> Core<B> {
    /// Connects or disconnects the cable.
    pub(crate) fn set_link(&mut self, linked: bool) {
        self.port.linked = linked;
        self.settle_port();
    }

    /// Records whether the driver has enabled the port.
    pub(crate) fn set_port_enabled(&mut self, enabled: bool) {
        self.port.enabled = enabled;
        self.settle_port();
    }

    fn settle_port(&mut self) {
        let up = self.port.linked && self.port.enabled;
        if self.port.up == up {
            return;
        }
        self.port.up = up;
        let mut data = [0; 28];
        eqe::port::PORT_NUM.set(&mut data, 1u32);
        self.event(EventType::PortChange, if up { SUBTYPE_ACTIVE } else { SUBTYPE_DOWN }, &data);
    }
}
