//! Two reliable connections on one device: messages in both directions in posted buffers, and an
//! RDMA write, a read and an atomic into exposed memory, all verified.
//!
//! `cargo run --example rc_loopback [device] [--static]`; without a name, the program uses the
//! first device.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use verbs::state::{Reset, Rts};
use verbs::{
    Buf, ConnectAttr, Context, Cq, CqInit, Endpoint, Pd, Port, Provider, Qp, QpInit, QpType, RemoteAccess,
    SendFlags, SendOp, WcOpcode,
};

const ROUNDS: u32 = 1000;
const SIZE: usize = 4096;
const PORT: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(10);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rc_loopback: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let list = verbs::devices()?;
    let device = match args.iter().find(|arg| !arg.starts_with("--")) {
        Some(name) => list.find(name)?,
        None => list.first()?,
    };
    if args.iter().any(|arg| arg == "--static") {
        loopback(&device.open_as::<verbs::rxe::Rxe>()?)
    } else {
        loopback(&device.open()?)
    }
}

/// Runs the example with the provider hidden or named.
fn loopback<P: Provider>(context: &Context<P>) -> Result<()> {
    let pd = context.alloc_pd()?;
    let mut cqs = [context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?];
    let port = context.port(PORT)?;
    let ((left, to_left), (right, to_right)) = (create(&pd, &cqs[0], &port)?, create(&pd, &cqs[1], &port)?);
    // All rights that the device supports: `RemoteAccess::all()` includes some that most devices
    // reject.
    let access = context.remote_access()?;
    let attr = ConnectAttr { access, ..ConnectAttr::default() };
    let mut left = left.connect(&port, &to_right, &attr)?;
    let mut right = right.connect(&port, &to_left, &attr)?;

    let mut ping = pd.alloc_buf(SIZE)?;
    let mut sink = pd.alloc_buf(SIZE)?;
    for round in 0..ROUNDS {
        fill(&mut ping, round);
        right.post_recv_buf(sink, ..)?;
        left.post_send_buf(SendOp::Send, SendFlags::empty(), ping, ..)?;
        ping = wait(&mut cqs[0], WcOpcode::SEND)?;
        sink = wait(&mut cqs[1], WcOpcode::RECV)?;
        if ping[..] != sink[..] {
            return Err(format!("round {round}: what arrived is not what was sent").into());
        }
        std::mem::swap(&mut left, &mut right);
        cqs.swap(0, 1);
    }

    one_sided(&pd, access, &mut left, &mut cqs[0], ping)?;
    println!(
        "{}: {ROUNDS} messages of {SIZE} bytes, a write, a read and an atomic verified",
        context.device_name()
    );
    Ok(())
}

fn one_sided<P: Provider>(
    pd: &Pd<P>,
    access: RemoteAccess,
    qp: &mut Qp<Rts, P>,
    cq: &mut Cq<P>,
    mut local: Buf,
) -> Result<()> {
    let exposed = pd.expose(pd.alloc_buf(SIZE)?, access)?;
    let (remote_addr, rkey) = (exposed.addr(), exposed.rkey());

    fill(&mut local, 7);
    let sent = local.to_vec();
    let mut step = |op, local: Buf, len, opcode| -> Result<Buf> {
        qp.post_send_buf(op, SendFlags::empty(), local, ..len)?;
        wait(cq, opcode)
    };
    local = step(SendOp::RdmaWrite { remote_addr, rkey }, local, SIZE, WcOpcode::RDMA_WRITE)?;
    let mut there = vec![0; SIZE];
    exposed.read_at(0, &mut there);
    if there != sent {
        return Err("the write did not arrive".into());
    }
    local.fill(0);
    local = step(SendOp::RdmaRead { remote_addr, rkey }, local, SIZE, WcOpcode::RDMA_READ)?;
    if local[..] != sent {
        return Err("the read brought something else".into());
    }
    let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 5 };
    local = step(add, local, 8, WcOpcode::FETCH_ADD)?;
    let before = u64::from_ne_bytes(sent[..8].try_into()?);
    let back = exposed.unexpose()?;
    if local[..8] != before.to_ne_bytes() || back[..8] != before.wrapping_add(5).to_ne_bytes() {
        return Err("the atomic did not add".into());
    }
    Ok(())
}

/// Creates a queue pair and returns it with the endpoint for its peer.
fn create<P: Provider>(pd: &Pd<P>, cq: &Cq<P>, port: &Port) -> Result<(Qp<Reset, P>, Endpoint)> {
    let qp = pd.create_qp(&QpInit::new(QpType::RC, cq))?;
    let endpoint = qp.endpoint(port);
    Ok((qp, endpoint))
}

/// Polls until the one outstanding request has ended and returns its buffer.
fn wait<P: Provider>(cq: &mut Cq<P>, opcode: WcOpcode) -> Result<Buf> {
    let completed = cq.poll_within(PATIENCE)?.ok()?;
    if completed.opcode != opcode {
        return Err(format!("{opcode} was expected, not {}", completed.opcode).into());
    }
    Ok(completed.into_buf()?)
}

fn fill(buf: &mut Buf, seed: u32) {
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (seed as usize).wrapping_mul(31).wrapping_add(i * 7) as u8;
    }
}
