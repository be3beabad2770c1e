//! Memory in flight: posted by safe code and not yet returned.
//!
//! Safe posting moves memory into its queue's table and gives its address to the device. Only a
//! completion of the same work request moves it out again.
//!
//! | file | content |
//! |---|---|
//! | `table` | the slots of one queue: the poster inserts and pollers remove, without a lock |
//! | `routes` | map the `wr_id` in a completion to its table; no `wr_id` is assigned twice |
//! | `entry` | the content of a slot |
//! | `returned` | [`Returned`]: the memory that a completion returns |
//! | `sync` | the real atomics, or the model checker's |
//!
//! # Why this is sound
//! The claim: while a device may write the bytes of a [`Buf`], no safe code holds that `Buf`; while
//! it may read the bytes of a [`FrozenBuf`] or access the bytes of an [`Exposed`], no safe code can
//! get them as a `Buf`. Numbers in brackets refer to the Safety section of
//! [`Provider`](verbs_core::provider::Provider).
//!
//! 1. *In.* A `Buf` is the only way to its bytes (see [`crate::memory::buffer`]), and posting takes
//!    it by value. It is in the table before the provider is called. The poster takes it out again
//!    only for `accepted: 0` or after a rollback: nothing was queued [1, 19]. If the provider
//!    panics, the memory stays in the table. Inline data is not in flight: plain reads copy it
//!    during the call [2], so exposed memory cannot be posted inline.
//! 2. *Out by completion.* Only polling removes a `wr_id` from the table: while a completion is
//!    lent, or after its copy was handed out, which marks the slot. A provider lends a completion
//!    only when its request has ended [5]. This queue reports to the completion queue that lends
//!    it, which lends only its own completions [7]: the poller's routes lead to the tables of that
//!    completion queue. A [`Wc`](crate::Wc) filled in by the program finds a marked slot or none.
//!    The completion belongs to *this* request: no other request had its `wr_id` in the life of the
//!    completion queue (`routes`), and the provider returns the `wr_id` unchanged [6]. So neither a
//!    second look at the same completion nor a completion left behind by a destroyed queue pair can
//!    name memory posted later. This argument does not need a request to complete only once. Raw
//!    posting, which is unsafe, promises not to use these `wr_id`s, which have the top bit set.
//! 3. *Out behind a completion.* A request that is not signalled is linked to the next signalled
//!    one and leaves the table with it, when both have ended [5].
//! 4. *Out by the end of the queue.* A queue pair returns its memory only after `destroy` returned
//!    `Ok`, or after `modify` to RESET did where the provider says that this ends requests. Its
//!    requests have ended then [9, 14]. After another RESET the memory is kept until the queue pair
//!    is destroyed. After an `Err` the table stays as it was. If the object cannot be destroyed, or
//!    the provider panics, [`KernelHandle`](crate::handle::kernel_handle::KernelHandle) leaks the
//!    table. No poster outlives its queue pair, because the halves keep the queue pair.
//! 5. *Not at all.* `mem::forget` of the queue pair, or of its owner, also leaks its share of the
//!    table, so the table is never dropped [15]. Memory holds its allocation and its registration,
//!    which hold their protection domain, so nothing below the memory is released earlier either.
//! 6. *Only its own bytes.* A scatter/gather element lies inside its memory, with the key of the
//!    memory's registration. The device stays inside the element [3, 10]. The queue pair belongs to
//!    the same protection domain, because on another device the same key could name other memory.
//! 7. *Not through peers.* The registration of a `Buf` has no remote rights, so peers cannot access
//!    it [11]. An RDMA operation names remote memory by a key that its owner exposed ([`Exposed`]).
//!    No references to such memory exist, even if the owner is this process. It becomes a `Buf`
//!    again only after deregistering [12], which needs the last share, so none is in flight. A
//!    request that writes takes a `Buf` or exposed memory; a `FrozenBuf` is only read.
//! 8. *Nor through windows.* A window holds a share of its [`Exposed`] until the binding has ended:
//!    see [`crate::memory::window`].
//! 9. *Through a shared receive queue.* Its table is in the open device's directory, and every
//!    completion queue of the device has a route there. A completion with a `wr_id` of this
//!    directory belongs to the receive with this `wr_id`, for three reasons. The device's queues
//!    lend only completions of requests posted to their own queues or to a shared receive queue of
//!    the same device [7, 24]. Raw posting does not use these `wr_id`s. The directory assigns no
//!    `wr_id` twice in the life of the open device, which outlives its completion queues. The queue
//!    pair that takes the receive may belong to another protection domain, because the device uses
//!    the keys in the shared receive queue's domain [24], where the memory is registered. A receive
//!    taken by a queue pair that was then reset or destroyed has no completion: its memory stays in
//!    the table, which is drained only after the shared receive queue was destroyed [25]. Neither
//!    the end nor the reset of a queue pair takes anything out of this table. The queue pairs that
//!    use the shared receive queue hold shares of it and are destroyed first. XRC targets hold
//!    none; [25] covers the receives they took. A poster that needs a larger table adds one to the
//!    directory. The old table keeps its index until the shared receive queue ends.

