//! The provider's side of [`World`]: objects backed by the table.

use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use verbs::provider::{
    AhOps, Completion, ContextOps, CqOps, Destroy, DeviceOps, DmOps, DmahOps, EventsRead, FlowRule,
    MrInitAttr, MrMemory, MrOps, MwOps, OpenedContext, ParentDomainAttr, PdOps, QpExtras, QpOps, QpParents,
    QpParts, RecvQueue, RwqIndTableOps, SendQueue, SrqOps, SrqParents, SrqParts, WqParents, WqParts, XrcdOps,
    erase,
};
use verbs::{
    AccessFlags, AhAttr, Av, Cause, CompCntrAttachOps, CompCntrType, CqInitAttr, DataInOrder, DeviceAttr,
    DeviceAttrEx, DeviceInfo, DmAttr, DmahAttr, Driver, Ece, Errno, Error, FlowActionEspAttr, Gid, GidEntry,
    LinkLayer, Mtu, MwType, NamedProvider, OpKind, OpsWr, PortAttr, PortCapFlags, PortCapFlags2, PortFlags,
    PortState, PostError, PostReason, Provider, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState,
    QpType, RateLimit, RecvWr, Result, SendFlags, SendOp, SendWr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType,
    Wc, WcFlags, WcOpcode, WcStatus, WqInitAttr,
};

use super::domains::{PaperDm, PaperDmah, PaperTd, PaperXrcd};
use super::steering::{PaperAction, PaperCntr, PaperCounters, PaperFlow, PaperTable, PaperWq};
use super::{AfterPost, Kind, Object, Request, World};

/// The maximum number of receives in a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1024;

#[derive(Debug)]
pub enum Paper {}

// SAFETY: the table completes each request once, removes the requests of destroyed and reset queue
// pairs, and gives each region its own key. A receive of a shared receive queue stays in the table
// until a queue pair completes it or loses it, or the shared receive queue is destroyed. A receive
// of a work queue stays until the work queue is destroyed; `modify` changes no queue. Only the
// functions of `World` let a test break this.
unsafe impl Provider for Paper {
    type Context = PaperContext;
    type Pd = PaperPd;
    type Mr = PaperMr;
    type Cq = PaperCq;
    type CqHandle = PaperCqHandle;
    type Qp = PaperQp;
    type Sq = PaperQueue;
    type Rq = PaperQueue;
    type Ah = PaperAh;
    type Srq = PaperSrq;
    type SrqQueue = PaperQueue;
    type Xrcd = PaperXrcd;
    type Mw = PaperMw;
    type Dm = PaperDm;
    type Dmah = PaperDmah;
    type Td = PaperTd;
    type Wq = PaperWq;
    type WqQueue = PaperQueue;
    type RwqIndTable = PaperTable;
    type Flow = PaperFlow;
    type FlowAction = PaperAction;
    type Counters = PaperCounters;
    type CompCntr = PaperCntr;
}

impl NamedProvider for Paper {
    const DRIVER: Driver = Driver {
        name: "paper",
        driver_id: 0xfeed,
        min_abi: 1,
        max_abi: 2,
        matches: is_paper,
        devices: Vec::new,
        open: open_erased,
        import: None,
    };

    fn open(device: &DeviceInfo) -> Result<PaperContext> {
        let world = World::named(device.name()).expect("a world of this name");
        world.state().contexts += 1;
        Ok(PaperContext { world, async_fd: std::sync::OnceLock::new() })
    }
}

fn is_paper(device: &DeviceInfo) -> bool {
    World::named(device.name()).is_some()
}

fn open_erased(device: &DeviceInfo) -> Result<OpenedContext> {
    Paper::open(device).map(erase::<Paper>)
}

fn port_attr() -> PortAttr {
    PortAttr {
        state: PortState::ACTIVE,
        max_mtu: Mtu::MTU_4096,
        active_mtu: Mtu::MTU_1024,
        gid_tbl_len: 8,
        port_cap_flags: PortCapFlags::empty(),
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: verbs::PortWidth::WIDTH_1X,
        active_speed: verbs::PortSpeed::SDR,
        phys_state: 5,
        link_layer: LinkLayer::ETHERNET,
        flags: PortFlags::empty(),
        port_cap_flags2: PortCapFlags2::empty(),
        active_speed_ex: verbs::PortSpeed(0),
    }
}

