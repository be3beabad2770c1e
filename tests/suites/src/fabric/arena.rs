//! [`Arena`]: memory for raw cases, with functions to post it.
//!
//! # Safety
//! Cases post raw, because many of them need requests that the safe API rules out: wrong keys,
//! messages that do not fit, batches. This is sound because they name only an [`Arena`]: its memory
//! is never freed, no reference to it exists, and this process copies in and out of it by volatile
//! accesses. A wrong key cannot name other memory, because all other memory registered in a case's
//! process is in [`verbs::Buf`]s, whose keys no case passes to raw posting.

#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;

use verbs::state::{CanPostRecv, CanPostSend, Rts};
use verbs::{
    AccessFlags, Context, Mr, MrChange, MrInit, OpsWr, Pd, PostError, Provider, Qp, RecvWr, ReregError,
    SendFlags, SendOp, SendWr, Sge,
};
use verbs_harness::runner::{CaseResult, fail};

/// Registered memory that is never freed and never borrowed.
#[derive(Debug)]
pub struct Arena<P: Provider> {
    base: NonNull<u8>,
    len: usize,
    mr: Mr<P>,
}

impl<P: Provider> Arena<P> {
    /// Allocates zeroed memory with all rights for peers.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn new(pd: &Pd<P>, len: usize) -> CaseResult<Self> {
        let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Self::with_access(pd, len, AccessFlags::LOCAL_WRITE | remote)
    }

    /// Allocates zeroed memory, registered with the given rights.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn with_access(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        // Of u64, to be aligned for atomics.
        let base = NonNull::from(Box::leak(vec![0_u64; len.div_ceil(8).max(1)].into_boxed_slice())).cast();
        // SAFETY: the memory is leaked, so it stays valid. The reference that created it is gone;
        // from here on all accesses are volatile reads and writes.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, len, mr })
    }

    /// Maps zeroed memory of whole pages, registered with the given rights.
    ///
    /// # Errors
    /// Any error of registering the memory.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn of_pages(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        const PAGE: usize = 4096;
        let map = memmap2::MmapMut::map_anon(len.next_multiple_of(PAGE))?;
        // The mapping is never removed.
        let base = NonNull::new(std::mem::ManuallyDrop::new(map).as_mut_ptr()).expect("a mapping");
        // SAFETY: as in `with_access`.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, len, mr })
    }

    /// Registers a part of it once more, at the address `iova` or at its own.
    ///
    /// # Errors
    /// Any error of registering.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn register(
        &self,
        pd: &Pd<P>,
        range: Range<usize>,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> verbs::Result<Mr<P>> {
        let (start, length) = self.part(range);
        let iova = iova.unwrap_or(start.addr() as u64);
        // SAFETY: the memory stays, and all accesses are volatile reads and writes.
        unsafe { pd.reg_mr_iova(start, length, iova, access) }
    }

    /// Returns the address and the length of a part, for a registration.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn part(&self, range: Range<usize>) -> (*mut u8, usize) {
        assert!(range.end <= self.len && range.start <= range.end);
        (self.base.as_ptr().wrapping_add(range.start), range.len())
    }

    /// Deregisters it. The memory stays.
    ///
    /// # Errors
    /// Any error of deregistering.
    pub fn close(self) -> CaseResult {
        Ok(self.mr.close()?)
    }

    /// Returns the registration, for posting from several threads that do not read the memory.
    pub fn into_mr(self) -> Mr<P> {
        self.mr
    }

    /// Returns its address, for this process and for peers.
    pub fn addr(&self) -> u64 {
        self.mr.addr()
    }

    /// Returns its key for peers.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// Returns its key for this process.
    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// Returns a scatter/gather element of a part.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        self.mr.sge(range)
    }

    /// Tries to deregister it, which the kernel must reject. Returns it with the error.
    ///
    /// # Errors
    /// The kernel deregistered it.
    pub fn dereg_refused(self) -> CaseResult<(Self, verbs::Error)> {
        let Self { base, len, mr } = self;
        match mr.close() {
            Ok(()) => fail("the region was deregistered"),
            Err(verbs::HandleError { handle: mr, error }) => Ok((Self { base, len, mr }, error)),
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len && range.start <= range.end);
        // SAFETY: the bytes are within the arena and initialised. The device may write at the same
        // time, hence the volatile read.
        range.map(|at| unsafe { self.base.add(at).read_volatile() }).collect()
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the arena, which is never borrowed.
            unsafe { self.base.add(at + i).write_volatile(*byte) };
        }
    }

    /// Returns the 8 bytes at an offset as a number.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn number(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at..at + 8).try_into().expect("8 bytes"))
    }
}

/// Returns the file of an open device, for a second owner in this process.
///
/// # Errors
/// Any errno the kernel returns.
pub fn export<P: Provider>(context: &Context<P>) -> CaseResult<std::os::fd::OwnedFd> {
    // SAFETY: cases pass the file only to `import_device` and destroy no object by its handle.
    Ok(unsafe { context.export_device() }?)
}

/// Reregisters arena memory.
///
/// # Errors
/// Any error of the change, with the state of the region.
pub fn rereg<P: Provider>(mr: &mut Mr<P>, change: &MrChange<'_, P>) -> Result<(), ReregError> {
    // SAFETY: the memory of every arena stays, and all accesses are volatile reads and writes.
    unsafe { mr.rereg(change) }
}

/// Registers arena memory by the extended verb.
///
/// # Errors
/// Any error of registering.
pub fn reg_mr_ex<P: Provider>(pd: &Pd<P>, init: &MrInit<'_, P>) -> verbs::Result<Mr<P>> {
    // SAFETY: as in `rereg`; a file passed as a dma-buf by a case refers to no memory in use.
    unsafe { pd.reg_mr_ex(init) }
}

/// Posts sends from arena memory.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_send<S: CanPostSend, P: Provider>(
    qp: &mut Qp<S, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: the elements name an arena, or nothing; see the head of the file. No case uses
    // numbers with the top bit.
    unsafe { qp.post_send(wrs) }
}

/// Posts receives, into arena memory.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_recv<S: CanPostRecv, P: Provider>(
    qp: &mut Qp<S, P>,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { qp.post_recv(wrs) }
}

/// Posts receives to a shared receive queue, into arena memory.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_srq_recv<P: Provider>(srq: &mut verbs::Srq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_recv(wrs) }
}

/// Posts receives to a work queue, into arena memory.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_wq_recv<P: Provider>(wq: &mut verbs::Wq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { wq.post_recv(wrs) }
}

/// Posts operations on the tag list of a shared receive queue, with arena memory.
///
/// # Errors
/// The number of accepted operations and the error of the next one.
pub fn post_srq_ops<P: Provider>(srq: &mut verbs::Srq<P>, ops: &mut [OpsWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_srq_ops(ops) }
}

/// Posts sends from arena memory through a half.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_send_half<P: Provider>(
    half: &mut verbs::SendHalf<Rts, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_send(wrs) }
}

/// Posts receives into arena memory through a half.
///
/// # Errors
/// The number of accepted requests and the error of the next one.
pub fn post_recv_half<P: Provider>(
    half: &mut verbs::RecvHalf<Rts, P>,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_recv(wrs) }
}

/// Returns a signalled send request.
pub fn signalled<'a>(wr_id: u64, op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }
}