mod entry;
mod returned;
mod routes;
mod sync;
mod table;

use core::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};

use verbs_core::room;
use verbs_core::types::{PostError, PostReason, SendFlags, SendOp, Sge};

pub use returned::Returned;
pub(crate) use routes::{Directory, NoPlace, Routes, is_reserved};

use crate::handle::registry::PdId;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::window::Window;
use crate::memory::{Memory, PostMemory};
use entry::{Entry, Held};
use table::{Posts, Table};

/// A queue's share of its tables, held while its queue pair or shared receive queue lives.
///
/// Dropped once the queue is destroyed. The drop releases the remaining memory and removes the
/// tables from the directory.
#[derive(Debug)]
pub(crate) struct InFlight {
    tables: Arc<Tables>,
    directory: Arc<Directory>,
}

/// The tables of a queue: one, or several for a shared receive queue that has grown.
type Tables = Mutex<Vec<Arc<Table<Entry>>>>;

impl InFlight {
    /// Returns the table of a queue for `max_wr` requests, with its poster. The queue reports to
    /// the completion queue of `directory`.
    ///
    /// # Errors
    /// [`NoPlace`] if the completion queue's directory is full.
    pub(crate) fn new(pd: PdId, directory: Arc<Directory>, max_wr: u32) -> Result<(Self, Poster), NoPlace> {
        let (table, posts) = Table::new(max_wr);
        let table = Arc::new(table);
        let next = directory.enter(&table)?;
        let poster = Poster {
            table: Arc::clone(&table),
            directory: Arc::clone(&directory),
            posts,
            grows: None,
            next,
            end: next,
            place_end: routes::place_end(next),
            unsignaled: None,
            pd,
            scratch: Vec::new(),
        };
        Ok((Self { tables: Arc::new(Mutex::new(vec![table])), directory }, poster))
    }

    /// Returns the tables of a shared receive queue for `max_wr` receives on the device of
    /// `directory`, as [`new`](Self::new) does. The queue's poster adds a table once all slots are
    /// taken, because receives taken by queue pairs and unpolled completions can hold more than
    /// `max_wr` slots.
    pub(crate) fn of_srq(
        pd: PdId,
        directory: Arc<Directory>,
        max_wr: u32,
    ) -> Result<(Self, Poster), NoPlace> {
        let (in_flight, mut poster) = Self::new(pd, directory, max_wr)?;
        poster.grows = Some(Arc::clone(&in_flight.tables));
        Ok((in_flight, poster))
    }

    /// Removes and returns all memory. The caller must have confirmed that the queue's requests
    /// have ended.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Memory> {
        let entries: Vec<Entry> = lock(&self.tables).iter().flat_map(|table| table.drain()).collect();
        entries.into_iter().flat_map(|entry| entry.held.into_iter())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.tables).iter().for_each(|table| self.directory.leave(table));
        self.drain().for_each(drop);
    }
}

