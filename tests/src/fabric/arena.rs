//! [`Arena`]: the memory that raw cases name, and posting with it.
//!
//! # Safety
//! The cases post raw, for much of what they show cannot be asked for safely: keys that are wrong,
//! messages that do not fit, batches. What makes it sound is the [`Arena`], the only memory that
//! they name: it is never freed, there is no reference to it, and this process copies in and out of
//! it by volatile accesses. A key that is wrong is of no other memory, because what else is
//! registered in a case's process are [`verbs::Buf`]s, whose keys no case gives to raw posting.

#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;

use verbs::state::{CanPostRecv, CanPostSend, Rts};
use verbs::{
    AccessFlags, Context, Mr, MrChange, MrInit, OpsWr, Pd, PostError, Provider, Qp, RecvWr, ReregError,
    SendFlags, SendOp, SendWr, Sge,
};

use crate::runner::{CaseResult, fail};

/// Registered memory that is never freed and that nothing has a reference to.
#[derive(Debug)]
pub struct Arena<P: Provider> {
    base: NonNull<u8>,
    len: usize,
    mr: Mr<P>,
}

impl<P: Provider> Arena<P> {
    /// Zeroed memory that peers may do anything to.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn new(pd: &Pd<P>, len: usize) -> CaseResult<Self> {
        let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Self::with_access(pd, len, AccessFlags::LOCAL_WRITE | remote)
    }

    /// Zeroed memory, registered with these rights.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn with_access(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        // Of u64, so that atomics find it aligned.
        let base = NonNull::from(Box::leak(vec![0_u64; len.div_ceil(8).max(1)].into_boxed_slice())).cast();
        // SAFETY: the memory is leaked, so it stays; the reference that made it is gone, and from
        // here on it is accessed by volatile reads and writes only.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, len, mr })
    }

    /// Zeroed memory of whole pages, registered with these rights.
    ///
    /// # Errors
    /// Any error of registering the memory.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn of_pages(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        const PAGE: usize = 4096;
        let map = memmap2::MmapMut::map_anon(len.next_multiple_of(PAGE))?;
        // The mapping stays for good.
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
    /// When the range is outside of it.
    pub fn register(
        &self,
        pd: &Pd<P>,
        range: Range<usize>,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> verbs::Result<Mr<P>> {
        let (start, length) = self.part(range);
        let iova = iova.unwrap_or(start.addr() as u64);
        // SAFETY: the memory stays, and is accessed by volatile reads and writes only.
        unsafe { pd.reg_mr_iova(start, length, iova, access) }
    }

    /// The address and the length of a part, for a registration.
    ///
    /// # Panics
    /// When the range is outside of it.
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

    /// Returns the registration, for posting from several threads. Nothing reads the memory.
    pub fn into_mr(self) -> Mr<P> {
        self.mr
    }

    /// Its address, for a peer too.
    pub fn addr(&self) -> u64 {
        self.mr.addr()
    }

    /// Its key for peers.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// Its key for this process.
    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// A part of it.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        self.mr.sge(range)
    }

    /// Tries to deregister it while the kernel refuses that. Returns it with the error.
    ///
    /// # Errors
    /// The kernel did not refuse.
    pub fn dereg_refused(self) -> CaseResult<(Self, verbs::Error)> {
        let Self { base, len, mr } = self;
        match mr.close() {
            Ok(()) => fail("the region was deregistered"),
            Err(verbs::HandleError { handle: mr, error }) => Ok((Self { base, len, mr }, error)),
        }
    }

    /// Copies out.
    ///
    /// # Panics
    /// When the range is outside of it.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len && range.start <= range.end);
        // SAFETY: within the arena, which is initialised; the device may write at the same time,
        // hence volatile.
        range.map(|at| unsafe { self.base.add(at).read_volatile() }).collect()
    }

    /// Copies in.
    ///
    /// # Panics
    /// When the bytes do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the arena, of which there is no reference.
            unsafe { self.base.add(at + i).write_volatile(*byte) };
        }
    }

    /// The 8 bytes at a place as a number.
    ///
    /// # Panics
    /// When the place is outside of it.
    pub fn number(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at..at + 8).try_into().expect("8 bytes"))
    }
}

/// Returns the file of an open device, for another owner in this process.
///
/// # Errors
/// The kernel's.
pub fn export<P: Provider>(context: &Context<P>) -> CaseResult<std::os::fd::OwnedFd> {
    // SAFETY: cases give the file to `import_device` alone, and destroy no object by its handle.
    Ok(unsafe { context.export_device() }?)
}

/// Changes a region of arena memory into another.
///
/// # Errors
/// Any error of the change, with the state of the region.
pub fn rereg<P: Provider>(mr: &mut Mr<P>, change: &MrChange<'_, P>) -> Result<(), ReregError> {
    // SAFETY: the memory of every arena stays, and is accessed by volatile reads and writes only.
    unsafe { mr.rereg(change) }
}

/// Registers arena memory in the extended form.
///
/// # Errors
/// Any error of registering.
pub fn reg_mr_ex<P: Provider>(pd: &Pd<P>, init: &MrInit<'_, P>) -> verbs::Result<Mr<P>> {
    // SAFETY: as in `rereg`; a file that a case passes for a dma-buf is of no memory in use.
    unsafe { pd.reg_mr_ex(init) }
}

/// Posts sends, of arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_send<S: CanPostSend, P: Provider>(
    qp: &mut Qp<S, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: the elements name an arena, or nothing; see the module's paragraph. No case uses
    // numbers with the top bit.
    unsafe { qp.post_send(wrs) }
}

/// Posts receives, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
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
/// The number of accepted requests, and the error of the next one.
pub fn post_srq_recv<P: Provider>(srq: &mut verbs::Srq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_recv(wrs) }
}

/// Posts receives to a work queue, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_wq_recv<P: Provider>(wq: &mut verbs::Wq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { wq.post_recv(wrs) }
}

/// Posts operations on the tag list of a shared receive queue, with arena memory.
///
/// # Errors
/// The number of accepted operations, and the error of the next one.
pub fn post_srq_ops<P: Provider>(srq: &mut verbs::Srq<P>, ops: &mut [OpsWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_srq_ops(ops) }
}

/// Posts sends through a half, of arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_send_half<P: Provider>(
    half: &mut verbs::SendHalf<Rts, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_send(wrs) }
}

/// Posts receives through a half, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_recv_half<P: Provider>(
    half: &mut verbs::RecvHalf<Rts, P>,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_recv(wrs) }
}

/// A signalled send request.
pub fn signalled<'a>(wr_id: u64, op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }
}
