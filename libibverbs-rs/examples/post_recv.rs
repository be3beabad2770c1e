//! Posts receives to a queue pair and to a shared receive queue: `cargo xtask bench` counts the
//! instructions of each call.
//!
//! `cargo run --example post_recv [-- --static]` prints how often each function is called.
//!
//! # Safety
//! The posted buffer outlives the queues, and no peer sends messages to the queues. The measured
//! functions are exported under their own names for callgrind; no other function has these names.
#![allow(unsafe_code)]

use std::any::Any;
use std::hint::black_box;
use std::slice::from_ref;

use verbs::state::Init;
use verbs::{
    AccessFlags, Context, CqInit, Erased, InitAttr, Provider, Qp, QpCap, QpInit, QpType, RecvWr, Srq,
    SrqInit, rxe::Rxe,
};

/// The number of calls to each function.
const CALLS: u32 = 256;

/// A queue pair and a shared receive queue.
type Queues<P> = (Qp<Init, P>, Srq<P>);

/// Defines a measured function, which posts one receive.
macro_rules! measured {
    ($($name:ident($queue:ty);)*) => {$(
        // SAFETY: no other function has this name.
        #[unsafe(no_mangle)]
        #[inline(never)]
        fn $name(queue: &mut $queue, wr: &RecvWr<'_>) {
            // SAFETY: the buffer of the requests outlives the queue.
            black_box(unsafe { queue.post_recv(from_ref(wr)) }).expect("there is room");
        }
    )*};
}

measured! {
    bench_post_recv_static(Qp<Init, Rxe>);
    bench_post_recv_erased(Qp<Init, Erased>);
    bench_post_srq_recv_static(Srq<Rxe>);
    bench_post_srq_recv_erased(Srq<Erased>);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = verbs::devices()?.first()?;
    if std::env::args().any(|arg| arg == "--static") {
        run(&device.open_as::<Rxe>()?)
    } else {
        run(&device.open()?)
    }
}

fn run<P: Provider>(context: &Context<P>) -> Result<(), Box<dyn std::error::Error>> {
    let mut buffer = Box::new([0_u8; 64]);
    let pd = context.alloc_pd()?;
    // SAFETY: the buffer is dropped after the region, the queue pair and the shared receive queue.
    let mr = unsafe { pd.reg_mr(buffer.as_mut_ptr(), buffer.len(), AccessFlags::LOCAL_WRITE) }?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let init = QpInit { cap: QpCap { max_recv_wr: CALLS, ..cap() }, ..QpInit::new(QpType::RC, &cq) };
    let qp = pd.create_qp(&init)?.to_init(&InitAttr::default())?;
    let mut queues: Queues<P> = (qp, pd.create_srq(&SrqInit::new(CALLS))?);
    let sge = [mr.sge(..)];
    for wr_id in 0..u64::from(CALLS) {
        let wr = black_box(RecvWr { wr_id, sge: &sge });
        let queues: &mut dyn Any = &mut queues;
        if let Some((qp, srq)) = queues.downcast_mut::<Queues<Rxe>>() {
            bench_post_recv_static(qp, &wr);
            bench_post_srq_recv_static(srq, &wr);
        } else if let Some((qp, srq)) = queues.downcast_mut::<Queues<Erased>>() {
            bench_post_recv_erased(qp, &wr);
            bench_post_srq_recv_erased(srq, &wr);
        }
    }
    drop(queues);
    println!("{CALLS}");
    Ok(())
}

/// Returns the capacities of the queue pair. The caller must set `max_recv_wr`.
fn cap() -> QpCap {
    QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
}