#[derive(Debug)]
pub struct PaperContext {
    world: Arc<World>,
    async_fd: std::sync::OnceLock<OwnedFd>,
}

impl Drop for PaperContext {
    fn drop(&mut self) {
        self.world.state().contexts -= 1;
    }
}

/// An object in the table. Dropping it without destroying it is recorded.
#[derive(Debug)]
pub struct Handle {
    world: Arc<World>,
    handle: u32,
    armed: bool,
}

impl Handle {
    pub fn number(&self) -> u32 {
        self.handle
    }

    pub fn new(world: &Arc<World>, object: Object) -> Self {
        let handle = world.state().add(object);
        Self { world: Arc::clone(world), handle, armed: true }
    }

    /// Returns the number of the object's events that were counted as read.
    pub fn events_read(&self) -> EventsRead {
        let state = self.world.state();
        let kind = state.live[&self.handle].kind;
        state.events_read.get(&kind).copied().unwrap_or_default()
    }

    pub fn destroy(mut self, verb: &'static str) -> Result<(), (Self, Error)> {
        if self.world.is_to_panic_on_destroying(self.handle) {
            // The object is lost, not dropped by the program, so this is not reported.
            self.armed = false;
            panic!("{verb} panics, as asked");
        }
        self.world.stall(self.handle);
        let destroyed = self.world.state().destroy(self.handle);
        match destroyed {
            Ok(()) => {
                self.armed = false;
                Ok(())
            }
            Err(errno) => {
                let error = self.world.error(verb, errno);
                Err((self, error))
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.armed {
            self.world.state().broken.push(format!("object {} dropped, not destroyed", self.handle));
        }
    }
}

/// Defines objects that consist of a handle.
macro_rules! objects {
    ($($name:ident = $verb:literal { $($field:ident: $type:ty),* };)*) => {$(
        #[derive(Debug)]
        pub struct $name {
            handle: Handle,
            $(pub $field: $type,)*
        }

        impl Destroy for $name {
            fn destroy(self) -> Result<(), (Self, Error)> {
                let Self { handle, $($field),* } = self;
                handle.destroy($verb).map_err(|(handle, error)| (Self { handle, $($field),* }, error))
            }

            fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
                let read = self.handle.events_read();
                self.destroy().map(|()| read)
            }
        }
    )*};
}

objects! {
    PaperPd = "dealloc_pd" {};
    PaperMr = "dereg_mr" {};
    PaperAh = "destroy_ah" { av: Av };
    PaperMw = "dealloc_mw" { mw_type: MwType };
    PaperCq = "destroy_cq" { cqe: u32 };
    PaperQp = "destroy_qp" { num: u32, attr: QpInitAttr, state: QpState };
    PaperSrq = "destroy_srq" { attr: Mutex<SrqAttr>, num: Option<u32> };
}

impl PdOps for PaperPd {
    fn handle(&self) -> u32 {
        self.handle.handle
    }
}

impl MrOps for PaperMr {
    fn handle(&self) -> u32 {
        self.handle.handle
    }
    fn lkey(&self) -> u32 {
        self.handle.handle
    }
    fn rkey(&self) -> u32 {
        assert!(!self.handle.world.state().panic_on_key, "rkey panics, as asked");
        self.handle.handle | 0x1000_0000
    }
}

impl MwOps for PaperMw {
    fn handle(&self) -> u32 {
        self.handle.handle
    }
    fn rkey(&self) -> u32 {
        self.handle.handle << 8
    }
    fn mw_type(&self) -> MwType {
        self.mw_type
    }
    fn revocation_ends_access(&self) -> bool {
        self.handle.world.state().ends_access
    }
}

impl AhOps for PaperAh {
    fn av(&self) -> &Av {
        &self.av
    }
}

/// A completion, read from the table when polled.
#[derive(Clone, Copy)]
pub struct PaperCompletion<'a>(Wc, PhantomData<&'a mut PaperCq>);

