//! Failed commands: what each status becomes in this project's API, and the state after the call.
//!
//! Each call below sends one command, which the model fails with a few statuses in turn. Over all
//! calls, every status occurs. The call returns the status's errno and the handle. It leaves no
//! object behind in the device or the kernel. The same call with the same handle succeeds
//! afterwards.
//!
//! | command | call |
//! |---|---|
//! | `ALLOC_PD`, `CREATE_CQ`, `CREATE_RMP`, `CREATE_QP`, `CREATE_MKEY` | makes an object |
//! | `RST2INIT_QP`, `INIT2RTR_QP`, `RTR2RTS_QP`, `2ERR_QP`, `2RST_QP` | moves a queue pair |
//! | `DESTROY_MKEY`, `DESTROY_RMP`, `DESTROY_CQ`, `DEALLOC_PD` | closes an object |
//!
//! `DESTROY_QP` is not listed: Linux's driver prints the failure and reports success
//! (`destroy_qp_common` in `drivers/infiniband/hw/mlx5/qp.c`), so no library can notice.

// A failed call returns its handle.
#![allow(clippy::result_large_err)]

use core::iter::Cycle;
use core::slice::Iter;

use verbs::{Context, CqInit, Errno, Error, HandleError, MwType, Provider, SendFlags, SendOp, SrqInit};
use verbs_fixtures::control::Control;
use verbs_fixtures::fabric::{
    Arena, Pair, Remote, Shape, create_qp, filled, init_attr, next_completed, rtr_attr, wait_one,
};
use verbs_harness::runner::{CaseResult, fail};

use crate::lifecycle::counts::{Resources, back_to, resources};

/// Command statuses, each with the errno that the driver returns for it.
///
/// # References
/// Linux `drivers/net/ethernet/mellanox/mlx5/core/cmd.c`
pub(super) const STATUSES: &[(u8, i32)] = &[
    (0x1, libc::EIO),
    (0x2, libc::EINVAL),
    (0x3, libc::EINVAL),
    (0x4, libc::EIO),
    (0x5, libc::EINVAL),
    (0x6, libc::EBUSY),
    (0x8, libc::ENOMEM),
    (0x9, libc::EINVAL),
    (0xa, libc::EINVAL),
    (0xf, libc::EAGAIN),
    (0x10, libc::EINVAL),
    (0x30, libc::EINVAL),
    (0x40, libc::EINVAL),
    (0x50, libc::EIO),
    (0x51, libc::EIO),
];

/// The number of times that each call fails.
const FAILURES: u32 = 3;

