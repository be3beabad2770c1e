//! [`Hostile`]: an untrusted kernel for the fuzz target `ucma` (`cm/fuzz`) and its seeds. Its
//! replies are plausible except for a step's [`Anomaly`]; the fuzz target queues its events.
//!
//! The kernel counts the ids that it creates and destroys. Outside the API, it exists only in
//! builds with `--cfg fuzzing`.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_abi::ib_user_verbs::{IbUverbsAhAttr, IbUverbsGlobalRoute, IbUverbsQpAttr};
use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_CREATE_ID, RDMA_USER_CM_CMD_DESTROY_ID,
    RDMA_USER_CM_CMD_GET_EVENT, RDMA_USER_CM_CMD_INIT_QP_ATTR, RDMA_USER_CM_CMD_JOIN_IP_MCAST,
    RDMA_USER_CM_CMD_JOIN_MCAST, RDMA_USER_CM_CMD_LEAVE_MCAST, RDMA_USER_CM_CMD_QUERY,
    RDMA_USER_CM_QUERY_ADDR, RDMA_USER_CM_QUERY_GID, RdmaUcmEventResp, RdmaUcmQueryAddrResp,
    RdmaUcmQueryPathResp,
};
use verbs::{Errno, Gid, Guid, QpAttrMask, QpState};
use zerocopy::{FromBytes, IntoBytes};

use crate::EventChannel;
use crate::backend::{Kernel, Source};
use crate::channel::{Channel, Command, MAX_ABI, MIN_ABI, Ucma};
use crate::types::{Address, EventType, IbAddress, PortSpace};

/// A simulated kernel whose replies cannot be trusted.
#[derive(Clone, Debug)]
pub struct Hostile {
    state: Arc<Mutex<State>>,
    /// The event file, which never becomes readable.
    file: Arc<UnixStream>,
}

/// A fault in one command of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anomaly {
    /// The index of the command within the step.
    pub nth: u8,
    /// The errno that the command returns.
    pub errno: Option<i32>,
    /// The maximum length of the reply, in bytes.
    pub cut: Option<usize>,
    /// The offset and new value of a byte to change in the reply.
    pub patch: Option<(usize, u8)>,
}

/// The cookie of an event.
#[derive(Clone, Copy, Debug)]
pub enum Uid {
    /// The id's cookie, as passed to the kernel.
    Known,
    /// No cookie, as before a request is accepted.
    None,
    /// The cookie of a destroyed id, by its index modulo the number of destroyed ids.
    Stale(usize),
}

#[derive(Debug, Default)]
struct State {
    guid: Guid,
    gid: Gid,
    anomaly: Anomaly,
    /// The number of commands already received in the step.
    count: u8,
    /// The handle of the last object created.
    last: u32,
    /// The handles and cookies of ids and memberships.
    known: Vec<(u32, u64)>,
    events: Vec<RdmaUcmEventResp>,
    given: Vec<u32>,
    destroyed: Vec<u32>,
    /// The cookies of destroyed ids.
    stale: Vec<u64>,
}