macro_rules! read {
    ($($field:ident: $type:ty),*) => {
        impl Completion for PaperCompletion<'_> {
            $(fn $field(&self) -> $type { self.0.$field })*
        }
    };
}

read! {
    wr_id: u64, status: WcStatus, opcode: WcOpcode, vendor_err: u32, byte_len: u32, imm_data: u32, qp_num: u32,
    src_qp: u32, wc_flags: WcFlags, pkey_index: u16, slid: u16, sl: u8, dlid_path_bits: u8
}

impl CqOps for PaperCq {
    type Completion<'a> = PaperCompletion<'a>;

    fn handle(&self) -> u32 {
        self.handle.handle
    }
    fn cqe(&self) -> u32 {
        self.cqe
    }
    fn next(&mut self) -> Option<PaperCompletion<'_>> {
        let mut state = self.handle.world.state();
        let cq = state.live.get_mut(&self.handle.handle).unwrap();
        cq.completions.pop_front().map(|wc| PaperCompletion(wc, PhantomData))
    }
    fn end_poll(&mut self) {
        self.handle.world.state().finishes += 1;
    }
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        let mut state = self.handle.world.state();
        let cq = state.live.get_mut(&self.handle.handle).unwrap();
        let count = wcs.len().min(cq.completions.len());
        for (wc, completion) in wcs.iter_mut().zip(cq.completions.drain(..count)) {
            *wc = completion;
        }
        state.finishes += usize::from(count > 0);
        count
    }
    fn req_notify(&self, _solicited_only: bool) -> Result<()> {
        self.handle.world.state().live.get_mut(&self.handle.handle).unwrap().armed = true;
        Ok(())
    }
}

/// Names a completion queue by its handle in the table.
#[derive(Clone, Copy, Debug)]
pub struct PaperCqHandle(u32);

#[derive(Debug)]
pub struct PaperQueue {
    world: Arc<World>,
    qp: u32,
    depth: usize,
    max_sge: u32,
    max_inline: u32,
    /// The requests put into the queue but not yet announced to the device.
    written: Vec<Request>,
    /// The maximum number of tag list operations, if the queue has a tag list.
    tag_ops: Option<u32>,
}

impl PaperQueue {
    /// Creates the receive queue of a work queue.
    pub fn new(world: &Arc<World>, wq: u32, max_wr: u32, max_sge: u32) -> Self {
        let (world, depth) = (Arc::clone(world), max_wr as usize);
        Self { world, qp: wq, depth, max_sge, max_inline: 0, written: Vec::new(), tag_ops: None }
    }

    fn put(&mut self, request: Request) -> Result<(), PostReason> {
        let panics = self.world.state().panic_on_post;
        if let Some(when) = panics {
            if when == AfterPost::Queued {
                self.world.state().requests.push(request);
            }
            panic!("posting panics, as asked");
        }
        let mut state = self.world.state();
        if let Some((after, reason)) = state.refuse_post {
            if after == 0 {
                return Err(reason);
            }
            state.refuse_post = Some((after - 1, reason));
        }
        if request.sge.len() > self.max_sge as usize {
            return Err(PostReason::TooManySge { given: request.sge.len(), max: self.max_sge });
        }
        let is_recv = request.is_recv;
        let posted =
            state.requests.iter().filter(|other| other.qp == self.qp && other.is_recv == is_recv).count();
        if posted + self.written.len() >= self.depth {
            return Err(PostReason::QueueFull);
        }
        self.written.push(request);
        Ok(())
    }

    /// Announces the requests in the queue to the device.
    fn publish(&mut self) {
        self.world.state().requests.append(&mut self.written);
    }
}

