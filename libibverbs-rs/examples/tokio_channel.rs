//! Completions in an asynchronous program: tokio waits on the completion channel's descriptor.
//!
//! # Safety
//! [`AsyncFd::register`] needs a descriptor that stays open and unchanged; a [`CompChannel`] keeps
//! its descriptor open.
#![allow(unsafe_code)]

use std::error::Error;

use tokio::io::unix::AsyncFd;
use verbs::{CompChannel, Completed, ConnectAttr, Cq, CqInit, QpInit, QpType, SendFlags, SendOp};

/// Waits for the next completion: arms the channel, polls, and waits only if the queue is empty.
async fn next(channel: &AsyncFd<CompChannel>, cq: &mut Cq) -> Result<Completed, Box<dyn Error>> {
    loop {
        cq.req_notify(false)?;
        if let Some(completed) = cq.poll_one() {
            return Ok(completed.ok()?);
        }
        let mut ready = channel.readable().await?;
        while channel.get_ref().next_event()?.is_some() {}
        ready.clear_ready();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let context = verbs::soft::auto()?.open()?;
    let (pd, port) = (context.alloc_pd()?, context.port(1)?);
    // SAFETY: a channel's descriptor stays the same and open while it lives; `AsyncFd` owns it.
    let channel = unsafe { AsyncFd::register(context.create_comp_channel()?) }?;
    let mut cq = context.create_cq(&CqInit { channel: Some(channel.get_ref()), ..CqInit::new(16) })?;
    let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
    let own = qp.endpoint(&port);
    let mut qp = qp.connect(&port, &own, &ConnectAttr::default())?;

    let mut out = pd.alloc_buf(64)?;
    out[..5].copy_from_slice(b"hello");
    qp.post_recv_buf(pd.alloc_buf(64)?, ..)?;
    let sending = tokio::spawn(async move {
        qp.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..5)?;
        Ok::<_, verbs::Error>(qp)
    });
    loop {
        let completed = next(&channel, &mut cq).await?;
        if completed.opcode.is_recv() {
            let len = completed.received();
            let buf = completed.into_buf()?;
            println!("received {}", String::from_utf8_lossy(&buf[..len]));
            break;
        }
    }
    sending.await??.close()?;
    Ok(())
}
