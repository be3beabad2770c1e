//! Paper: a provider whose simulated device is a table in this process. Paper enforces the kernel's
//! rules on the order of destruction.
//!
//! The [`World`] is both the kernel and the device: tests inspect live objects, complete requests
//! and make calls fail. It accesses the memory of posted requests through their addresses, but only
//! within registered regions, so memory released too early shows up as a missing region before it
//! can crash the test.
//!
//! # Safety
//! The unsafe code here implements the provider's contract and accesses posted memory as the device
//! does.

#![allow(unsafe_code)]
#![allow(dead_code, unreachable_pub, missing_docs)]

/// Defines objects that consist of a handle.
macro_rules! objects {
    ($($name:ident = $verb:literal { $($field:ident: $type:ty),* };)*) => {$(
        #[derive(Debug)]
        pub struct $name {
            handle: $crate::common::provider::Handle,
            $($field: $type,)*
        }

        impl verbs::provider::Destroy for $name {
            fn destroy(self) -> Result<(), (Self, verbs::Error)> {
                let Self { handle, $($field),* } = self;
                handle.destroy($verb).map_err(|(handle, error)| (Self { handle, $($field),* }, error))
            }

            fn destroy_counting_events(self) -> Result<verbs::provider::EventsRead, (Self, verbs::Error)> {
                let read = self.handle.events_read();
                verbs::provider::Destroy::destroy(self).map(|()| read)
            }
        }
    )*};
}

pub mod domains;
pub mod provider;
pub mod setup;
pub mod steering;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

use verbs::provider::EventsRead;
use verbs::{
    Cause, Device, DeviceInfo, DeviceList, Ece, Errno, Error, HandleError, Mtu, NamedProvider, NodeType,
    PostReason, QpAttr, QpAttrMask, QpState, RateLimit, SendFlags, Source, Wc, WcOpcode, WcStatus,
};
use verbs_core::discovery::{DevNum, DeviceParts, Found};

pub use provider::Paper;

/// The kernel and the device of one test.
#[derive(Debug)]
pub struct World {
    name: String,
    state: Mutex<State>,
    /// Notifies waiting threads that `stall` or `stalled` has changed.
    stalls: Condvar,
}

#[derive(Debug, Default)]
pub struct State {
    next_handle: u32,
    pub contexts: u32,
    pub live: BTreeMap<u32, Object>,
    /// The multicast groups that queue pairs joined: queue pair handle, address, local id.
    pub groups: Vec<(u32, verbs::Gid, u16)>,
    pub requests: Vec<Request>,
    /// The kinds of object whose destruction fails, with the errno.
    pub refuse: HashMap<Kind, Errno>,
    pub refuse_post: Option<(usize, PostReason)>,
    /// The kind of object whose destruction panics; the object stays alive.
    pub panic_on_destroy: Option<Kind>,
    /// The kind of object whose destruction waits for [`World::resume`]; the object stays alive
    /// while its destruction waits.
    pub stall: Option<Kind>,
    /// The number of threads that wait for [`World::resume`].
    pub stalled: usize,
    /// The number of events counted as read, per kind of object.
    pub events_read: HashMap<Kind, EventsRead>,
    /// Whether the device may continue writing after a RESET.
    pub forgets_late: bool,
    /// Whether registering memory panics after the region was made.
    pub panic_on_register: bool,
    /// Whether posting panics, and whether it first puts the request into the table.
    pub panic_on_post: Option<AfterPost>,
    pub refuse_reg: Option<Errno>,
    /// Whether querying a region's remote key panics.
    pub panic_on_key: bool,
    /// Whether rolling back panics.
    pub panic_on_rollback: bool,
    /// Whether the end of a window's binding also ends accesses through it.
    pub ends_access: bool,
    /// The state that queue pairs cannot move to, and the errno.
    pub refuse_move: Option<(QpState, Errno)>,
    /// Whether the provider has the contract's optional operations.
    pub has_extras: bool,
    /// The ECE options set last, followed by the send rate set last.
    pub ece: Ece,
    pub pace: Option<RateLimit>,
    /// The hash of the last queue pair created with an RSS table.
    pub rss: Option<verbs::RxHashConf>,
    /// The number of doorbells rung for send queues.
    pub rings: usize,
    /// The number of RDMA reads a queue pair can have outstanding, and the number it can execute.
    pub reads: (u32, u32),
    /// Sets the extended attributes that are not 0. Without this function the device has none.
    pub extended: Option<fn(&mut verbs::DeviceAttrEx)>,
    /// The MTU of the port; `None` stands for 1024 bytes.
    pub active_mtu: Option<Mtu>,
    /// The destroyed objects, in order.
    pub destroyed: Vec<(Kind, u32)>,
    /// The violations of the API's rules, one message each: an object destroyed while others use it
    /// or the device accesses it, or dropped without being destroyed.
    pub broken: Vec<String>,
    pub moves: Vec<(QpState, QpAttrMask, QpAttr)>,
    pub finishes: usize,
    /// The operations on tag lists that the device has received, as text.
    pub tag_ops: Vec<String>,
    pub gids: Vec<verbs::GidEntry>,
    channels: HashMap<i32, File>,
    asynchronous: Option<(OwnedFd, File)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Pd,
    Mr,
    Ah,
    Cq,
    Qp,
    Wq,
    Table,
    Flow,
    Action,
    Counters,
    CompCntr,
    Srq,
    Mw,
    Dm,
    Dmah,
    Td,
    Xrcd,
}