impl SendQueue for PaperQueue {
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let mut inline = Vec::new();
        if wr.flags.contains(SendFlags::INLINE) {
            for sge in wr.sge {
                if sge.length > self.max_inline {
                    return Err(PostReason::InlineTooLong { given: sge.length.into(), max: self.max_inline });
                }
                // SAFETY: inline elements are memory of this process that may be read now.
                inline.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::with_exposed_provenance(sge.addr as usize),
                        sge.length as usize,
                    )
                });
            }
        }
        self.put(Request {
            qp: self.qp,
            wr_id: wr.wr_id,
            is_recv: false,
            opcode: match wr.op {
                SendOp::RdmaWrite { .. } => WcOpcode::RDMA_WRITE,
                SendOp::RdmaRead { .. } => WcOpcode::RDMA_READ,
                SendOp::BindMw { .. } => WcOpcode::BIND_MW,
                SendOp::LocalInv { .. } => WcOpcode::LOCAL_INV,
                _ => WcOpcode::SEND,
            },
            flags: wr.flags,
            sge: wr.sge.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect(),
            inline,
        })
    }

    fn ring(&mut self) -> Result<(), Errno> {
        self.publish();
        let mut state = self.world.state();
        state.rings += 1;
        match state.refuse_post {
            Some((_, PostReason::Doorbell(errno))) => Err(errno),
            _ => Ok(()),
        }
    }

    fn rollback(&mut self, count: usize) -> usize {
        assert!(!self.world.state().panic_on_rollback, "rollback panics, as asked");
        self.written.drain(self.written.len().saturating_sub(count)..).count()
    }
}

impl RecvQueue for PaperQueue {
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        self.put(Request {
            qp: self.qp,
            wr_id: wr.wr_id,
            is_recv: true,
            opcode: WcOpcode::RECV,
            flags: SendFlags::empty(),
            sge: wr.sge.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect(),
            inline: Vec::new(),
        })
    }

    fn ring(&mut self) {
        self.publish();
    }

    unsafe fn post_srq_ops(&mut self, wrs: &mut [OpsWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            let reason = match self.tag_ops {
                None => PostReason::NoTagMatching,
                Some(0) => PostReason::QueueFull,
                Some(left) => {
                    self.tag_ops = Some(left - 1);
                    self.world.state().tag_ops.push(format!("{wr:?}"));
                    continue;
                }
            };
            return Err(PostError { accepted, reason });
        }
        Ok(())
    }
}

impl SrqOps for PaperSrq {
    type Queue = PaperQueue;

    fn handle(&self) -> u32 {
        self.handle.handle
    }
    fn srq_num(&self) -> Option<u32> {
        self.num
    }
    fn attr(&self) -> SrqAttr {
        *self.attr.lock().unwrap()
    }
    fn modify(&self, queue: &mut PaperQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        assert_eq!(queue.qp, self.handle.handle, "another shared receive queue's queue");
        let mut its = self.attr.lock().unwrap();
        if mask.contains(SrqAttrMask::MAX_WR) {
            its.max_wr = attr.max_wr;
            queue.depth = attr.max_wr as usize;
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            its.srq_limit = attr.srq_limit;
        }
        Ok(())
    }
    fn query(&self) -> Result<SrqAttr> {
        Ok(self.attr())
    }
}

impl QpOps for PaperQp {
    type Sq = PaperQueue;
    type Rq = PaperQueue;

