//! Sends a mapped file to two peers and receives it into vectors without copying a byte.
//!
//! `zero_copy FILE`; without an argument, the program sends its own executable.
//!
//! # Safety
//! Mapping a file is unsafe because the file must not be written while it is mapped.
#![allow(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::time::Duration;

use memmap2::Mmap;
use verbs::{ConnectAttr, CqInit, QpInit, QpType, SendFlags, SendOp};

fn main() -> Result<(), Box<dyn Error>> {
    let context = verbs::soft::auto()?.open()?;
    let (pd, port) = (context.alloc_pd()?, context.port(1)?);
    let mut cq = context.create_cq(&CqInit::new(16))?;

    let path = std::env::args_os().nth(1).map_or_else(std::env::current_exe, |path| Ok(path.into()))?;
    // SAFETY: the user runs no program that writes the file meanwhile.
    let map = unsafe { Mmap::map(&File::open(path)?) }?;
    let len = map.len().min(1 << 20);
    let file = pd.register_bytes(map)?;

    for peer in 0..2 {
        let sender = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let receiver = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let (here, there) = (sender.endpoint(&port), receiver.endpoint(&port));
        let mut receiver = receiver.connect(&port, &here, &ConnectAttr::default())?;
        let mut sender = sender.connect(&port, &there, &ConnectAttr::default())?;
        receiver.post_recv_buf(pd.register(vec![0_u8; len])?, ..)?;
        sender.post_send_buf(SendOp::Send, SendFlags::empty(), file.clone(), ..len)?;
        for _ in 0..2 {
            let completed = cq.poll_within(Duration::from_secs(5))?.ok()?;
            if completed.opcode.is_recv() {
                let received: Vec<u8> = completed.into_buf()?.into_memory()?;
                assert_eq!(received, file[..len]);
                println!("peer {peer} has the file");
            }
        }
    }
    // The completions returned their shares, so `file` is the last share.
    let _map: Mmap = file.into_memory()?;
    Ok(())
}