/// Whether a panicking post has put its request into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPost {
    Queued,
    NotQueued,
}

#[derive(Debug)]
pub struct Object {
    pub kind: Kind,
    /// The handles of the objects used by this object. They cannot be destroyed while this object
    /// exists.
    pub uses: Vec<u32>,
    /// The user handle of the object, if it raises events.
    pub user_handle: u64,
    /// The address and the length of a region, in bytes.
    pub region: (u64, usize),
    pub channel: Option<File>,
    pub armed: bool,
    pub completions: VecDeque<Wc>,
    pub qp_num: u32,
    pub qp_state: QpState,
}

impl Default for Object {
    fn default() -> Self {
        Self {
            kind: Kind::Pd,
            uses: Vec::new(),
            user_handle: 0,
            region: (0, 0),
            channel: None,
            armed: false,
            completions: VecDeque::new(),
            qp_num: 0,
            qp_state: QpState::RESET,
        }
    }
}

/// A posted work request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub qp: u32,
    pub wr_id: u64,
    pub is_recv: bool,
    pub opcode: WcOpcode,
    pub flags: SendFlags,
    /// The address, length and key of each element.
    pub sge: Vec<(u64, u32, u32)>,
    pub inline: Vec<u8>,
}

static WORLDS: Mutex<BTreeMap<String, Arc<World>>> = Mutex::new(BTreeMap::new());

/// Returns a separate world for a test, and the device that opens it.
pub fn world(name: &str) -> (Arc<World>, Device) {
    let world = Arc::new(World { name: name.into(), state: Mutex::default(), stalls: Condvar::new() });
    assert!(
        WORLDS.lock().unwrap().insert(name.into(), Arc::clone(&world)).is_none(),
        "two worlds named {name}"
    );
    let list = DeviceList::from_found(found(vec![info(name)]), &[Paper::DRIVER]);
    (world, list.find(name).unwrap())
}

pub fn found(devices: Vec<DeviceInfo>) -> Found {
    Found { devices, skipped: Vec::new(), source: Source::Netlink, netlink_error: None }
}

/// Returns a device as discovery would report it.
pub fn info(name: &str) -> DeviceInfo {
    info_with(name, |_| {})
}

/// Returns a device as discovery would report it, changed by `change`.
pub fn info_with(name: &str, change: impl FnOnce(&mut DeviceParts)) -> DeviceInfo {
    let mut parts = DeviceParts {
        name: name.into(),
        dev_name: "uverbs0".into(),
        dev: DevNum { major: 231, minor: 192 },
        node_type: NodeType::CA,
        node_guid: verbs::Guid(1),
        index: None,
        driver_id: None,
        abi_version: 1,
        phys_port_cnt: Some(1),
        ibdev_path: format!("/sys/class/infiniband/{name}").into(),
        cdev_path: "/dev/infiniband/uverbs0".into(),
    };
    change(&mut parts);
    // SAFETY: tests open it with the provider of this file, which opens no file.
    unsafe { DeviceInfo::from_parts(parts) }
}

impl World {
    pub fn named(name: &str) -> Option<Arc<Self>> {
        WORLDS.lock().unwrap().get(name).cloned()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::new(verb, &self.name, errno)
    }