    fn handle(&self) -> u32 {
        self.handle.handle
    }
    fn qp_num(&self) -> u32 {
        self.num
    }
    fn qp_type(&self) -> QpType {
        self.attr.qp_type
    }
    fn cap(&self) -> QpCap {
        self.attr.cap
    }
    fn state(&self) -> QpState {
        self.state
    }
    fn modify(
        &mut self,
        sq: &mut PaperQueue,
        rq: &mut PaperQueue,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        let mut state = self.handle.world.state();
        assert_eq!((sq.qp, rq.qp), (self.handle.handle, self.handle.handle), "another queue pair's queues");
        let (from, to) = verbs_core::transition::endpoints(self.state, attr, mask);
        verbs_core::transition::check(self.attr.qp_type, from, to, mask)
            .map_err(|cause| self.handle.world.error("modify_qp", Errno::INVAL).because(cause))?;
        if let Some((refused, errno)) = state.refuse_move
            && refused == to
        {
            return Err(self.handle.world.error("modify_qp", errno));
        }
        state.moves.push((to, mask, *attr));
        if to == QpState::RESET {
            state.take_requests(self.handle.handle);
        }
        state.live.get_mut(&self.handle.handle).unwrap().qp_state = to;
        self.state = to;
        Ok(())
    }
    fn reset_ends_requests(&self) -> bool {
        !self.handle.world.state().forgets_late
    }
    fn query(&self, _mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
        let qp_state = self.handle.world.state().live[&self.handle.handle].qp_state;
        let info = QpInitInfo { cap: self.attr.cap, sq_sig_all: self.attr.sq_sig_all };
        Ok((QpAttr { qp_state, ..QpAttr::default() }, info))
    }
    fn modify_rate_limit(&mut self, attr: &RateLimit) -> Result<()> {
        let mut state = self.handle.world.state();
        if !state.has_extras {
            return Err(Error::new("modify_qp_rate_limit", "", Errno::OPNOTSUPP));
        }
        state.pace = Some(*attr);
        Ok(())
    }
    fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        let mut state = self.handle.world.state();
        if !state.has_extras {
            return Err(Error::new("set_ece", "", Errno::OPNOTSUPP));
        }
        state.ece = *ece;
        Ok(())
    }
    fn query_ece(&self) -> Result<Ece> {
        let state = self.handle.world.state();
        if state.has_extras { Ok(state.ece) } else { Err(Error::new("query_ece", "", Errno::OPNOTSUPP)) }
    }
    fn data_in_order(&self, op: OpKind) -> DataInOrder {
        match op {
            OpKind::RDMA_WRITE if self.handle.world.state().has_extras => DataInOrder::WHOLE_MSG,
            _ => DataInOrder::empty(),
        }
    }
    fn attach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        self.handle.world.state().groups.push((self.handle.handle, *gid, lid));
        Ok(())
    }
    fn detach_mcast(&mut self, gid: &Gid, lid: u16) -> Result<()> {
        let mut state = self.handle.world.state();
        let group = (self.handle.handle, *gid, lid);
        let at = state.groups.iter().position(|attached| *attached == group);
        let at = at.ok_or_else(|| self.handle.world.error("detach_mcast", Errno::INVAL))?;
        state.groups.remove(at);
        Ok(())
    }
}

impl PaperContext {
    fn pipe(&self) -> (OwnedFd, File) {
        let (read, write) = std::io::pipe().unwrap();
        (read.into(), OwnedFd::from(write).into())
    }

    fn create_qp_with(
        &self,
        parents: &QpParents<'_, Paper>,
        attr: &QpInitAttr,
        table: Option<&PaperTable>,
    ) -> Result<QpParts<Paper>> {
        let (Some(pd), Some(&PaperCqHandle(send_cq))) = (parents.pd, parents.send_cq) else {
            return Err(self.world.error("create_qp", Errno::OPNOTSUPP));
        };
        let num = self.free_number();
        let object = Object {
            kind: Kind::Qp,
            uses: [pd.handle(), send_cq]
                .into_iter()
                .chain(parents.recv_cq.map(|cq| cq.0))
                .chain(parents.srq.map(SrqOps::handle))
                .chain(table.map(RwqIndTableOps::handle))
                .collect(),
            user_handle: attr.user_handle,
            qp_num: num,
            ..Object::default()
        };
        let handle = Handle::new(&self.world, object);
        let queue = |depth: u32, max_sge| PaperQueue {
            world: Arc::clone(&self.world),
            qp: handle.handle,
            depth: depth as usize,
            max_sge,
            max_inline: attr.cap.max_inline_data,
            written: Vec::new(),
            tag_ops: None,
        };
        let sq = queue(attr.cap.max_send_wr, attr.cap.max_send_sge);
        let rq = queue(if parents.srq.is_some() { 0 } else { attr.cap.max_recv_wr }, attr.cap.max_recv_sge);
        Ok(QpParts { qp: PaperQp { handle, num, attr: *attr, state: QpState::RESET }, sq, rq })
    }

    /// Returns the lowest unused queue pair number; numbers are reused.
    fn free_number(&self) -> u32 {
        let state = self.world.state();
        let taken = |num: &u32| state.live.values().any(|object| object.qp_num == *num);
        (17..).find(|num| !taken(num)).unwrap()
    }

