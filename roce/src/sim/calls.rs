//! The calls that programs make: memory, queue pairs, work requests, completions.

use alloc::vec::Vec;

use super::endpoint::{EndpointId, Program, Report};
use super::fabric::Fabric;
use super::memory::{Region, VecMemory, VecRegion};
use crate::engine::{
    Access, Attr, AttrChange, Completion, CqId, Engine, Event, GSI_QPN, Mad, MadDestination, MemoryAttr, Pd,
    PostRefused, QpCap, QpInit, Qpn, ReceivedMad, RecvWr, Refused, SendWr, Service, SrqId, State, Time,
};
use crate::wire::bth::DEFAULT_PKEY;
use crate::wire::packet::MAX_LINK_PACKET_LEN;

/// Calls that a program makes at an endpoint. None of them advances time.
impl Fabric {
    // Memory.

    /// Registers `bytes` in the endpoint's own protection domain, at an unused address.
    ///
    /// # Errors
    /// Same as [`Engine::reg_mr`].
    pub fn register(&mut self, id: EndpointId, bytes: Vec<u8>, access: Access) -> Result<Region, Refused> {
        self.register_in(id, self.endpoints[id.0].pd, bytes, access)
    }

    /// Registers `bytes` as [`register`](Self::register) does, in protection domain `pd`.
    ///
    /// # Errors
    /// Same as [`Engine::reg_mr`].
    pub fn register_in(
        &mut self,
        id: EndpointId,
        pd: Pd,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Region, Refused> {
        let endpoint = &mut self.endpoints[id.0];
        let length = bytes.len() as u64;
        let addr = endpoint.next_addr;
        let buffer = endpoint.engine.memory().add(bytes);
        let region = VecRegion { buffer, start: 0, length };
        let key = endpoint.engine.reg_mr(&MemoryAttr { pd, iova: addr, length, access }, region)?;
        endpoint.next_addr += length.next_multiple_of(4096) + 4096;
        Ok(Region { key, addr, length, buffer })
    }

    /// Returns the registered bytes.
    pub fn bytes(&mut self, id: EndpointId, region: &Region) -> &[u8] {
        self.bytes_mut(id, region)
    }

    /// Returns the registered bytes, mutably.
    pub fn bytes_mut(&mut self, id: EndpointId, region: &Region) -> &mut [u8] {
        self.endpoints[id.0].engine.memory().bytes_mut(region.buffer)
    }

    // Queue pairs.

    /// Calls `act` with an engine, for calls that have no wrapper here. Then sends the resulting
    /// packets.
    pub fn with<T>(
        &mut self,
        id: EndpointId,
        act: impl FnOnce(&mut Engine<VecMemory>, Time, &mut Program) -> T,
    ) -> T {
        let endpoint = &mut self.endpoints[id.0];
        let result = act(&mut endpoint.engine, self.now, &mut endpoint.program);
        self.after(id);
        result
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// Same as [`Engine::create_qp`].
    pub fn create_qp(&mut self, id: EndpointId, init: &QpInit) -> Result<Qpn, Refused> {
        self.endpoints[id.0].engine.create_qp(init)
    }

    /// Returns parameters for [`create_qp`](Self::create_qp): 128 sends and 128 receives of up to 4
    /// elements each. Both queues complete to completion queue 0.
    pub fn qp_init(&self, id: EndpointId, service: Service) -> QpInit {
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        QpInit { cap, ..QpInit::new(service, self.endpoints[id.0].pd, CqId(0), CqId(0)) }
    }

    /// Creates two reliably connected queue pairs that are ready to send. Uses
    /// [`qp_init`](Self::qp_init) and [`connected_attr`].
    ///
    /// # Errors
    /// Same as [`create_qp`](Self::create_qp) and [`modify_qp`](Self::modify_qp).
    pub fn rc_pair(&mut self, a: EndpointId, b: EndpointId) -> Result<(Qpn, Qpn), Refused> {
        let qp_a = self.create_qp(a, &self.qp_init(a, Service::Rc))?;
        let qp_b = self.create_qp(b, &self.qp_init(b, Service::Rc))?;
        self.connect((a, qp_a), (b, qp_b), &connected_attr())?;
        Ok((qp_a, qp_b))
    }

    /// Connects two queue pairs with the same attributes and makes them ready to send. The first
    /// queue pair starts with `sq_psn`, the second with `rq_psn`.
    ///
    /// # Errors
    /// Same as [`modify_qp`](Self::modify_qp).
    pub fn connect(
        &mut self,
        (a, qp_a): (EndpointId, Qpn),
        (b, qp_b): (EndpointId, Qpn),
        attr: &Attr,
    ) -> Result<(), Refused> {
        let back = Attr { sq_psn: attr.rq_psn, rq_psn: attr.sq_psn, ..*attr };
        self.ready(a, qp_a, &Attr { path: self.path(a, b), dest_qpn: qp_b.0, ..*attr })?;
        self.ready(b, qp_b, &Attr { path: self.path(b, a), dest_qpn: qp_a.0, ..back })
    }

    /// Moves a queue pair from RESET to RTS.
    ///
    /// # Errors
    /// Same as [`modify_qp`](Self::modify_qp).
    pub fn ready(&mut self, id: EndpointId, qpn: Qpn, attr: &Attr) -> Result<(), Refused> {
        let init = AttrChange {
            state: Some(State::Init),
            pkey: Some(attr.pkey),
            qkey: Some(attr.qkey),
            access: Some(attr.access),
            ..AttrChange::default()
        };
        let rtr = AttrChange {
            state: Some(State::Rtr),
            path: Some(attr.path),
            dest_qpn: Some(attr.dest_qpn),
            path_mtu: Some(attr.path_mtu),
            rq_psn: Some(attr.rq_psn),
            min_rnr_timer: Some(attr.min_rnr_timer),
            max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            ..AttrChange::default()
        };
        let rts = AttrChange {
            state: Some(State::Rts),
            sq_psn: Some(attr.sq_psn),
            timeout: Some(attr.timeout),
            retry_cnt: Some(attr.retry_cnt),
            rnr_retry: Some(attr.rnr_retry),
            max_rd_atomic: Some(attr.max_rd_atomic),
            ..AttrChange::default()
        };
        for change in [init, rtr, rts] {
            self.modify_qp(id, qpn, &change)?;
        }
        Ok(())
    }

    /// Changes a queue pair's attributes and state.
    ///
    /// # Errors
    /// Same as [`Engine::modify_qp`].
    pub fn modify_qp(&mut self, id: EndpointId, qpn: Qpn, change: &AttrChange) -> Result<(), Refused> {
        if change.path.is_some_and(|path| path.on_link) {
            self.longest = MAX_LINK_PACKET_LEN;
        }
        let endpoint = &mut self.endpoints[id.0];
        let result = endpoint.engine.modify_qp(qpn, change, self.now, &mut endpoint.program);
        self.after(id);
        result
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// Same as [`Engine::destroy_qp`].
    pub fn destroy_qp(&mut self, id: EndpointId, qpn: Qpn) -> Result<(), Refused> {
        let result = self.endpoints[id.0].engine.destroy_qp(qpn);
        self.after(id);
        result
    }

    /// Posts a send.
    ///
    /// # Errors
    /// Same as [`Engine::post_send`].
    pub fn post_send(&mut self, id: EndpointId, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostRefused> {
        let endpoint = &mut self.endpoints[id.0];
        let result = endpoint.engine.post_send(qpn, wr, self.now, &mut endpoint.program);
        self.after(id);
        result
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Same as [`Engine::post_recv`].
    pub fn post_recv(&mut self, id: EndpointId, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        let endpoint = &mut self.endpoints[id.0];
        let result = endpoint.engine.post_recv(qpn, wr, self.now, &mut endpoint.program);
        self.after(id);
        result
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// Same as [`Engine::post_srq_recv`].
    pub fn post_srq_recv(&mut self, id: EndpointId, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        self.endpoints[id.0].engine.post_srq_recv(srq, wr)
    }

    // Management datagrams.

    /// Opens the general services interface of an endpoint.
    ///
    /// # Errors
    /// Same as [`Engine::open_gsi`].
    pub fn open_gsi(&mut self, id: EndpointId) -> Result<(), Refused> {
        self.endpoints[id.0].engine.open_gsi()
    }

    /// Sends a management datagram from one endpoint to another endpoint's general services
    /// interface.
    ///
    /// # Errors
    /// Same as [`Engine::send_mad`].
    pub fn send_mad(&mut self, from: EndpointId, to: EndpointId, mad: &Mad) -> Result<(), PostRefused> {
        let to = MadDestination { path: self.path(from, to), qpn: GSI_QPN, pkey: DEFAULT_PKEY };
        self.with(from, |engine, _, _| engine.send_mad(&to, mad))
    }

    /// Removes and returns the next received management datagram. An endpoint stores at most 512.
    pub fn poll_mad(&mut self, id: EndpointId) -> Option<ReceivedMad> {
        self.endpoints[id.0].program.mads.pop_front()
    }

    // Completions and events.

    /// Removes and returns the next completion of a completion queue.
    pub fn poll(&mut self, id: EndpointId, cq: CqId) -> Option<Completion> {
        self.endpoints[id.0].program.poll(cq)
    }

    /// Removes and returns the next event.
    pub fn next_event(&mut self, id: EndpointId) -> Option<Event> {
        self.endpoints[id.0].program.events.pop_front()
    }

    /// Limits a completion queue to `size` completions. Without a limit, the queue is never full.
    pub fn limit_cq(&mut self, id: EndpointId, cq: CqId, size: usize) {
        self.endpoints[id.0].program.limit(cq, size);
    }

    /// Makes the endpoint also store all future reports from its engine for
    /// [`next_report`](Self::next_report).
    pub fn listen(&mut self, id: EndpointId) {
        self.endpoints[id.0].program.log.get_or_insert_default();
    }

    /// Removes and returns the next report from the engine. Reports include retired work requests.
    pub fn next_report(&mut self, id: EndpointId) -> Option<Report> {
        self.endpoints[id.0].program.log.as_mut()?.pop_front()
    }
}

/// Returns the default attributes of connected queue pairs: a path MTU of 1024 bytes, all access
/// rights, a time-out of 67 ms, 7 retries, unlimited RNR retries.
pub fn connected_attr() -> Attr {
    Attr {
        path_mtu: 1024,
        pkey: DEFAULT_PKEY,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..Attr::default()
    }
}
