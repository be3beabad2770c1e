//! The `?` operator from every error of this library into `Error`, `io::Error` and `Box<dyn
//! Error>`, and the text that these errors print.

use std::io;

use crate::common::setup::{buf, setup};
use crate::common::{Kind, World};
use verbs::{
    Cause, Context, Errno, Error, HandleError, PostBufError, PostReason, Provider, SendFlags, SendOp,
    WcError, WcStatus,
};

type Boxed = Box<dyn std::error::Error>;

/// Evaluates an expression with `?` in one function for each error type and returns the errors.
macro_rules! question_mark {
    ($failing:expr) => {{
        let plain = || -> Result<(), Error> {
            $failing?;
            Ok(())
        };
        let io = || -> Result<(), io::Error> {
            $failing?;
            Ok(())
        };
        let boxed = || -> Result<(), Boxed> {
            $failing?;
            Ok(())
        };
        (plain().unwrap_err(), io().unwrap_err(), boxed().unwrap_err())
    }};
}

both! {
    a_handle_error_becomes_every_error_with_its_sentence
    a_post_error_becomes_every_error_with_its_sentence
    a_failed_completion_becomes_every_error_with_its_sentence
}

fn a_handle_error_becomes_every_error_with_its_sentence<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    world.refuse(Kind::Mr, Errno::BUSY);
    let (plain, io, boxed) = question_mark!(pd.alloc_buf(4).unwrap().close());
    let told = plain.to_string();
    assert!(told.starts_with(&format!("dereg_mr on {}", context.device_name())), "{told}");
    assert_eq!((plain.verb, plain.errno), ("dereg_mr", Errno::BUSY));
    assert!(io.kind() == io::ErrorKind::ResourceBusy, "{:?}", io.kind());
    assert_eq!(format!("{boxed:?}"), told, "what main prints");
    let failed: HandleError<_> = pd.alloc_buf(4).unwrap().close().unwrap_err();
    assert_eq!((format!("{failed:?}"), failed.to_string()), (told.clone(), told));
    assert_eq!(failed.handle.len(), 4);
}

fn a_post_error_becomes_every_error_with_its_sentence<P: Provider>(_: &World, context: Context<P>) {
    let mut s = setup(&context);
    for byte in 0..4 {
        s.send_byte(byte, true);
    }
    let memory = || buf(&s.pd, b"x");
    let qp = std::cell::RefCell::new(s.qp);
    let post = |memory| qp.borrow_mut().post_send_buf(SendOp::Send, SendFlags::empty(), memory, ..);
    let (plain, io, boxed) = question_mark!(post(memory()));
    let failed: PostBufError<_> = post(memory()).unwrap_err();
    assert_eq!(failed.to_string(), PostReason::QueueFull.to_string());
    assert_eq!(format!("{failed:?}"), failed.to_string());
    assert_eq!(plain.errno, Errno::NOMEM);
    assert!(plain.to_string().contains(&failed.to_string()), "{plain}");
    assert_eq!(io.to_string(), plain.to_string());
    assert_eq!(format!("{boxed:?}"), failed.to_string());
    let range = |memory| qp.borrow_mut().post_recv_buf(memory, 2..7);
    let (plain, _, _) = question_mark!(range(memory()));
    assert!(plain.to_string().contains("the range 2..7 lies outside the 1 bytes"), "{plain}");
    assert!(matches!(plain.cause, Cause::Other { .. }));
}

fn a_failed_completion_becomes_every_error_with_its_sentence<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let mut s = setup(&context);
    let wr_id = s.send_byte(1, true);
    world.fail(s.qp.qp_num(), WcStatus::RETRY_EXC_ERR);
    s.send_byte(2, true);
    world.complete(s.qp.qp_num(), false, &[2]);
    let failed = s.cq.poll_one().unwrap();
    let (plain, io, boxed) = question_mark!(failed.wc.ok());
    let error: WcError = failed.ok().unwrap_err();
    assert_eq!((error.wr_id, error.status), (wr_id, WcStatus::RETRY_EXC_ERR));
    assert_eq!(error.device, context.device_name());
    let unnamed = WcError { device: "", ..error };
    assert!(plain.to_string().contains(&unnamed.to_string()), "{plain}, {unnamed}");
    assert_eq!((io.to_string(), boxed.to_string()), (plain.to_string(), unnamed.to_string()));
    assert_eq!(world.census().iter().filter(|kind| **kind == Kind::Mr).count(), 1, "its memory was released");
    assert_eq!(s.cq.poll_one().unwrap().ok().unwrap().into_buf().unwrap()[..], [2]);
    s.qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"x").unwrap();
    world.fail(s.qp.qp_num(), WcStatus::RNR_RETRY_EXC_ERR);
    let mut completions = s.cq.poll();
    let lent = completions.next().unwrap();
    assert_eq!(lent.ok().unwrap_err().status, WcStatus::RNR_RETRY_EXC_ERR);
}