    /// Creates an XRC target, which posts nothing.
    fn target(&self, xrcd: &PaperXrcd, attr: &QpInitAttr) -> QpParts<Paper> {
        let qp_num = self.free_number();
        let (uses, user_handle) = (vec![xrcd.handle()], attr.user_handle);
        let object = Object { kind: Kind::Qp, uses, user_handle, qp_num, ..Object::default() };
        let handle = Handle::new(&self.world, object);
        let [sq, rq] = [(); 2].map(|()| PaperQueue::new(&self.world, handle.handle, 0, 0));
        QpParts { qp: PaperQp { handle, num: qp_num, attr: *attr, state: QpState::RESET }, sq, rq }
    }

    fn unasked<T>(&self, verb: &'static str) -> Result<T> {
        Err(self.world.error(verb, Errno::OPNOTSUPP))
    }
}

impl DeviceOps for PaperContext {
    fn device_name(&self) -> &str {
        &self.world.name
    }
    fn num_comp_vectors(&self) -> u32 {
        1
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        let (max_qp_init_rd_atom, max_qp_rd_atom) = self.world.state().reads;
        Ok(DeviceAttr {
            fw_ver: String::new(),
            node_guid: verbs::Guid(1),
            sys_image_guid: verbs::Guid(1),
            device_cap_flags: verbs::DeviceCapFlags::empty(),
            atomic_cap: verbs::AtomicCap::NONE,
            phys_port_cnt: 1,
            max_qp_init_rd_atom,
            max_qp_rd_atom,
            max_mr_size: 0,
            page_size_cap: 0,
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_sge_rd: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_pd: 0,
            max_ee_rd_atom: 0,
            max_res_rd_atom: 0,
            max_ee_init_rd_atom: 0,
            max_ee: 0,
            max_rdd: 0,
            max_mw: 0,
            max_raw_ipv6_qp: 0,
            max_raw_ethy_qp: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_ah: 0,
            max_fmr: 0,
            max_map_per_fmr: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_pkeys: 0,
            local_ca_ack_delay: 0,
        })
    }
    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        let Some(extend) = self.world.state().extended else { return self.unasked("query_device_ex") };
        let mut attr = DeviceAttrEx {
            orig_attr: self.query_device()?,
            odp_caps: verbs::OdpCaps::default(),
            completion_timestamp_mask: 0,
            hca_core_clock: 0,
            device_cap_flags_ex: verbs::DeviceCapFlags::empty(),
            tso_caps: verbs::TsoCaps::default(),
            rss_caps: verbs::RssCaps::default(),
            max_wq_type_rq: 0,
            packet_pacing_caps: verbs::PacketPacingCaps::default(),
            raw_packet_caps: verbs::RawPacketCaps::empty(),
            tm_caps: verbs::TmCaps::default(),
            cq_mod_caps: verbs::CqModerationCaps::default(),
            max_dm_size: 0,
            pci_atomic_caps: verbs::PciAtomicCaps::default(),
            xrc_odp_caps: verbs::OdpTransportCaps::empty(),
            phys_port_cnt_ex: 1,
        };
        extend(&mut attr);
        Ok(attr)
    }
    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        if port_num != 1 {
            let cause = Cause::Limit { name: "port_num", asked: port_num.into(), min: 1, max: 1 };
            return Err(self.world.error("query_port", Errno::INVAL).because(cause));
        }
        Ok(PortAttr { active_mtu: self.world.state().active_mtu.unwrap_or(Mtu::MTU_1024), ..port_attr() })
    }
    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        Ok(self.world.state().gids.clone())
    }
    fn query_gid_entry(&self, _port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        Ok(self.world.state().gids.iter().find(|entry| entry.gid_index == gid_index).copied())
    }
    fn query_pkey(&self, _port_num: u8, _index: u16) -> Result<u16> {
        Ok(0xffff)
    }
    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        let fd = self.async_fd.get_or_init(|| {
            let (read, write) = self.pipe();
            let copy = read.try_clone().unwrap();
            self.world.state().asynchronous = Some((copy, write));
            read
        });
        Ok(fd.as_fd())
    }
    fn create_comp_channel(&self) -> Result<OwnedFd> {
        let (read, write) = self.pipe();
        self.world.state().channels.insert(read.as_raw_fd(), write);
        Ok(read)
    }
}