fn lock(tables: &Tables) -> std::sync::MutexGuard<'_, Vec<Arc<Table<Entry>>>> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The poster's side of a table, which assigns `wr_id`s and inserts memory.
#[derive(Debug)]
pub(crate) struct Poster {
    table: Arc<Table<Entry>>,
    directory: Arc<Directory>,
    posts: Posts,
    /// All tables of a queue that adds a table once its current table is full; `None` for other
    /// queues.
    grows: Option<Arc<Tables>>,
    /// The next `wr_id`, followed by the end of the reserved `wr_id`s.
    next: u64,
    end: u64,
    /// The end of the range of `wr_id`s with the current directory index.
    place_end: u64,
    /// The `wr_id` of the last unsignalled request, if no signalled request was posted after it.
    unsignaled: Option<u64>,
    pd: PdId,
    scratch: Vec<Sge>,
}

/// A function that posts one request, given its `wr_id` and its scatter/gather list.
pub(crate) trait Post: FnOnce(u64, &[Sge]) -> Result<(), PostError> {}

impl<F: FnOnce(u64, &[Sge]) -> Result<(), PostError>> Post for F {}

impl Poster {
    /// Inserts memory into the table under a new `wr_id` and posts a range of the memory.
    ///
    /// # Errors
    /// Returns the reason and, unless only the doorbell failed, the memory.
    #[inline]
    pub(crate) fn post<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
        use_: Use,
        post: impl Post,
    ) -> Result<u64, PostBufError<M>> {
        let sge = match self.element(&memory, range, use_) {
            Ok(sge) => sge,
            Err(reason) => return Err(PostBufError { returned: Some(memory), reason }),
        };
        self.insert(Held::One(memory.into()), use_.is_signaled, |number| post(number, &[sge])).map_err(
            |(held, reason)| {
                let memory = held.and_then(|held| held.into_iter().next());
                PostBufError { returned: memory.and_then(M::from_memory), reason }
            },
        )
    }

    /// Posts any number of pieces of memory under one `wr_id`, as [`post`](Self::post) does.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post), with all pieces.
    pub(crate) fn post_all<M: PostMemory>(
        &mut self,
        pieces: Vec<M>,
        use_: Use,
        post: impl Post,
    ) -> Result<u64, PostBufError<Vec<M>>> {
        let mut list = core::mem::take(&mut self.scratch);
        list.clear();
        for piece in &pieces {
            match self.element(piece, .., use_) {
                Ok(sge) => list.push(sge),
                Err(reason) => return Err(PostBufError { returned: Some(pieces), reason }),
            }
        }
        let held = Held::Many(pieces.into_iter().map(Into::into).collect());
        let posted = self.insert(held, use_.is_signaled, |number| post(number, &list));
        self.scratch = list;
        posted.map_err(|(held, reason)| {
            let returned = held.map(|held| held.into_iter().filter_map(M::from_memory).collect());
            PostBufError { returned, reason }
        })
    }

    /// Inserts a window into the table under a new `wr_id` and posts its signalled request.
    ///
    /// # Errors
    /// Returns the reason and, unless only the doorbell failed, the window.
    pub(crate) fn post_window(
        &mut self,
        window: Window,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<u64, PostBufError<Window>> {
        self.insert(Held::One(window.into()), true, post).map_err(|(held, reason)| {
            let returned = held.and_then(|held| held.into_iter().next()).and_then(Memory::into_window);
            PostBufError { returned, reason }
        })
    }

    /// Returns the id of the queue's protection domain.
    pub(crate) const fn pd(&self) -> PdId {
        self.pd
    }

    /// Removes the requests that [`post`](Self::post) inserted since `unsignaled` was the [last
    /// unsignalled request](Self::last_unsignaled). The caller must have rolled the queue back.
    pub(crate) fn roll_back(&mut self, numbers: &[u64], unsignaled: Option<u64>) -> Vec<Memory> {
        self.unsignaled = unsignaled;
        numbers
            .iter()
            .filter_map(|number| self.table.take(*number))
            .flat_map(|entry| entry.held.into_iter())
            .collect()
    }

    /// Returns the `wr_id` of the last unsignalled request; `None` if a signalled request was
    /// posted after it.
    pub(crate) const fn last_unsignaled(&self) -> Option<u64> {
        self.unsignaled
    }

    /// Discards the unsignalled requests, because the queue pair was reset.
    pub(crate) const fn reset(&mut self) {
        self.unsignaled = None;
    }

    #[inline]
    fn element<M: PostMemory>(
        &self,
        memory: &M,
        range: impl RangeBounds<usize>,
        use_: Use,
    ) -> Result<Sge, PostBufReason> {
        if memory.pd() != self.pd {
            return Err(PostBufReason::Foreign);
        }
        if use_.writes && !memory.is_writable() {
            return Err(PostBufReason::ReadOnly);
        }
        if use_.is_inline && memory.is_exposed() {
            return Err(PostBufReason::InlineExposed);
        }
        memory.sge(range)
    }

    #[inline]
    fn insert(
        &mut self,
        held: Held,
        is_signaled: bool,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<u64, (Option<Held>, PostBufReason)> {
        let before = self.unsignaled;
        let number = match self.put(Entry { held, before }) {
            Ok(number) => number,
            Err((entry, reason)) => return Err((Some(entry.held), reason)),
        };
        self.unsignaled = if is_signaled { None } else { Some(number) };
        match post(number) {
            Ok(()) => Ok(number),
            // The request is in the queue, although the doorbell failed.
            Err(PostError { accepted: 1.., reason }) => Err((None, PostBufReason::Post(reason))),
            Err(PostError { accepted: 0, reason }) => {
                self.unsignaled = before;
                Err((self.table.take(number).map(|entry| entry.held), PostBufReason::Post(reason)))
            }
        }
    }

    /// Inserts an entry under an unused `wr_id` whose slot is free. Skips the `wr_id`s of taken
    /// slots; no slot is taken if requests complete and are reclaimed in posting order.
    ///
    /// # Errors
    /// Returns the entry with the reason: [`PostReason::NoMemory`] if an allocation fails;
    /// [`PostBufReason::Unclaimed`] if all slots are taken and the table cannot grow, or if all
    /// `wr_id`s are used up.
    #[inline]
    fn put(&mut self, entry: Entry) -> Result<u64, (Entry, PostBufReason)> {
        let entry = match self.put_here(entry) {
            Ok(number) => return Ok(number),
            Err((entry, PostBufReason::Unclaimed)) => entry,
            Err(refused) => return Err(refused),
        };
        match self.grow() {
            Ok(()) => self.put_here(entry),
            Err(reason) => Err((entry, reason)),
        }
    }

    /// Continues in a new table with twice as many slots, if the queue's tables may grow. A failure
    /// changes nothing.
    ///
    /// # Errors
    /// Same as [`put`](Self::put).
    #[cold]
    fn grow(&mut self) -> Result<(), PostBufReason> {
        let Some(tables) = &self.grows else { return Err(PostBufReason::Unclaimed) };
        let slots = u32::try_from(self.table.capacity()).map_err(|_| PostBufReason::Unclaimed)?;
        // For the small allocations here and in the directory.
        room::check(room::CALL).map_err(|_| no_memory(room::CALL))?;
        let (table, posts) = Table::new(slots);
        table.allocate().map_err(no_memory)?;
        let table = Arc::new(table);
        let mut tables = lock(tables);
        room::reserve(&mut tables, 1).map_err(|_| no_memory(size_of::<Arc<Table<Entry>>>()))?;
        let first = self.directory.enter(&table).map_err(no_place)?;
        tables.push(Arc::clone(&table));
        (self.table, self.posts) = (table, posts);
        (self.next, self.end, self.place_end) = (first, first, routes::place_end(first));
        Ok(())
    }

    /// Inserts an entry into the current table.
    #[inline]
    fn put_here(&mut self, mut entry: Entry) -> Result<u64, (Entry, PostBufReason)> {
        for _ in 0..self.table.capacity() {
            if self.next == self.end
                && let Err(reason) = self.reserve()
            {
                return Err((entry, reason));
            }
            let number = self.next;
            self.next += 1;
            match self.table.insert(&mut self.posts, number, entry) {
                Ok(()) => return Ok(number),
                Err(refused) => entry = refused,
            }
        }
        Err((entry, PostBufReason::Unclaimed))
    }

    /// Reserves the next block of `wr_id`s. Moves to another directory index once the current index
    /// has no unused `wr_id`s.
    ///
    /// # Errors
    /// Same as [`put`](Self::put).
    #[cold]
    fn reserve(&mut self) -> Result<(), PostBufReason> {
        self.table.allocate().map_err(no_memory)?;
        if self.end == self.place_end {
            let first = self.directory.enter(&self.table).map_err(no_place)?;
            (self.next, self.end, self.place_end) = (first, first, routes::place_end(first));
        }
        self.end += BLOCK;
        self.table.set_reserved(self.end);
        Ok(())
    }
}

/// Returns the reason for a failed allocation of `bytes` bytes.
const fn no_memory(bytes: usize) -> PostBufReason {
    PostBufReason::Post(PostReason::NoMemory { bytes: bytes as u64 })
}

/// Returns the reason for a post that failed because its table got no directory index.
fn no_place(reason: NoPlace) -> PostBufReason {
    match reason {
        NoPlace::Full => PostBufReason::Unclaimed,
        NoPlace::Memory { bytes } => no_memory(bytes),
    }
}

/// The way a request uses its memory and returns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Whether the device writes the request's memory.
    pub(crate) writes: bool,
    /// Whether the request is signalled, so that its memory returns with its own completion.
    pub(crate) is_signaled: bool,
    /// Whether the bytes are copied into the queue when the request is posted.
    pub(crate) is_inline: bool,
}

