//! Two ends of an rdma-io connection, which compare all data.
//!
//! `rdma-io-program send-recv|credit-ring|read-ring` exchanges messages over one of its transports.
//! `rdma-io-program one-sided` writes to the other end's memory, reads other bytes there and adds
//! to a number there.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rdma_io::async_cm::{AsyncCmId, AsyncCmListener};
use rdma_io::async_cq::AsyncCq;
use rdma_io::async_qp::AsyncQp;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::cm::{CmId, ConnParam};
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::mr::{AccessFlags, RemoteMr};
use rdma_io::pd::ProtectionDomain;
use rdma_io::qp::QpInitAttr;
use rdma_io::read_ring_transport::ReadRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::{Transport, TransportBuilder};
use rdma_io::wr::QpType;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The number of bytes that the other end writes, and the number that it reads.
const MEMORY: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Outcome {
    let listener = AsyncCmListener::bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    match std::env::args().nth(1).as_deref() {
        // A ring holds 64 KiB. The client reads only after it has written a whole message.
        Some("send-recv") => messages(listener, SendRecvConfig::stream(), 256 * 1024).await,
        Some("credit-ring") => messages(listener, CreditRingConfig::datagram(), 16 * 1024).await,
        Some("read-ring") => messages(listener, ReadRingConfig::datagram(), 16 * 1024).await,
        Some("one-sided") => one_sided(listener).await,
        _ => Err("usage: rdma-io-program send-recv|credit-ring|read-ring|one-sided".into()),
    }
}

/// Returns bytes that differ between messages and between positions.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

fn compare(name: &str, got: &[u8], expected: &[u8]) -> Outcome {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        None if got.len() == expected.len() => Ok(()),
        None => Err(format!("{name}: {} bytes instead of {}", got.len(), expected.len()).into()),
        Some(at) => {
            Err(format!("{name}: byte {at} is {:#04x} instead of {:#04x}", got[at], expected[at]).into())
        }
    }
}

/// Sends messages of 1 byte to `largest`. The other end compares each message and returns its
/// complement.
async fn messages<B: TransportBuilder>(listener: AsyncCmListener, builder: B, largest: usize) -> Outcome {
    let address = listener.local_addr().ok_or("the listener has no address")?;
    let lengths: Vec<usize> =
        std::iter::successors(Some(1), |length| (length * 2 <= largest).then_some(length * 2))
            .flat_map(|length| [length, (length * 2 - 1).min(largest)])
            .collect();

    let server = tokio::spawn({
        let (builder, lengths) = (builder.clone(), lengths.clone());
        async move {
            let mut stream = AsyncRdmaStream::new(builder.accept(&listener).await?);
            for (number, &length) in lengths.iter().enumerate() {
                let expected = pattern(number, length);
                let mut at = 0;
                while at < length {
                    let mut piece = vec![0; length - at];
                    let count = stream.read(&mut piece).await?;
                    piece.truncate(count);
                    if count == 0 {
                        return Err("the client closed its end".into());
                    }
                    compare("request", &piece, &expected[at..at + count])?;
                    piece.iter_mut().for_each(|byte| *byte = !*byte);
                    stream.write_all(&piece).await?;
                    at += count;
                }
            }
            // The client closes its end when it has compared the last message.
            match stream.read(&mut [0]).await? {
                0 => Outcome::Ok(()),
                _ => Err("the client sent more than its messages".into()),
            }
        }
    });

    let mut stream = AsyncRdmaStream::new(builder.connect(&address).await?);
    for (number, &length) in lengths.iter().enumerate() {
        let request = pattern(number, length);
        stream.write_all(&request).await?;
        let reply: Vec<u8> = request.iter().map(|byte| !byte).collect();
        let got = read(&mut stream, length).await?;
        compare("reply", &got, &reply)?;
    }
    stream.shutdown().await?;
    server.await??;
    println!("{} messages of 1 to {largest} bytes, and as many replies", lengths.len());
    Ok(())
}

async fn read<T: Transport>(stream: &mut AsyncRdmaStream<T>, length: usize) -> Outcome<Vec<u8>> {
    let mut got = vec![0; length];
    let mut at = 0;
    while at < length {
        match stream.read(&mut got[at..]).await? {
            0 => return Err("the server closed its end".into()),
            count => at += count,
        }
    }
    Ok(got)
}

/// One end of the connection. The fields are destroyed in the order of declaration.
struct End {
    qp: AsyncQp,
    pd: Arc<ProtectionDomain>,
    _id: AsyncCmId,
}