    /// Returns the kinds of the live objects.
    pub fn census(&self) -> Vec<Kind> {
        let mut kinds: Vec<_> = self.state().live.values().map(|object| object.kind).collect();
        kinds.sort();
        kinds
    }

    /// Checks that no object is alive or was leaked, and that all objects were destroyed in a valid
    /// order.
    #[track_caller]
    pub fn assert_empty(&self) {
        assert_eq!(self.census(), []);
        let state = self.state();
        assert_eq!(state.broken, Vec::<String>::new());
        assert_eq!(state.contexts, 0, "open contexts");
    }

    pub fn refuse(&self, kind: Kind, errno: Errno) {
        self.state().refuse.insert(kind, errno);
    }

    pub fn allow(&self, kind: Kind) {
        self.state().refuse.remove(&kind);
    }

    /// Waits while destruction of objects of the same kind as `handle` is stalled.
    fn stall(&self, handle: u32) {
        let mut state = self.state();
        let kind = state.live[&handle].kind;
        while state.stall == Some(kind) {
            state.stalled += 1;
            self.stalls.notify_all();
            state = self.stalls.wait(state).unwrap();
            state.stalled -= 1;
        }
    }

    /// Waits until a thread is stalled destroying an object.
    pub fn until_stalled(&self) {
        let state = self.stalls.wait_timeout_while(self.state(), PATIENCE, |state| state.stalled == 0);
        assert!(!state.unwrap().1.timed_out(), "no thread destroys such an object");
    }

    /// Resumes the threads that are stalled destroying an object.
    pub fn resume(&self) {
        self.state().stall = None;
        self.stalls.notify_all();
    }

    fn is_to_panic_on_destroying(&self, handle: u32) -> bool {
        let state = self.state();
        state.panic_on_destroy.is_some_and(|kind| state.live[&handle].kind == kind)
    }

    /// Completes the oldest request of a queue. Checks that a send carries `data`; writes `data`
    /// into the buffers of a receive or an RDMA read.
    pub fn complete(&self, qp_num: u32, is_recv: bool, data: &[u8]) {
        let mut state = self.state();
        let qp = state.qp(qp_num);
        let at = state
            .requests
            .iter()
            .position(|request| request.qp == qp && request.is_recv == is_recv)
            .expect("a request that was posted");
        let request = state.requests.remove(at);
        if is_recv || request.opcode == WcOpcode::RDMA_READ {
            state.scatter(&request, data);
        } else if !request.flags.contains(SendFlags::INLINE) {
            assert_eq!(state.gather(&request), data);
        } else {
            assert_eq!(request.inline, data);
        }
        state.finish(&request, WcStatus::SUCCESS, data.len());
    }

    /// Completes the oldest receive of the only shared receive queue, as taken by this queue pair.
    pub fn complete_shared(&self, qp_num: u32, data: &[u8]) {
        let mut state = self.state();
        let mut request = state.take_shared(qp_num);
        state.scatter(&request, data);
        request.qp = state.qp(qp_num);
        state.finish(&request, WcStatus::SUCCESS, data.len());
    }

    /// Lets a queue pair take the oldest receive of its shared receive queue for an endless
    /// message. The device may write its memory until the queue pair is destroyed.
    pub fn take_shared(&self, qp_num: u32) {
        let mut state = self.state();
        let mut request = state.take_shared(qp_num);
        request.qp = state.qp(qp_num);
        state.requests.push(request);
    }

    /// Completes the oldest send of a queue with an error.
    pub fn fail(&self, qp_num: u32, status: WcStatus) {
        let mut state = self.state();
        let qp = state.qp(qp_num);
        let at = state.requests.iter().position(|request| request.qp == qp && !request.is_recv);
        let request = state.requests.remove(at.expect("a send that was posted"));
        state.finish(&request, status, 0);
    }

    /// Moves a queue pair to the error state and flushes its requests.
    pub fn flush(&self, qp_num: u32) {
        let mut state = self.state();
        let qp = state.qp(qp_num);
        state.live.get_mut(&qp).unwrap().qp_state = QpState::ERR;
        for request in state.take_requests(qp) {
            state.finish(&request, WcStatus::WR_FLUSH_ERR, 0);
        }
    }

