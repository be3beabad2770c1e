//! Two ends of an async-rdma connection, which compare all data.
//!
//! `async_rdma_messages server|client ADDRESS:PORT`. The ends also exchange immediate data, because
//! the crate's own test for it expects Soft-RoCE's completion flags. The server replies if the data
//! is correct. It runs until it is killed.

use std::alloc::Layout;
use std::io::{self, Write};

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder};

const LENGTH: usize = 64 * 1024;

/// `IBV_WC_WITH_IMM`, without the flag for a global routing header.
const WITH_IMM: u32 = 2;

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let builder = RdmaBuilder::default().set_imm_flag_in_wc(WITH_IMM)?.set_max_message_length(LENGTH);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "server", address] => server(builder.listen(address).await?).await,
        [_, "client", address] => client(builder.connect(address).await?).await,
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "server|client ADDRESS:PORT")),
    }
}

/// Returns bytes that differ between messages and between positions.
fn pattern(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

fn layout() -> Layout {
    Layout::new::<[u8; LENGTH]>()
}

async fn client(rdma: Rdma) -> io::Result<()> {
    let mut local = rdma.alloc_local_mr(layout())?;
    local.as_mut_slice().write_all(&pattern(1))?;
    rdma.send(&local).await?;
    local.as_mut_slice().write_all(&pattern(2))?;
    rdma.send_with_imm(&local, 1002).await?;

    let mut remote = rdma.request_remote_mr(layout()).await?;
    local.as_mut_slice().write_all(&pattern(3))?;
    rdma.write_with_imm(&local, &mut remote, 1003).await?;
    rdma.send_remote_mr(remote).await?;

    let remote = rdma.receive_remote_mr().await?;
    rdma.read(&mut local, &remote).await?;
    assert!(**local.as_slice() == pattern(4)[..], "read bytes differ");
    let answer = rdma.receive().await?;
    assert!(**answer.as_slice() == pattern(5)[..], "the answer differs");
    println!("five messages of {LENGTH} bytes, two with immediate data");
    Ok(())
}

async fn server(rdma: Rdma) -> io::Result<()> {
    let message = rdma.receive().await?;
    assert!(**message.as_slice() == pattern(1)[..], "the message differs");
    let (message, imm) = rdma.receive_with_imm().await?;
    assert!(**message.as_slice() == pattern(2)[..], "the message with immediate data differs");
    assert_eq!(imm, Some(1002));

    assert_eq!(rdma.receive_write_imm().await?, 1003);
    let written = rdma.receive_local_mr().await?;
    assert!(**written.as_slice() == pattern(3)[..], "written bytes differ");

    let mut local = rdma.alloc_local_mr(layout())?;
    local.as_mut_slice().write_all(&pattern(4))?;
    rdma.send_local_mr(local).await?;
    let mut answer = rdma.alloc_local_mr(layout())?;
    answer.as_mut_slice().write_all(&pattern(5))?;
    rdma.send(&answer).await?;
    std::future::pending().await
}