impl ContextOps<Paper> for PaperContext {
    fn provider_name(&self) -> &'static str {
        "paper"
    }
    fn device(&self) -> &dyn DeviceOps {
        self
    }
    fn alloc_pd(&self) -> Result<PaperPd> {
        Ok(PaperPd { handle: Handle::new(&self.world, Object::default()) })
    }
    unsafe fn reg_mr(
        &self,
        pd: &PaperPd,
        _addr: *mut u8,
        length: usize,
        iova: u64,
        _access: AccessFlags,
    ) -> Result<PaperMr> {
        if let Some(errno) = self.world.state().refuse_reg {
            return Err(self.world.error("reg_mr", errno));
        }
        let object =
            Object { kind: Kind::Mr, uses: vec![pd.handle()], region: (iova, length), ..Object::default() };
        let handle = Handle::new(&self.world, object);
        assert!(!self.world.state().panic_on_register, "reg_mr panics, as asked");
        Ok(PaperMr { handle })
    }
    unsafe fn reg_mr_ex(&self, pd: &PaperPd, attr: &MrInitAttr<'_, Paper>) -> Result<PaperMr> {
        let MrMemory::Addr(_) = attr.memory else { return self.unasked("reg_dmabuf_mr") };
        let uses = [pd.handle()].into_iter().chain(attr.dmah.map(DmahOps::handle)).collect();
        let region = (attr.iova, attr.length);
        let object = Object { kind: Kind::Mr, uses, region, ..Object::default() };
        Ok(PaperMr { handle: Handle::new(&self.world, object) })
    }
    fn alloc_dm(&self, attr: &DmAttr) -> Result<PaperDm> {
        Ok(PaperDm::create(&self.world, attr.length))
    }
    fn reg_dm_mr(
        &self,
        pd: &PaperPd,
        dm: &PaperDm,
        _offset: u64,
        _length: u64,
        _access: AccessFlags,
    ) -> Result<PaperMr> {
        // The region covers no memory of this process.
        let object = Object { kind: Kind::Mr, uses: vec![pd.handle(), dm.handle()], ..Object::default() };
        Ok(PaperMr { handle: Handle::new(&self.world, object) })
    }
    fn alloc_dmah(&self, _attr: &DmahAttr) -> Result<PaperDmah> {
        Ok(PaperDmah::create(&self.world))
    }
    fn alloc_td(&self) -> Result<PaperTd> {
        Ok(PaperTd::create(&self.world))
    }
    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, Paper>) -> Result<PaperPd> {
        let uses = [attr.pd.handle()].into_iter().chain(attr.td.map(PaperTd::number)).collect();
        Ok(PaperPd { handle: Handle::new(&self.world, Object { uses, ..Object::default() }) })
    }
    fn open_xrcd(&self, _file: Option<BorrowedFd<'_>>, _oflags: i32) -> Result<PaperXrcd> {
        Ok(PaperXrcd::create(&self.world))
    }
    fn create_cq(
        &self,
        parent_domain: Option<&PaperPd>,
        attr: &CqInitAttr<'_>,
    ) -> Result<(PaperCq, PaperCqHandle)> {
        let channel =
            attr.channel.map(|fd| self.world.state().channels[&fd.as_raw_fd()].try_clone().unwrap());
        let (uses, user_handle) = (parent_domain.map(PdOps::handle).into_iter().collect(), attr.user_handle);
        let object = Object { kind: Kind::Cq, uses, user_handle, channel, ..Object::default() };
        let cq = PaperCq { handle: Handle::new(&self.world, object), cqe: attr.cqe };
        let name = PaperCqHandle(cq.handle.handle);
        Ok((cq, name))
    }
    fn create_qp(&self, parents: &QpParents<'_, Paper>, attr: &QpInitAttr) -> Result<QpParts<Paper>> {
        if let Some(xrcd) = parents.xrcd {
            return Ok(self.target(xrcd, attr));
        }
        if parents.recv_cq.is_none() {
            return Err(self.world.error("create_qp", Errno::OPNOTSUPP));
        }
        self.create_qp_with(parents, attr, None)
    }
    fn create_qp_ex(
        &self,
        parents: &QpParents<'_, Paper>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, Paper>,
    ) -> Result<QpParts<Paper>> {
        // As the kernel does with an RSS table.
        let receives = attr.cap.max_recv_wr + attr.cap.max_recv_sge > 0;
        let Some((table, hash)) = extras.rss else {
            return self.unasked("create_qp_ex");
        };
        if receives || parents.recv_cq.is_some() || parents.srq.is_some() {
            return Err(self.world.error("create_qp_ex", Errno::INVAL));
        }
        self.world.state().rss = Some(hash.clone());
        self.create_qp_with(parents, attr, Some(table))
    }
    fn alloc_mw(&self, pd: &PaperPd, mw_type: MwType) -> Result<PaperMw> {
        let object = Object { kind: Kind::Mw, uses: vec![pd.handle()], ..Object::default() };
        Ok(PaperMw { handle: Handle::new(&self.world, object), mw_type })
    }
    fn create_srq(&self, parents: &SrqParents<'_, Paper>, attr: &SrqInitAttr) -> Result<SrqParts<Paper>> {
        let SrqInitAttr { max_wr, max_sge, srq_limit, user_handle, .. } = *attr;
        if max_wr > MAX_SRQ_WR {
            let limit = Cause::Limit { name: "max_wr", asked: max_wr.into(), min: 1, max: MAX_SRQ_WR.into() };
            return Err(self.world.error("create_srq", Errno::INVAL).because(limit));
        }
        let xrcd = parents.xrcd.map(XrcdOps::handle);
        let uses = [parents.pd.handle()].into_iter().chain(xrcd).chain(parents.cq.map(|cq| cq.0)).collect();
        let object = Object { kind: Kind::Srq, uses, user_handle, ..Object::default() };
        let handle = Handle::new(&self.world, object);
        let num = xrcd.map(|_| handle.handle);
        let queue = PaperQueue {
            world: Arc::clone(&self.world),
            qp: handle.handle,
            depth: max_wr as usize,
            max_sge,
            max_inline: 0,
            written: Vec::new(),
            tag_ops: (attr.srq_type == SrqType::TM).then_some(attr.tm.max_ops),
        };
        let attr = Mutex::new(SrqAttr { max_wr, max_sge, srq_limit });
        Ok(SrqParts { srq: PaperSrq { handle, attr, num }, queue })
    }
    fn create_ah(&self, pd: &PaperPd, _attr: &AhAttr) -> Result<PaperAh> {
        let object = Object { kind: Kind::Ah, uses: vec![pd.handle()], ..Object::default() };
        Ok(PaperAh { handle: Handle::new(&self.world, object), av: Av::new(0xfeed, &[1, 2, 3]) })
    }
    fn create_wq(&self, parents: &WqParents<'_, Paper>, attr: &WqInitAttr) -> Result<WqParts<Paper>> {
        let (wq, queue) = PaperWq::create(&self.world, parents.pd.handle(), parents.cq.0, attr);
        Ok(WqParts { wq, queue })
    }
    fn create_rwq_ind_table(&self, wqs: &[&PaperWq]) -> Result<PaperTable> {
        Ok(PaperTable::create(&self.world, wqs))
    }
    fn create_flow(&self, qp: &PaperQp, rule: FlowRule<'_, Paper>) -> Result<PaperFlow> {
        Ok(PaperFlow::create(&self.world, qp, rule))
    }
    fn create_flow_action_esp(&self, _attr: &FlowActionEspAttr) -> Result<PaperAction> {
        Ok(PaperAction::create(&self.world))
    }
    fn create_counters(&self) -> Result<PaperCounters> {
        Ok(PaperCounters::create(&self.world))
    }
    fn create_comp_cntr(&self, _cntr_type: CompCntrType) -> Result<PaperCntr> {
        Ok(PaperCntr::create(&self.world))
    }
    fn qp_attach_comp_cntr(&self, qp: &PaperQp, cntr: &PaperCntr, ops: CompCntrAttachOps) -> Result<()> {
        cntr.attach(&self.world, qp, ops)
    }
}
