//! Two reliable connections on one device: messages there and back in parked buffers, an RDMA write, a read and an atomic
//! into exposed memory, all verified.
//!
//! `cargo run --example rc_loopback [device] [--static]`; without a name the first device is used.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use verbs::state::{Reset, Rts};
use verbs::{
    AhAttr, Buf, Context, Cq, CqInit, GlobalRoute, InitAttr, Parcel, Pd, Provider, Qp, QpCap, QpInit, QpType,
    RemoteAccess, RtrAttr, RtsAttr, SendFlags, SendOp, WcOpcode,
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

/// The same code for a device whose provider is hidden, and for one whose provider is named.
fn loopback<P: Provider>(context: &Context<P>) -> Result<()> {
    let pd = context.alloc_pd()?;
    let mut cqs = [context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?];
    let (left, right) = (create(&pd, &cqs[0])?, create(&pd, &cqs[1])?);
    let (to_left, to_right) = ((left.qp_num(), left.psn()), (right.qp_num(), right.psn()));
    let mut left = connect(context, left, to_right)?;
    let mut right = connect(context, right, to_left)?;

    let mut ping = pd.alloc_buf(SIZE)?;
    let mut sink = pd.alloc_buf(SIZE)?;
    for round in 0..ROUNDS {
        fill(&mut ping, round);
        right.park_recv(sink, ..).map_err(|error| error.reason)?;
        left.park_send(SendOp::Send, SendFlags::empty(), ping, ..).map_err(|error| error.reason)?;
        ping = wait(&mut left, &mut cqs[0], WcOpcode::SEND)?;
        sink = wait(&mut right, &mut cqs[1], WcOpcode::RECV)?;
        if ping[..] != sink[..] {
            return Err(format!("round {round}: what arrived is not what was sent").into());
        }
        std::mem::swap(&mut left, &mut right);
        cqs.swap(0, 1);
    }

    one_sided(&pd, &mut left, &mut cqs[0], ping)?;
    println!(
        "{}: {ROUNDS} messages of {SIZE} bytes, a write, a read and an atomic verified",
        context.device_name()
    );
    Ok(())
}

fn one_sided<P: Provider>(pd: &Pd<P>, qp: &mut Qp<Rts, P>, cq: &mut Cq<P>, mut local: Buf) -> Result<()> {
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let exposed = pd.expose(pd.alloc_buf(SIZE)?, access).map_err(|(_, error)| error)?;
    let (remote_addr, rkey) = (exposed.addr(), exposed.rkey());

    fill(&mut local, 7);
    let sent = local.to_vec();
    let mut step = |op, local: Buf, len, opcode| -> Result<Buf> {
        qp.park_send(op, SendFlags::empty(), local, ..len).map_err(|error| error.reason)?;
        wait(qp, cq, opcode)
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
    let back = exposed.unexpose().map_err(|(_, error)| error)?;
    if local[..8] != before.to_ne_bytes() || back[..8] != before.wrapping_add(5).to_ne_bytes() {
        return Err("the atomic did not add".into());
    }
    Ok(())
}

fn create<P: Provider>(pd: &Pd<P>, cq: &Cq<P>) -> Result<Qp<Reset, P>> {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    Ok(pd.create_qp(&QpInit { qp_type: QpType::RC, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false })?)
}

/// Connects a queue pair with another of this device: its number, and the first sequence number that it sends.
fn connect<P: Provider>(
    context: &Context<P>,
    qp: Qp<Reset, P>,
    (dest_qp_num, psn): (u32, u32),
) -> Result<Qp<Rts, P>> {
    let source = context.find_gid(PORT)?;
    let grh = GlobalRoute {
        dgid: source.gid,
        sgid_index: source.gid_index,
        hop_limit: 64,
        ..GlobalRoute::default()
    };
    let ah_attr = AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() };
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let init = InitAttr { port_num: PORT, access: access.into(), ..InitAttr::default() };
    let qp = qp.to_init(&init).map_err(|(_, error)| error)?;
    let qp = qp.to_rtr(&RtrAttr::new(ah_attr, dest_qp_num, psn)).map_err(|(_, error)| error)?;
    Ok(qp.to_rts(&RtsAttr::default()).map_err(|(_, error)| error)?)
}

/// Polls until the one request that is under way has ended, and takes its buffer back.
fn wait<P: Provider>(qp: &mut Qp<Rts, P>, cq: &mut Cq<P>, opcode: WcOpcode) -> Result<Buf> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut completions = cq.poll();
        if let Some(completion) = completions.next() {
            if !completion.is_success() {
                return Err(format!("{opcode} ended with: {}", completion.status()).into());
            }
            if completion.opcode() != opcode {
                return Err(format!("{opcode} was expected, not {}", completion.opcode()).into());
            }
            return qp
                .reclaim(&completion)
                .and_then(Parcel::into_buf)
                .ok_or_else(|| "nothing was parked".into());
        }
    }
    Err(format!("{opcode} did not complete within {PATIENCE:?}").into())
}

fn fill(buf: &mut Buf, seed: u32) {
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (seed as usize).wrapping_mul(31).wrapping_add(i * 7) as u8;
    }
}