impl Hostile {
    /// Creates a kernel with ids on one device, or without a device if the GUID is 0.
    ///
    /// # Panics
    /// If descriptors have run out.
    pub fn new(guid: Guid, gid: Gid) -> Self {
        let (file, _) = UnixStream::pair().expect("descriptors");
        // All kernels share one counter of handles.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let last = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x1_0000);
        let state = State { guid, gid, last, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), file: Arc::new(file) }
    }

    /// Returns a channel of this kernel, with the newest ABI and InfiniBand addresses, or with the
    /// oldest ABI and without InfiniBand addresses.
    ///
    /// # Panics
    /// Never: both ABI versions are known.
    pub fn channel(&self, takes_ib: bool) -> EventChannel {
        let abi = if takes_ib { MAX_ABI } else { MIN_ABI };
        let ucma = Ucma::new(self.clone(), abi).expect("a known ABI");
        ucma.takes_ib.set(takes_ib).expect("it was not asked before");
        let source: Arc<dyn Source> = Arc::new(Kernel(Arc::new(ucma)));
        EventChannel::from_sources(source, Vec::new()).expect("one source takes no descriptor")
    }

    /// Starts a step. `anomaly` applies to one command of the step.
    pub fn step(&self, anomaly: Anomaly) {
        let mut state = self.state();
        (state.anomaly, state.count) = (anomaly, 0);
    }

    /// Queues an event for one of the program's ids and memberships, selected by index modulo their
    /// count. If there are none, the event is for no object. A request carries a new id.
    pub fn queue(&self, which: usize, event: u32, uid: Uid, status: i32) {
        let mut state = self.state();
        let (mut number, cookie) = match state.known.len() {
            0 => (0, 0),
            count => state.known[which % count],
        };
        if event == EventType::CONNECT_REQUEST.0 {
            number = state.draw();
        }
        let uid = match uid {
            Uid::Known => cookie,
            Uid::None => 0,
            Uid::Stale(which) if !state.stale.is_empty() => state.stale[which % state.stale.len()],
            Uid::Stale(_) => u64::MAX,
        };
        let event =
            RdmaUcmEventResp { uid, id: number, event, status: status as u32, ..RdmaUcmEventResp::default() };
        state.events.push(event);
    }

    /// Returns whether each created id was destroyed exactly once.
    pub fn is_settled(&self) -> bool {
        let mut state = self.state();
        state.given.sort_unstable();
        state.destroyed.sort_unstable();
        state.given == state.destroyed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn draw(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Returns a plausible reply.
    ///
    /// # Errors
    /// `EAGAIN` if no event is queued.
    fn reply(&mut self, command: &Command<'_>) -> Result<Vec<u8>, Errno> {
        let option = word(command.body, 12);
        Ok(match command.number {
            RDMA_USER_CM_CMD_CREATE_ID | RDMA_USER_CM_CMD_JOIN_MCAST | RDMA_USER_CM_CMD_JOIN_IP_MCAST => {
                self.draw().to_ne_bytes().to_vec()
            }
            RDMA_USER_CM_CMD_GET_EVENT if self.events.is_empty() => return Err(Errno::AGAIN),
            RDMA_USER_CM_CMD_GET_EVENT => self.events.remove(0).as_bytes().to_vec(),
            RDMA_USER_CM_CMD_QUERY if option == RDMA_USER_CM_QUERY_ADDR => {
                self.addresses(([127, 0, 0, 2], 7471).into()).as_bytes().to_vec()
            }
            RDMA_USER_CM_CMD_QUERY if option == RDMA_USER_CM_QUERY_GID => {
                let address = Address::Ib(IbAddress::new(self.gid, PortSpace::TCP, 7471));
                self.addresses(address).as_bytes().to_vec()
            }
            RDMA_USER_CM_CMD_QUERY => RdmaUcmQueryPathResp { num_paths: 1, reserved: 0 }.as_bytes().to_vec(),
            RDMA_USER_CM_CMD_INIT_QP_ATTR => self.qp_attr(option).as_bytes().to_vec(),
            _ => Vec::new(),
        })
    }

    fn addresses(&self, address: Address) -> RdmaUcmQueryAddrResp {
        let (storage, size) = address.to_storage().unwrap_or_default();
        RdmaUcmQueryAddrResp {
            node_guid: u64::from_ne_bytes(self.guid.0.to_be_bytes()),
            port_num: 1,
            pkey: u16::MAX,
            src_size: size,
            dst_size: size,
            src_addr: storage,
            dst_addr: storage,
            ibdev_index: u32::MAX,
            ..RdmaUcmQueryAddrResp::default()
        }
    }

    /// Returns the attributes for connecting a queue pair to itself.
    fn qp_attr(&self, qp_state: u32) -> IbUverbsQpAttr {
        let mask = match QpState(qp_state as u8) {
            QpState::RTR => {
                QpAttrMask::AV
                    | QpAttrMask::PATH_MTU
                    | QpAttrMask::DEST_QPN
                    | QpAttrMask::RQ_PSN
                    | QpAttrMask::MAX_DEST_RD_ATOMIC
                    | QpAttrMask::MIN_RNR_TIMER
            }
            QpState::RTS => {
                QpAttrMask::SQ_PSN
                    | QpAttrMask::RETRY_CNT
                    | QpAttrMask::RNR_RETRY
                    | QpAttrMask::MAX_QP_RD_ATOMIC
                    | QpAttrMask::TIMEOUT
            }
            _ => QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS,
        };
        let grh = IbUverbsGlobalRoute { dgid: self.gid.0, hop_limit: 64, ..IbUverbsGlobalRoute::default() };
        IbUverbsQpAttr {
            qp_attr_mask: (mask | QpAttrMask::STATE).bits(),
            qp_state,
            path_mtu: 3,
            dest_qp_num: 2,
            ah_attr: IbUverbsAhAttr { grh, is_global: 1, port_num: 1, ..IbUverbsAhAttr::default() },
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..IbUverbsQpAttr::default()
        }
    }

    /// Records the handles and cookies received or destroyed by the program.
    fn learn(&mut self, number: u32, body: &[u8], reply: &[u8]) {
        match number {
            RDMA_USER_CM_CMD_CREATE_ID | RDMA_USER_CM_CMD_JOIN_MCAST | RDMA_USER_CM_CMD_JOIN_IP_MCAST => {
                let id = word(reply, 0);
                // This handle stands for no id.
                if id == u32::MAX {
                    return;
                }
                let is_id = number == RDMA_USER_CM_CMD_CREATE_ID;
                let uid = long(body, if is_id { 0 } else { 8 });
                self.known.push((id, uid));
                if is_id {
                    self.given.push(id);
                }
            }
            RDMA_USER_CM_CMD_GET_EVENT => {
                let Ok(event) = RdmaUcmEventResp::read_from_bytes(reply) else { return };
                if event.event == EventType::CONNECT_REQUEST.0 {
                    self.given.push(event.id);
                    self.known.push((event.id, 0));
                }
            }
            _ => {}
        }
    }
}

impl Channel for Hostile {
    fn write(&self, command: &mut Command<'_>) -> Result<(), Errno> {
        let mut state = self.state();
        let mut anomaly = if state.count == state.anomaly.nth { state.anomaly } else { Anomaly::default() };
        state.count = state.count.saturating_add(1);
        match command.number {
            RDMA_USER_CM_CMD_DESTROY_ID => {
                let id = word(command.body, 8);
                state.destroyed.push(id);
                let State { known, stale, .. } = &mut *state;
                stale.extend(known.extract_if(.., |(number, _)| *number == id).map(|(_, cookie)| cookie));
            }
            RDMA_USER_CM_CMD_LEAVE_MCAST => {
                let id = word(command.body, 8);
                state.known.retain(|(number, _)| *number != id);
            }
            RDMA_USER_CM_CMD_ACCEPT => {
                let (uid, id) = (long(command.body, 0), word(command.body, ACCEPT_ID));
                for known in state.known.iter_mut().filter(|(number, _)| *number == id && uid != 0) {
                    known.1 = uid;
                }
            }
            _ => {}
        }
        if let Some(errno) = anomaly.errno {
            return Err(Errno::from_raw(errno));
        }
        if cfg!(test) && command.number == RDMA_USER_CM_CMD_GET_EVENT {
            // Other tests share the table of cookies: an event with one of their cookies would
            // reach them.
            anomaly.patch = anomaly.patch.filter(|(at, _)| *at >= NAMES);
            anomaly.cut = anomaly.cut.map(|cut| if cut < NAMES { 0 } else { cut });
        }
        let mut reply = state.reply(command)?;
        let (number, body) = (command.number, command.body);
        let Some((_, room)) = &mut command.reply else { return Ok(()) };
        if let Some((at, value)) = anomaly.patch
            && at < room.len()
        {
            reply.resize(reply.len().max(at + 1), 0);
            reply[at] = value;
        }
        let len = reply.len().min(room.len()).min(anomaly.cut.unwrap_or(usize::MAX));
        room[..len].copy_from_slice(&reply[..len]);
        state.learn(number, body, room);
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The length of the cookie and the handle at the start of an event, in bytes.
const NAMES: usize = 12;

/// The offset of the id in the struct of `ACCEPT`.
const ACCEPT_ID: usize = core::mem::offset_of!(uverbs_abi::rdma_user_cm::RdmaUcmAccept, id);

/// Returns the `u32` at an offset; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