fn queues(id: &CmId) -> Outcome<(AsyncQp, Arc<ProtectionDomain>)> {
    let pd = id.alloc_pd()?;
    let context = id.verbs_context().ok_or("the connection has no device")?;
    let send_cq = AsyncCq::create_tokio(context.clone(), 16)?;
    let recv_cq = AsyncCq::create_tokio(context, 16)?;
    let attributes = QpInitAttr {
        qp_type: QpType::Rc,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        ..Default::default()
    };
    let qp = id.create_qp_with_cq(&pd, &attributes, Some(send_cq.cq()), Some(recv_cq.cq()))?;
    Ok((AsyncQp::new(qp, send_cq, recv_cq), pd))
}

/// Writes `MEMORY` bytes to the server, reads other bytes from it and adds to the counter after
/// those bytes.
async fn one_sided(listener: AsyncCmListener) -> Outcome {
    let address = listener.local_addr().ok_or("the listener has no address")?;
    let server = tokio::spawn(async move {
        let request = listener.get_request().await?;
        let (qp, pd) = queues(&request)?;
        let id = listener.complete_accept(request, &ConnParam::default()).await?;
        serve(End { qp, pd, _id: id }).await
    });

    let id = AsyncCmId::new(rdma_io::cm::PortSpace::Tcp)?;
    id.resolve_addr(None, &address, 2000).await?;
    id.resolve_route(2000).await?;
    let (qp, pd) = queues(id.cm_id())?;
    id.connect(&ConnParam::default()).await?;
    client(End { qp, pd, _id: id }).await?;
    server.await??;
    println!("{MEMORY} bytes written, as many read, and an atomic addition");
    Ok(())
}

/// Sends the client the address and key of the server's memory, which holds bytes to read, bytes to
/// overwrite and a counter. Then waits for the client to finish and compares the whole memory with
/// the expected contents.
async fn serve(end: End) -> Outcome {
    let access = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC;
    let memory = [pattern(1, MEMORY), vec![0; MEMORY], 40_u64.to_ne_bytes().to_vec()].concat();
    let memory = end.pd.reg_mr_owned(memory, access)?;
    let remote = memory.to_remote();
    let place = [&remote.addr.to_ne_bytes()[..], &remote.rkey.to_ne_bytes()[..]].concat();
    let place = end.pd.reg_mr_owned(place, AccessFlags::LOCAL_WRITE)?;
    success(end.qp.send(&place, 0, 12, 1).await?)?;

    let done = end.pd.reg_mr_owned(vec![0; 4], AccessFlags::LOCAL_WRITE)?;
    success(end.qp.recv(&done, 0, 4, 2).await?)?;
    compare("message", done.as_slice(), b"done")?;
    compare("read memory", &memory.as_slice()[..MEMORY], &pattern(1, MEMORY))?;
    compare("written memory", &memory.as_slice()[MEMORY..2 * MEMORY], &pattern(2, MEMORY))?;
    compare("number", &memory.as_slice()[2 * MEMORY..], &42_u64.to_ne_bytes())
}

async fn client(end: End) -> Outcome {
    let place = end.pd.reg_mr_owned(vec![0; 12], AccessFlags::LOCAL_WRITE)?;
    success(end.qp.recv(&place, 0, 12, 1).await?)?;
    let remote = RemoteMr {
        addr: u64::from_ne_bytes(place.as_slice()[..8].try_into()?),
        rkey: u32::from_ne_bytes(place.as_slice()[8..].try_into()?),
        len: (2 * MEMORY + 8) as u32,
    };

    let written = end.pd.reg_mr_owned(pattern(2, MEMORY), AccessFlags::LOCAL_WRITE)?;
    success(end.qp.write_remote(&written, 0, MEMORY, &remote, MEMORY as u64, 2).await?)?;
    let read = end.pd.reg_mr_owned(vec![0; MEMORY], AccessFlags::LOCAL_WRITE)?;
    success(end.qp.read_remote(&read, 0, MEMORY, &remote, 0, 3).await?)?;
    compare("read bytes", read.as_slice(), &pattern(1, MEMORY))?;

    let number = end.pd.reg_mr_owned(vec![0; 8], AccessFlags::LOCAL_WRITE)?;
    success(end.qp.fetch_and_add(&number, 0, &remote, 2 * MEMORY as u64, 2, 4).await?)?;
    compare("number before the addition", number.as_slice(), &40_u64.to_ne_bytes())?;

    let done = end.pd.reg_mr_owned(b"done".to_vec(), AccessFlags::LOCAL_WRITE)?;
    success(end.qp.send(&done, 0, 4, 5).await?)
}

fn success(completion: rdma_io::wc::WorkCompletion) -> Outcome {
    match completion.is_success() {
        true => Ok(()),
        false => Err(format!("request {} ended with {:?}", completion.wr_id(), completion.status()).into()),
    }
}