    /// Moves a queue pair to SQE, as a failed send does.
    pub fn fail_sends(&self, qp_num: u32) {
        let mut state = self.state();
        let qp = state.qp(qp_num);
        state.live.get_mut(&qp).unwrap().qp_state = QpState::SQE;
    }

    /// Raises an event on the channel of a completion queue, armed or not, with any user handle.
    pub fn raise(&self, channel_fd: impl AsFd, user_handle: u64) {
        use std::os::fd::AsRawFd;
        let fd = channel_fd.as_fd().as_raw_fd();
        self.state().channels.get_mut(&fd).expect("a channel").write_all(&user_handle.to_ne_bytes()).unwrap();
    }

    pub fn raise_async(&self, element: u64, event_type: u32) {
        let mut record = [0; 16];
        record[..8].copy_from_slice(&element.to_ne_bytes());
        record[8..12].copy_from_slice(&event_type.to_ne_bytes());
        self.state().asynchronous.as_mut().expect("an async fd").1.write_all(&record).unwrap();
    }

    /// Writes arbitrary bytes to a channel's event file, which a real kernel never does.
    pub fn raise_bytes(&self, channel_fd: impl AsFd, bytes: &[u8]) {
        use std::os::fd::AsRawFd;
        let fd = channel_fd.as_fd().as_raw_fd();
        self.state().channels.get_mut(&fd).expect("a channel").write_all(bytes).unwrap();
    }

    /// Writes arbitrary bytes to the asynchronous event file.
    pub fn raise_async_bytes(&self, bytes: &[u8]) {
        self.state().asynchronous.as_mut().expect("an async fd").1.write_all(bytes).unwrap();
    }

    /// Closes the kernel's end of the asynchronous event file and of every channel that no
    /// completion queue uses.
    pub fn hang_up(&self) {
        let mut state = self.state();
        state.channels.clear();
        state.asynchronous = None;
    }

    pub fn user_handle(&self, kind: Kind) -> u64 {
        self.state().live.values().find(|object| object.kind == kind).expect("one of them").user_handle
    }
}

impl State {
    pub fn add(&mut self, object: Object) -> u32 {
        self.next_handle += 1;
        self.live.insert(self.next_handle, object);
        self.next_handle
    }

    /// Destroys an object as the kernel would: fails while other objects use it.
    pub fn destroy(&mut self, handle: u32) -> Result<(), Errno> {
        let kind = self.live.get(&handle).expect("destroyed twice").kind;
        if let Some(errno) = self.refuse.get(&kind) {
            return Err(*errno);
        }
        if self.live.values().any(|object| object.uses.contains(&handle)) {
            self.broken.push(format!("{kind:?} destroyed below what uses it"));
            return Err(Errno::BUSY);
        }
        if kind == Kind::Mr && self.requests.iter().any(|request| self.touches(request, handle)) {
            self.broken.push("Mr deregistered while the device uses it".into());
        }
        if [Kind::Qp, Kind::Srq, Kind::Wq].contains(&kind) {
            self.take_requests(handle);
        }
        self.live.remove(&handle);
        self.destroyed.push((kind, handle));
        Ok(())
    }

    fn touches(&self, request: &Request, mr: u32) -> bool {
        !request.flags.contains(SendFlags::INLINE) && request.sge.iter().any(|(.., lkey)| *lkey == mr)
    }

    pub fn take_requests(&mut self, qp: u32) -> Vec<Request> {
        let (taken, rest) =
            std::mem::take(&mut self.requests).into_iter().partition(|request| request.qp == qp);
        self.requests = rest;
        taken
    }

    fn qp(&self, qp_num: u32) -> u32 {
        let is_it = |object: &&Object| object.kind == Kind::Qp && object.qp_num == qp_num;
        let found = self.live.iter().find(|(_, object)| is_it(object));
        *found.expect("a queue pair with this number").0
    }

    /// Removes and returns the oldest receive in the shared receive queue of a queue pair.
    fn take_shared(&mut self, qp_num: u32) -> Request {
        let srq = *self.live[&self.qp(qp_num)].uses.get(3).expect("a shared receive queue");
        let at = self.requests.iter().position(|request| request.qp == srq);
        self.requests.remove(at.expect("a receive that was posted"))
    }