impl Use {
    /// A receive's use of its memory.
    pub(crate) const RECV: Self = Self { writes: true, is_signaled: true, is_inline: false };

    /// Returns a send's use of its memory.
    #[inline]
    pub(crate) const fn send(op: &SendOp<'_>, flags: SendFlags) -> Self {
        Self {
            writes: reads_back(op),
            is_signaled: flags.contains(SendFlags::SIGNALED),
            is_inline: flags.contains(SendFlags::INLINE),
        }
    }
}

/// Returns whether an operation can carry inline data: it must not write local memory.
pub(crate) const fn takes_inline(op: &SendOp<'_>) -> bool {
    match op {
        SendOp::Xrc { op, .. } => takes_inline(op),
        SendOp::Send
        | SendOp::SendWithImm { .. }
        | SendOp::UdSend { .. }
        | SendOp::UdSendWithImm { .. }
        | SendOp::RdmaWrite { .. }
        | SendOp::RdmaWriteWithImm { .. }
        | SendOp::SendWithInv { .. } => true,
        _ => false,
    }
}

/// Returns whether an operation takes no local memory at all.
pub(crate) const fn takes_no_memory(op: &SendOp<'_>) -> bool {
    matches!(op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
}

/// Returns whether an operation writes its scatter/gather elements.
pub(crate) const fn reads_back(op: &SendOp<'_>) -> bool {
    match op {
        SendOp::Xrc { op, .. } => reads_back(op),
        SendOp::RdmaRead { .. } | SendOp::AtomicCmpAndSwp { .. } | SendOp::AtomicFetchAndAdd { .. } => true,
        _ => false,
    }
}

/// Returns whether an operation touches no local memory except its scatter/gather elements.
pub(crate) const fn is_postable(op: &SendOp<'_>, flags: SendFlags) -> bool {
    takes_inline(op) || reads_back(op) && !flags.contains(SendFlags::INLINE)
}

/// The number of `wr_id`s that a table reserves at a time.
const BLOCK: u64 = 1 << 16;

#[cfg(all(test, not(loom)))]
mod tests {
    use verbs_core::types::WcStatus;

    use super::*;

    fn put(poster: &mut Poster) -> Option<u64> {
        poster.put(Entry { held: Held::Many(Vec::new()), before: None }).ok()
    }

    fn routes_of(directory: Arc<Directory>) -> Routes {
        Routes::new(directory, Arc::new(Directory::of_device()))
    }

    fn setup() -> (Arc<Directory>, InFlight, Poster) {
        let directory = Arc::new(Directory::default());
        let (in_flight, poster) = InFlight::new(PdId::next(), Arc::clone(&directory), 4).unwrap();
        (directory, in_flight, poster)
    }

    /// Advances a poster until only two `wr_id`s of its directory index remain.
    fn use_up(poster: &mut Poster) {
        poster.table.allocate().unwrap();
        (poster.next, poster.end) = (poster.place_end - 2, poster.place_end);
        poster.table.set_reserved(poster.end);
    }

    #[test]
    fn a_poster_whose_place_is_used_up_continues_in_another_one() {
        let (directory, in_flight, mut poster) = setup();
        let (_neighbour, mut second) = InFlight::new(PdId::next(), Arc::clone(&directory), 4).unwrap();
        let neighbours = put(&mut second).unwrap();
        use_up(&mut poster);
        let last = poster.place_end - 1;
        let numbers: Vec<u64> = (0..4).map(|_| put(&mut poster).unwrap()).collect();
        assert_eq!(numbers[..2], [last - 1, last]);
        assert_eq!(numbers[3], numbers[2] + 1);
        assert!(numbers[2] >= routes::place_end(neighbours), "the neighbour has the place in between");
        let mut routes = routes_of(Arc::clone(&directory));
        for number in numbers.iter().chain([&neighbours]) {
            assert!(routes.reclaim(*number, WcStatus::SUCCESS).is_some(), "{number:#x}");
            assert!(routes.reclaim(*number, WcStatus::SUCCESS).is_none(), "{number:#x} twice");
        }
        drop((in_flight, poster));
        // The used-up index stays empty; the other index continues.
        let (_next, mut poster) = InFlight::new(PdId::next(), directory, 4).unwrap();
        let next = put(&mut poster).unwrap();
        assert!(!numbers.contains(&next) && next > numbers[3], "{next:#x}");
        assert_eq!(routes::place_end(next), routes::place_end(numbers[3]));
    }

    #[test]
    fn a_number_is_reserved_before_it_is_given() {
        let (directory, in_flight, mut poster) = setup();
        let first = put(&mut poster).unwrap();
        assert!(poster.table.reserved() > first);
        drop((in_flight, poster));
        let (_next, mut poster) = InFlight::new(PdId::next(), directory, 4).unwrap();
        assert_eq!(put(&mut poster), Some(first + BLOCK), "after the whole block");
    }

    #[test]
    fn a_full_table_refuses_an_entry_and_a_slot_that_is_free_is_found() {
        let (_directory, _in_flight, mut poster) = setup();
        let numbers: Vec<u64> = (0..8).map(|_| put(&mut poster).unwrap()).collect();
        assert_eq!(put(&mut poster), None);
        assert!(poster.table.take(numbers[5]).is_some());
        let again = put(&mut poster).unwrap();
        assert_eq!(again % 8, numbers[5] % 8);
        assert!(!numbers.contains(&again));
    }

    #[test]
    fn a_full_table_of_a_shared_receive_queue_is_followed_by_a_larger_one() {
        let device = Arc::new(Directory::of_device());
        let (in_flight, mut poster) = InFlight::of_srq(PdId::next(), Arc::clone(&device), 4).unwrap();
        let numbers: Vec<u64> = (0..100).map(|_| put(&mut poster).unwrap()).collect();
        let mut routes = Routes::new(Arc::default(), Arc::clone(&device));
        for number in numbers.iter().step_by(2) {
            assert!(routes.reclaim(*number, WcStatus::SUCCESS).is_some(), "{number:#x}");
            assert!(routes.reclaim(*number, WcStatus::SUCCESS).is_none(), "{number:#x} twice");
        }
        let left: usize = lock(&in_flight.tables).iter().map(|table| table.drain().count()).sum();
        assert_eq!(left, 50);
        drop(in_flight);
        assert!(routes.reclaim(numbers[1], WcStatus::SUCCESS).is_none());
        let (_next, mut poster) = InFlight::of_srq(PdId::next(), device, 4).unwrap();
        assert!(!numbers.contains(&put(&mut poster).unwrap()), "no number is assigned twice");
    }

    /// The environment variable set in the child process whose memory is limited.
    const SHORT: &str = "VERBS_TEST_IS_SHORT_OF_MEMORY";

    #[test]
    #[cfg_attr(verbs_portable_copies, ignore = "sanitizers end a process that is short of memory")]
    fn receives_that_fail_for_want_of_memory_take_no_table_and_no_place() {
        const NAME: &str =
            "in_flight::tests::receives_that_fail_for_want_of_memory_take_no_table_and_no_place";
        if std::env::var_os(SHORT).is_some() {
            return post_without_memory();
        }
        // A child process, because the limit must not fail other tests.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env(SHORT, "1");
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{output:?}");
    }

    fn post_without_memory() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let device = Arc::new(Directory::of_device());
        let new = |max_wr| InFlight::of_srq(PdId::next(), Arc::clone(&device), max_wr).unwrap();
        // The slots of one queue are not allocated yet; the other queue's are all taken.
        let ((empty, mut first), (full, mut second)) = (new(1 << 19), new((1 << 19) - 1));
        (0..1 << 19).for_each(|_| assert!(put(&mut second).is_some()));
        let entry = || Entry { held: Held::Many(Vec::new()), before: None };
        let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        setrlimit(Resource::RLIMIT_AS, pages * verbs_core::ring::page_size() as u64 + (16 << 20), hard)
            .unwrap();
        let mut refused: Vec<PostBufReason> = Vec::with_capacity(1010);
        refused.extend((0..1000).map(|_| first.put(entry()).unwrap_err().1));
        // Fewer attempts, because each examines every slot.
        refused.extend((0..10).map(|_| second.put(entry()).unwrap_err().1));
        let of_tables = [&empty, &full].map(|in_flight| lock(&in_flight.tables).len());
        setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
        for reason in refused {
            let PostBufReason::Post(PostReason::NoMemory { bytes }) = reason else { panic!("{reason}") };
            assert!(bytes > 16 << 20, "{bytes}");
        }
        assert_eq!(of_tables, [1, 1]);
        // A third queue gets the next index.
        let (_in_flight, mut third) = new(4);
        assert_eq!(routes::place_end(third.next), routes::place_end(second.next) + (1 << 40));
        assert!(put(&mut third).is_some() && put(&mut second).is_some(), "there is memory again");
        assert!(put(&mut first).is_some());
        assert_eq!([&empty, &full].map(|in_flight| lock(&in_flight.tables).len()), [1, 2]);
    }

    #[test]
    fn after_the_end_of_its_queue_a_table_is_found_by_no_poller() {
        let (directory, in_flight, mut poster) = setup();
        let number = put(&mut poster).unwrap();
        let mut routes = routes_of(directory);
        routes.mark(number);
        drop(in_flight);
        assert!(routes.reclaim(number, WcStatus::SUCCESS).is_none());
        assert!(routes.reclaim_polled(number).is_none());
        assert_eq!(poster.table.drain().count(), 0, "the memory was released");
    }
}