/// Runs the case with the erased provider or with the named one.
pub(super) fn leave_what_was_there<P: Provider>(context: &Context<P>) -> CaseResult {
    verbs::on_leak(|error| panic!("leaked: {error}"));
    // Newer drivers create an internal queue pair with the first memory region.
    let shape = Shape::default();
    drop(Pair::new(context, &shape)?);
    let pd = context.alloc_pd()?;
    drop(Arena::new(&pd, 4096)?);
    pd.close()?;
    let mut faults =
        Faults { control: Control::open()?, kernel: resources()?, statuses: STATUSES.iter().cycle() };

    let pd = faults.makes("ALLOC_PD", || context.alloc_pd())?;
    let mut cq = faults.makes("CREATE_CQ", || context.create_cq(&CqInit::new(16)))?;
    let srq = faults.makes("CREATE_RMP", || pd.create_srq(&SrqInit::new(8)))?;
    let window = faults.makes("CREATE_MKEY", || pd.alloc_mw(MwType::TYPE_1))?;
    let [a, b] = [(); 2].map(|()| faults.makes("CREATE_QP", || create_qp(&pd, &cq, &shape)));
    let (a, b) = (a?, b?);

    let remotes = [Remote::from_qp(&b), Remote::from_qp(&a)];
    let mut ends = Vec::new();
    for (qp, remote) in [a, b].into_iter().zip(remotes) {
        let rtr = rtr_attr(context, &shape, remote)?;
        let qp = faults.moves("RST2INIT_QP", qp, |qp| qp.to_init(&init_attr()))?;
        let qp = faults.moves("INIT2RTR_QP", qp, |qp| qp.to_rtr(&rtr))?;
        ends.push(faults.moves("RTR2RTS_QP", qp, |qp| qp.to_rts(&shape.rts))?);
    }
    let [a, b] = &mut ends[..] else { return fail("two queue pairs") };
    // The failed calls leave the queue pairs usable.
    b.post_recv_buf(pd.alloc_buf(100)?, ..)?;
    a.post_send_buf(SendOp::Send, SendFlags::empty(), filled(&pd, 1, 100)?, ..)?;
    for _ in 0..2 {
        drop(next_completed(&mut cq)?);
    }
    // Posts a receive, which the move to ERR flushes once.
    b.post_recv_buf(pd.alloc_buf(100)?, ..)?;
    for (qp, flushed) in ends.into_iter().zip([0, 1]) {
        let qp = faults.moves("2ERR_QP", qp, |qp| qp.to_error())?;
        for _ in 0..flushed {
            assert_eq!(wait_one(&mut cq)?.status, verbs::WcStatus::WR_FLUSH_ERR);
        }
        let qp = faults.moves("2RST_QP", qp, |qp| qp.to_reset())?;
        qp.close()?;
    }
    faults.moves("DESTROY_MKEY", window, |window| window.close())?;
    faults.moves("DESTROY_RMP", srq, |srq| srq.close())?;
    faults.moves("DESTROY_CQ", cq, |cq| cq.close())?;
    faults.moves("DEALLOC_PD", pd, |pd| pd.close())?;
    back_to(&faults.kernel)
}

/// Makes commands fail and compares the objects before and after.
struct Faults {
    control: Control,
    /// The objects in the kernel at the start.
    kernel: Resources,
    /// The statuses of the next commands, which fail.
    statuses: Cycle<Iter<'static, (u8, i32)>>,
}

impl Faults {
    /// Makes an object: first the command fails a few times, then it succeeds.
    fn makes<T>(&mut self, opcode: &str, make: impl Fn() -> verbs::Result<T>) -> CaseResult<T> {
        let made = self.moves(opcode, (), |()| make().map_err(|error| HandleError { handle: (), error }))?;
        Ok(made)
    }

    /// Makes a call with a handle: first the command fails a few times, then it succeeds.
    fn moves<T, U>(
        &mut self,
        opcode: &str,
        mut handle: T,
        call: impl Fn(T) -> Result<U, HandleError<T>>,
    ) -> CaseResult<U> {
        let (objects, kernel) = (self.objects()?, resources()?);
        for _ in 0..FAILURES {
            let Some(&(status, errno)) = self.statuses.next() else { break };
            self.control.say(&format!("command opcode={opcode} status={status:#x} syndrome=0xabcd"))?;
            let Err(failed) = call(handle) else {
                return fail(format_args!("{opcode} failed with {status:#x}, and the call succeeded"));
            };
            is_errno(opcode, status, errno, &failed.error)?;
            let now = self.objects()?;
            if now != objects {
                return fail(format_args!(
                    "{opcode} failed with {status:#x}: the device has {now:?}, and had {objects:?}"
                ));
            }
            handle = failed.handle;
        }
        let now = resources()?;
        if now != kernel {
            return fail(format_args!("{opcode} failed: the kernel has {now:?}, and had {kernel:?}"));
        }
        call(handle).map_err(|failed| failed.error.into())
    }

    /// Returns the first function's completion queues, queue pairs and shared receive queues.
    fn objects(&mut self) -> CaseResult<Vec<String>> {
        let mut objects = self.control.say("list")?;
        objects.retain(|line| {
            ["cq", "qp", "srq"].iter().any(|kind| line.starts_with(&format!("{kind} function=0 ")))
        });
        Ok(objects)
    }
}

fn is_errno(opcode: &str, status: u8, errno: i32, error: &Error) -> CaseResult {
    if error.errno == Errno::from_raw(errno) {
        Ok(())
    } else {
        fail(format_args!("{opcode} failed with {status:#x}: {error} instead of errno {errno}"))
    }
}