    fn finish(&mut self, request: &Request, status: WcStatus, len: usize) {
        let signalled =
            request.is_recv || request.flags.contains(SendFlags::SIGNALED) || status != WcStatus::SUCCESS;
        if !signalled {
            return;
        }
        let qp = &self.live[&request.qp];
        let cq = qp.uses[if request.is_recv { 2 } else { 1 }];
        let wc = Wc {
            wr_id: request.wr_id,
            status,
            opcode: request.opcode,
            byte_len: len as u32,
            qp_num: qp.qp_num,
            ..Wc::default()
        };
        let cq = self.live.get_mut(&cq).unwrap();
        cq.completions.push_back(wc);
        if std::mem::take(&mut cq.armed) {
            let user_handle = cq.user_handle;
            cq.channel.as_mut().expect("a channel").write_all(&user_handle.to_ne_bytes()).unwrap();
        }
    }

    /// Returns the address and length of each scatter/gather element of a request. Each element
    /// must lie in a registered region.
    fn pieces(&self, request: &Request) -> Vec<(*mut u8, usize)> {
        let inside = |&(addr, len, lkey): &(u64, u32, u32)| {
            let mr =
                self.live.get(&lkey).filter(|object| object.kind == Kind::Mr).expect("a registered region");
            let (base, size) = mr.region;
            assert!(addr >= base && addr + u64::from(len) <= base + size as u64, "outside of its region");
            (std::ptr::with_exposed_provenance_mut(addr as usize), len as usize)
        };
        request.sge.iter().map(inside).collect()
    }

    fn gather(&self, request: &Request) -> Vec<u8> {
        let mut data = Vec::new();
        for (start, len) in self.pieces(request) {
            // SAFETY: a registered region is mapped, and the poster of the request lets the device
            // read it.
            data.extend((0..len).map(|i| unsafe { start.add(i).read_volatile() }));
        }
        data
    }

    fn scatter(&self, request: &Request, mut data: &[u8]) {
        for (start, len) in self.pieces(request) {
            let (now, later) = data.split_at(len.min(data.len()));
            for (i, byte) in now.iter().enumerate() {
                // SAFETY: as above; the poster lets the device write it.
                unsafe { start.add(i).write_volatile(*byte) };
            }
            data = later;
        }
        assert!(data.is_empty(), "more data than room");
    }
}

/// Returns a raw region of 64 static zero bytes.
pub fn static_mr<P: verbs::Provider>(pd: &verbs::Pd<P>) -> verbs::Mr<P> {
    static BYTES: [u8; 64] = [0; 64];
    // SAFETY: static memory stays, and without the right to write it is only read.
    unsafe { pd.reg_mr(BYTES.as_ptr().cast_mut(), BYTES.len(), verbs::AccessFlags::empty()) }.unwrap()
}

/// Returns a raw region of read-only static memory, in the extended form.
pub fn static_mr_ex<P: verbs::Provider>(pd: &verbs::Pd<P>, init: &verbs::MrInit<'_, P>) -> verbs::Mr<P> {
    // SAFETY: tests pass static memory, without the right to write it.
    unsafe { pd.reg_mr_ex(init) }.unwrap()
}

/// Returns the cause of an error; panics on success.
pub fn cause<T, H>(result: Result<T, HandleError<H>>) -> Cause {
    match result {
        Ok(_) => panic!("it went well"),
        Err(failed) => failed.error.cause,
    }
}

/// The timeout of any step, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a possibly blocking closure on a separate thread.
///
/// # Panics
/// Panics if the closure panics or does not return within [`PATIENCE`]. The thread is then left
/// running.
#[track_caller]
pub fn within<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    let thread = thread::spawn(move || send.send(run()));
    match done.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: not within {PATIENCE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("only a panic sends nothing"))
        }
    }
}

/// Runs each test twice: with the erased provider and with the named one.
#[macro_export]
macro_rules! both {
    ($($test:ident)*) => {
        mod erased {
            $(#[test] fn $test() {
                let (world, device) = $crate::common::world(concat!(module_path!(), "::", stringify!($test)));
                super::$test::<verbs::Erased>(&world, device.open().unwrap());
            })*
        }
        mod named {
            $(#[test] fn $test() {
                let (world, device) = $crate::common::world(concat!(module_path!(), "::", stringify!($test)));
                super::$test::<$crate::common::Paper>(&world, device.open_as().unwrap());
            })*
        }
    };
}
