//! The steps of two peers, one after the other, each once in both directions.
//!
//! A step is a function run by both sides at the same time, in their [`Role`]s. Both sides run the
//! same code with the same numbers, which need not be exchanged. The [`Link`](super::link::Link)
//! only synchronises them, so that a receive is posted before its message, and memory is checked
//! after it was written.

use std::time::{Duration, Instant};

use verbs::{
    Buf, Exposed, Gid, Mtu, Provider, QpType, RemoteAccess, RemoteMr, RtsAttr, SendFlags, SendOp, WcFlags,
    WcOpcode, WcStatus,
};
use verbs_harness::pattern::{check, fill, filled, seed_of};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::session::{DEPTH, End, INLINE, QKEY, Role, Session, Shape, buf_of};
use super::traffic::{self, Limits};

/// A step of both sides.
pub struct Step<P: Provider> {
    /// `service_what`.
    pub name: &'static str,
    /// Whether the step is the same at every MTU, so that it need not be repeated.
    pub any_mtu: bool,
    /// The function run by both sides.
    pub run: fn(&mut Session<P>, Role, &Plan) -> CaseResult,
}

/// The size of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The longest message, in bytes.
    pub max_size: usize,
    /// The shortest message of the steps that try all lengths, in bytes.
    pub min_size: usize,
    /// The number of operations of [`traffic`] in each direction.
    pub operations: u64,
    /// See [`Limits::fence`].
    pub fence: bool,
    /// See [`Limits::empty`].
    pub empty: bool,
}

/// Returns all steps.
pub fn all<P: Provider>() -> Vec<Step<P>> {
    macro_rules! steps {
        ($($function:ident: $any_mtu:literal),* $(,)?) => {
            vec![$(Step { name: stringify!($function), any_mtu: $any_mtu, run: $function::<P> }),*]
        };
    }
    steps!(
        rc_messages: false,
        rc_pieces: false,
        rc_traffic: false,
        uc_messages: false,
        ud_messages: true,
        rc_inline: true,
        rc_atomics: true,
        rc_refused: true,
        rc_not_ready: true,
        rc_not_there: true,
    )
}

/// The number of bytes before and after written memory, which must stay unchanged.
const GUARD: usize = 24;
const GUARD_SEED: u64 = 0x6775_6172;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
}

impl Kind {
    const RC: &[Self] = &[Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read];
    const UC: &[Self] = &[Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    fn op(self, remote_addr: u64, rkey: u32, imm_data: u32) -> SendOp<'static> {
        match self {
            Self::Send => SendOp::Send,
            Self::SendImm => SendOp::SendWithImm { imm_data },
            Self::Write => SendOp::RdmaWrite { remote_addr, rkey },
            Self::WriteImm => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
            Self::Read => SendOp::RdmaRead { remote_addr, rkey },
        }
    }

    /// Returns the opcode of the requester's completion.
    fn opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm => WcOpcode::SEND,
            Self::Write | Self::WriteImm => WcOpcode::RDMA_WRITE,
            Self::Read => WcOpcode::RDMA_READ,
        }
    }

    /// Returns the opcode of the responder's completion, if there is one.
    fn recv_opcode(self) -> Option<WcOpcode> {
        match self {
            Self::Send | Self::SendImm => Some(WcOpcode::RECV),
            Self::WriteImm => Some(WcOpcode::RECV_RDMA_WITH_IMM),
            Self::Write | Self::Read => None,
        }
    }

    fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Returns whether it writes to exposed memory.
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }
}

/// Returns lengths with different handling: empty, one packet, the borders of packets, many
/// packets.
fn sizes(mtu: Mtu, min: usize, max: usize) -> Vec<usize> {
    let mtu = mtu.bytes().unwrap_or(256) as usize;
    let mut sizes = vec![
        0,
        1,
        3,
        8,
        mtu - 1,
        mtu,
        mtu + 1,
        2 * mtu - 1,
        2 * mtu,
        2 * mtu + 1,
        5 * mtu + 2,
        65536,
        1 << 20,
    ];
    sizes.retain(|size| (min..=max).contains(size));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn rc_messages<P: Provider>(session: &mut Session<P>, role: Role, plan: &Plan) -> CaseResult {
    messages(session, role, QpType::RC, Kind::RC, plan.min_size, plan.max_size)
}

/// Limits the length, because an unreliable connection has no flow control: a whole burst must fit
/// into the receiver's socket.
fn uc_messages<P: Provider>(session: &mut Session<P>, role: Role, plan: &Plan) -> CaseResult {
    messages(session, role, QpType::UC, Kind::UC, plan.min_size, plan.max_size.min(16 << 10))
}

fn messages<P: Provider>(
    session: &mut Session<P>,
    role: Role,
    qp_type: QpType,
    kinds: &[Kind],
    min: usize,
    max: usize,
) -> CaseResult {
    let mut end = session.connect(&Shape::of(qp_type))?;
    let sizes = sizes(session.mtu, min, max);
    let room = max + 2 * GUARD;
    let mut idle = Some(session.buf(GUARD_SEED, room)?);
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let mut memory = Memory::new(session, role, room, access)?;
    for (i, &size) in sizes.iter().enumerate() {
        for &kind in kinds {
            if kind == Kind::Read && !session.requester_reads(role) {
                continue;
            }
            let seed = seed_of(&[i as u64, kind as u64]);
            let imm_data = seed as u32;
            let what = |stop: Stop| stop.of(format_args!("{qp_type} {kind:?} of {size} bytes"));
            let at = GUARD..GUARD + size;
            let Some(mut buf) = idle.take() else { return fail("the buffer is gone") };
            match &mut memory {
                Memory::Own(own) => {
                    if kind.recv_opcode().is_some() {
                        fill(GUARD_SEED, &mut buf);
                        let len = if kind == Kind::WriteImm { 0 } else { size };
                        end.qp.post_recv_buf(buf, GUARD..GUARD + len)?;
                    } else {
                        idle = Some(buf);
                    }
                    let (around, inside) =
                        if kind == Kind::Read { (0, seed) } else { (GUARD_SEED, GUARD_SEED) };
                    let mut bytes = filled(around, size + 2 * GUARD);
                    fill(inside, &mut bytes[at.clone()]);
                    if kind.writes() || kind == Kind::Read {
                        own.write_at(0, &bytes);
                    }
                    session.link.meet("ready")?;
                    session.link.meet("done")?;
                    if let Some(opcode) = kind.recv_opcode() {
                        let ended = end.wait_for(opcode).map_err(what)?;
                        let wc = ended.wc;
                        if wc.byte_len as usize != size {
                            return fail(format_args!("byte_len is {}", wc.byte_len)).map_err(what);
                        }
                        let has_imm = wc.wc_flags.contains(WcFlags::WITH_IMM);
                        if has_imm != kind.has_imm() || has_imm && wc.imm_data != imm_data {
                            return fail(format_args!("{imm_data:#x} is not what {wc:?} has")).map_err(what);
                        }
                        let received = idle.insert(buf_of(ended)?);
                        if kind != Kind::WriteImm {
                            guarded(seed, &received[..size + 2 * GUARD]).map_err(what)?;
                        }
                    }
                    if kind.writes() {
                        arrived(own, seed, size, qp_type).map_err(what)?;
                    }
                }
                Memory::Peers(peers) => {
                    if kind == Kind::Read {
                        fill(GUARD_SEED, &mut buf);
                    } else {
                        fill(seed, &mut buf[at.clone()]);
                    }
                    let op = kind.op(peers.addr + GUARD as u64, peers.rkey, imm_data);
                    session.link.meet("ready")?;
                    end.qp.post_send_buf(op, SendFlags::empty(), buf, at)?;
                    let buf = buf_of(end.wait_for(kind.opcode()).map_err(what)?)?;
                    session.link.meet("done")?;
                    let buf = idle.insert(buf);
                    if kind == Kind::Read {
                        guarded(seed, &buf[..size + 2 * GUARD]).map_err(what)?;
                    }
                }
            }
        }
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// The responder's memory, accessed by the requester.
enum Memory {
    Own(Exposed),
    Peers(RemoteMr),
}

impl Memory {
    fn new<P: Provider>(
        session: &mut Session<P>,
        role: Role,
        len: usize,
        access: RemoteAccess,
    ) -> CaseResult<Self> {
        match role {
            Role::Requester => session.told_of_memory().map(Self::Peers),
            Role::Responder => {
                let buf = session.buf(GUARD_SEED, len)?;
                session.expose(buf, access).map(Self::Own)
            }
        }
    }
}

/// Checks that memory holds the bytes of a seed, with the guards on both sides unchanged.
fn guarded(seed: u64, bytes: &[u8]) -> CaseResult {
    let end = bytes.len() - GUARD;
    check(seed, &bytes[GUARD..end]).map_err(Stop::Failed)?;
    let guard = filled(GUARD_SEED, bytes.len());
    if bytes[..GUARD] != guard[..GUARD] || bytes[end..] != guard[end..] {
        return fail("bytes around it were written");
    }
    Ok(())
}

/// Waits for a write without a completion at the receiver. The sender's completion proves the
/// arrival only on a reliable connection.
fn arrived(memory: &Exposed, seed: u64, size: usize, qp_type: QpType) -> CaseResult {
    let patience = if qp_type == QpType::RC { Duration::ZERO } else { Duration::from_secs(10) };
    let deadline = Instant::now() + patience;
    let mut bytes = vec![0; size + 2 * GUARD];
    loop {
        memory.read_at(0, &mut bytes);
        let seen = guarded(seed, &bytes);
        if seen.is_ok() || Instant::now() >= deadline {
            return seen;
        }
        std::thread::yield_now();
    }
}

/// Sends messages from and into several pieces.
fn rc_pieces<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    let mut end = session.connect(&Shape::of(QpType::RC))?;
    let mtu = session.mtu.bytes().unwrap_or(256) as usize;
    let (from, into) = ([1, mtu - 1, mtu + 7], [mtu + 1, 3, 2, mtu + 1]);
    let total: usize = from.iter().sum();
    assert_eq!(total, into.iter().sum::<usize>());
    let whole = filled(9, total);
    let pieces = |session: &Session<P>, lengths: &[usize], bytes: &[u8]| -> CaseResult<Vec<Buf>> {
        let mut at = 0;
        let mut bufs = Vec::new();
        for len in lengths {
            let mut buf = session.buf(0, *len)?;
            buf.copy_from_slice(&bytes[at..at + len]);
            at += len;
            bufs.push(buf);
        }
        Ok(bufs)
    };
    let joined = |bufs: Vec<Buf>| bufs.iter().flat_map(|buf| buf.to_vec()).collect::<Vec<u8>>();
    match Memory::new(session, role, total, RemoteAccess::READ | RemoteAccess::WRITE)? {
        Memory::Own(own) => {
            end.qp.post_recv_bufs(pieces(session, &into, &vec![0; total])?)?;
            session.link.meet("send")?;
            session.link.meet("sent")?;
            let returned = end.wait_for(WcOpcode::RECV)?.returned;
            check(9, &joined(returned.map(verbs::Returned::into_bufs).unwrap_or_default()))
                .map_err(Stop::Failed)?;
            session.link.meet("written")?;
            let mut bytes = vec![0; total];
            own.read_at(0, &mut bytes);
            check(9, &bytes).map_err(Stop::Failed)?;
            own.write_at(0, &filled(10, total));
            session.link.meet("changed")?;
            // The memory stays exposed until it was read.
            session.link.meet("read")?;
        }
        Memory::Peers(RemoteMr { addr: remote_addr, rkey, .. }) => {
            session.link.meet("send")?;
            end.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), pieces(session, &from, &whole)?)?;
            end.wait_for(WcOpcode::SEND)?;
            session.link.meet("sent")?;
            let write = SendOp::RdmaWrite { remote_addr, rkey };
            end.qp.post_send_bufs(write, SendFlags::empty(), pieces(session, &from, &whole)?)?;
            end.wait_for(WcOpcode::RDMA_WRITE)?;
            session.link.meet("written")?;
            session.link.meet("changed")?;
            let read = SendOp::RdmaRead { remote_addr, rkey };
            end.qp.post_send_bufs(read, SendFlags::empty(), pieces(session, &into, &vec![0; total])?)?;
            let returned = end.wait_for(WcOpcode::RDMA_READ)?.returned;
            check(10, &joined(returned.map(verbs::Returned::into_bufs).unwrap_or_default()))
                .map_err(Stop::Failed)?;
            session.link.meet("read")?;
        }
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// Runs all operations at random, in both directions at the same time.
fn rc_traffic<P: Provider>(session: &mut Session<P>, role: Role, plan: &Plan) -> CaseResult {
    let mtu = session.mtu.bytes().unwrap_or(256) as usize;
    let Plan { operations, fence, empty, max_size, .. } = *plan;
    let limits = Limits { operations, max_size: max_size.min(9 * mtu), depth: 16, fence, empty };
    traffic::between_peers(session, role, &limits)
}

/// Sends datagrams and checks the header before them and the effect of a wrong key.
fn ud_messages<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    let mut end = session.connect(&Shape::of(QpType::UD))?;
    let max = session.max_mtu.bytes().unwrap_or(256) as usize;
    for (i, size) in [1, 2, 3, 4, 100, max - 1, max].into_iter().enumerate() {
        for with_imm in [false, true] {
            let seed = seed_of(&[i as u64, with_imm.into()]);
            let imm_data = seed as u32;
            let what = |stop: Stop| stop.of(format_args!("a datagram of {size} bytes, immediate {with_imm}"));
            match role {
                Role::Responder => {
                    let buf = session.buf(GUARD_SEED, GRH + max + GUARD)?;
                    end.qp.post_recv_buf(buf, ..GRH + max)?;
                    session.link.meet("ready")?;
                    let ended = end.wait_for(WcOpcode::RECV).map_err(what)?;
                    let wc = ended.wc;
                    let flags = WcFlags::GRH | if with_imm { WcFlags::WITH_IMM } else { WcFlags::empty() };
                    let seen = (wc.byte_len as usize, wc.src_qp, wc.wc_flags);
                    if seen != (GRH + size, end.peer_qpn, flags) || with_imm && wc.imm_data != imm_data {
                        return fail(format_args!("not what was sent: {wc:?}")).map_err(what);
                    }
                    let buf = buf_of(ended)?;
                    route(&buf[..GRH], &session.peer_gid, &session.gid.gid).map_err(what)?;
                    check(seed, &buf[GRH..GRH + size]).map_err(Stop::Failed).map_err(what)?;
                }
                Role::Requester => {
                    let ah = session.pd.create_ah(&session.path())?;
                    session.link.meet("ready")?;
                    // The first datagram has a wrong key and must not arrive; otherwise it would
                    // arrive first.
                    for qkey in [QKEY ^ 1, QKEY] {
                        let to = ah.to(end.peer_qpn, qkey);
                        let op = if with_imm {
                            SendOp::UdSendWithImm { to, imm_data }
                        } else {
                            SendOp::UdSend { to }
                        };
                        let seed = if qkey == QKEY { seed } else { !seed };
                        end.qp.post_send_buf(op, SendFlags::empty(), session.buf(seed, size)?, ..)?;
                        end.wait_for(WcOpcode::SEND).map_err(what)?;
                    }
                }
            }
            session.link.meet("done")?;
        }
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// The size of the routing header before a datagram, in bytes.
const GRH: usize = 40;

/// Checks the source and the destination in the header. An IPv4 header is in its last 20 bytes.
fn route(grh: &[u8], from: &Gid, to: &Gid) -> CaseResult {
    let is_right = match (from.to_ipv4(), to.to_ipv4()) {
        (Some(from), Some(to)) => {
            grh[20] == 0x45 && grh[32..36] == from.octets() && grh[36..40] == to.octets()
        }
        _ => grh[0] >> 4 == 6 && grh[8..24] == from.0 && grh[24..40] == to.0,
    };
    if is_right {
        Ok(())
    } else {
        fail(format_args!("the routing header does not say {from} to {to}: {grh:02x?}"))
    }
}

/// Checks that inline data is copied into the request, so the caller may reuse the memory at once.
fn rc_inline<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    let mut end = session.connect(&Shape::of(QpType::RC))?;
    let room = INLINE as usize + 2 * GUARD;
    let mut memory = Memory::new(session, role, room, RemoteAccess::WRITE)?;
    for (i, size) in [0, 1, 7, 63, INLINE as usize].into_iter().enumerate() {
        for kind in [Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm] {
            let seed = seed_of(&[i as u64, kind as u64]);
            let what = |stop: Stop| stop.of(format_args!("inline {kind:?} of {size} bytes"));
            match &mut memory {
                Memory::Own(own) => {
                    own.write_at(0, &filled(GUARD_SEED, size + 2 * GUARD));
                    if kind.recv_opcode().is_some() {
                        end.qp.post_recv_buf(session.buf(GUARD_SEED, room)?, GUARD..GUARD + size)?;
                    }
                    session.link.meet("ready")?;
                    session.link.meet("done")?;
                    if let Some(opcode) = kind.recv_opcode() {
                        let ended = end.wait_for(opcode).map_err(what)?;
                        let byte_len = ended.wc.byte_len as usize;
                        if byte_len != size {
                            return fail(format_args!("byte_len is {byte_len}")).map_err(what);
                        }
                        if kind != Kind::WriteImm {
                            guarded(seed, &buf_of(ended)?[..size + 2 * GUARD]).map_err(what)?;
                        }
                    }
                    if kind.writes() {
                        arrived(own, seed, size, QpType::RC).map_err(what)?;
                    }
                }
                Memory::Peers(peers) => {
                    let mut bytes = filled(seed, size);
                    let op = kind.op(peers.addr + GUARD as u64, peers.rkey, 1);
                    session.link.meet("ready")?;
                    end.qp.post_send_inline(7, op, SendFlags::SIGNALED, &bytes)?;
                    bytes.fill(0);
                    let wc = end.wait_for(kind.opcode()).map_err(what)?.wc;
                    if wc.wr_id != 7 {
                        return fail(format_args!("wr_id was 7: {wc:?}")).map_err(what);
                    }
                    session.link.meet("done")?;
                }
            }
        }
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// Checks that atomics return the old value and store the new one.
fn rc_atomics<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    if !session.requester_reads(role) {
        return Ok(());
    }
    let mut end = session.connect(&Shape::of(QpType::RC))?;
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let mut memory = Memory::new(session, role, 64, access)?;
    let (big, add) = (0x0102_0304_0506_0708_u64, 0x1111_0000_0000_0001_u64);
    // operation, value before, value after
    let done = |remote_addr, rkey| {
        let swap = |compare, swap| SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap };
        let plus = |add| SendOp::AtomicFetchAndAdd { remote_addr, rkey, add };
        [
            (swap(0, big), WcOpcode::COMP_SWAP, 0, big),
            (swap(0, 1), WcOpcode::COMP_SWAP, big, big),
            (swap(big, u64::MAX), WcOpcode::COMP_SWAP, big, u64::MAX),
            (plus(1), WcOpcode::FETCH_ADD, u64::MAX, 0),
            (plus(0), WcOpcode::FETCH_ADD, 0, 0),
            (plus(add), WcOpcode::FETCH_ADD, 0, add),
        ]
    };
    if let Memory::Own(own) = &mut memory {
        own.write_at(0, &[0; 64]);
    }
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    session.link.meet("start")?;
    match &memory {
        Memory::Own(own) => {
            for (op, _, _, after) in done(0, 0) {
                session.link.meet("done")?;
                let mut bytes = [0; 64];
                own.read_at(0, &mut bytes);
                if bytes[..8] != [0; 8] || number(&bytes[8..]) != Some(after) || bytes[16..] != [0; 48] {
                    return fail(format_args!("{after:#x} should be there after {op:?}: {bytes:02x?}"));
                }
                session.link.meet("next")?;
            }
        }
        Memory::Peers(peers) => {
            for (op, opcode, before, _) in done(peers.addr + 8, peers.rkey) {
                end.qp.post_send_buf(op, SendFlags::empty(), session.buf(GUARD_SEED, 8)?, ..)?;
                let buf = buf_of(end.wait_for(opcode)?)?;
                if number(&buf) != Some(before) {
                    return fail(format_args!("{before:#x} should come back from {op:?}: {:02x?}", &*buf));
                }
                session.link.meet("done")?;
                session.link.meet("next")?;
            }
        }
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// Accesses memory without permission: the requester gets an error, the memory stays unchanged, and
/// the connection is broken on both sides.
fn rc_refused<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    const LEN: u64 = 64;
    let all = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    // error, exposed access, whether in another domain, operation
    type Wrong = fn(&RemoteMr) -> SendOp<'static>;
    let wrongs: [(&str, RemoteAccess, bool, Wrong); 9] = [
        ("a write with another key", all, false, |mr| SendOp::RdmaWrite {
            remote_addr: mr.addr,
            rkey: mr.rkey ^ 0x55,
        }),
        ("a read with another key", all, false, |mr| SendOp::RdmaRead {
            remote_addr: mr.addr,
            rkey: mr.rkey ^ 0x55,
        }),
        ("a write beyond the end", all, false, |mr| SendOp::RdmaWrite {
            remote_addr: mr.addr + LEN - 7,
            rkey: mr.rkey,
        }),
        ("a read before the start", all, false, |mr| SendOp::RdmaRead {
            remote_addr: mr.addr - 1,
            rkey: mr.rkey,
        }),
        ("a write of what may be read", RemoteAccess::READ, false, |mr| SendOp::RdmaWrite {
            remote_addr: mr.addr,
            rkey: mr.rkey,
        }),
        ("a write with immediate of what may be read", RemoteAccess::READ, false, |mr| {
            SendOp::RdmaWriteWithImm { remote_addr: mr.addr, rkey: mr.rkey, imm_data: 1 }
        }),
        ("a read of what may be written", RemoteAccess::WRITE, false, |mr| SendOp::RdmaRead {
            remote_addr: mr.addr,
            rkey: mr.rkey,
        }),
        (
            "an atomic on what may be read and written",
            RemoteAccess::READ | RemoteAccess::WRITE,
            false,
            |mr| SendOp::AtomicFetchAndAdd { remote_addr: mr.addr, rkey: mr.rkey, add: 1 },
        ),
        ("a write into another protection domain", all, true, |mr| SendOp::RdmaWrite {
            remote_addr: mr.addr,
            rkey: mr.rkey,
        }),
    ];
    for (name, access, elsewhere, wrong) in wrongs {
        let what = |stop: Stop| stop.of(name);
        let mut end = session.connect(&Shape::of(QpType::RC))?;
        match role {
            Role::Responder => {
                end.qp.post_recv_buf(session.buf(0, 64)?, ..)?;
                let pd = if elsewhere { session.context.alloc_pd()? } else { session.pd.clone() };
                let mut buf = pd.alloc_buf(LEN as usize)?;
                fill(GUARD_SEED, &mut buf);
                let memory = pd.expose(buf, access)?;
                let RemoteMr { addr, length, rkey } = memory.remote();
                session.link.tell(&format!("{addr} {length} {rkey}"))?;
                session.link.meet("done")?;
                let mut bytes = [0; LEN as usize];
                memory.read_at(0, &mut bytes);
                check(GUARD_SEED, &bytes).map_err(Stop::Failed).map_err(what)?;
                let End { qp, mut cq, peer_qpn } = end;
                // It may or may not be in the error state by now.
                let _qp = qp.to_error()?;
                let deadline = Instant::now() + Duration::from_secs(20);
                let status = loop {
                    if let Some(completed) = cq.poll_one() {
                        break completed.status;
                    }
                    if Instant::now() > deadline {
                        return fail(format_args!("the receive was not flushed (peer {peer_qpn:#x})"))
                            .map_err(what);
                    }
                };
                if status == WcStatus::SUCCESS {
                    return fail("a receive was completed").map_err(what);
                }
            }
            Role::Requester => {
                let peers = session.told_of_memory()?;
                end.qp.post_send_buf(wrong(&peers), SendFlags::empty(), session.buf(1, 8)?, ..)?;
                // The request posted right after it is flushed, and so are later ones.
                end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(1, 8)?, ..)?;
                end.wait_status(WcStatus::REM_ACCESS_ERR).map_err(what)?;
                end.wait_status(WcStatus::WR_FLUSH_ERR).map_err(what)?;
                end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(1, 8)?, ..)?;
                end.wait_status(WcStatus::WR_FLUSH_ERR).map_err(what)?;
                end.nothing_more()?;
                session.link.meet("done")?;
            }
        }
    }
    session.link.meet("end")
}

/// Sends without a posted receive: they wait, or give up.
fn rc_not_ready<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    let mut end = session.connect(&Shape::of(QpType::RC))?;
    let count = 5_u64;
    match role {
        Role::Requester => {
            for n in 0..count {
                end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(n, 3000)?, ..)?;
            }
            session.link.meet("posted")?;
            for _ in 0..count {
                end.wait_for(WcOpcode::SEND)?;
            }
            session.link.meet("done")?;
        }
        Role::Responder => {
            session.link.meet("posted")?;
            for n in 0..count {
                end.qp.post_recv_buf(session.buf(GUARD_SEED, 3000)?, ..)?;
                let ended = end.wait_for(WcOpcode::RECV)?;
                check(n, &buf_of(ended)?).map_err(Stop::Failed)?;
            }
            session.link.meet("done")?;
        }
    }
    write_not_ready(session, &mut end, role)?;
    let shape = Shape::of(QpType::RC);
    let mut end = session.connect(&Shape { rts: RtsAttr { rnr_retry: 2, ..shape.rts }, ..shape })?;
    if role == Role::Requester {
        for _ in 0..3 {
            end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(1, 8)?, ..)?;
        }
        end.wait_status(WcStatus::RNR_RETRY_EXC_ERR)?;
        end.wait_status(WcStatus::WR_FLUSH_ERR)?;
        end.wait_status(WcStatus::WR_FLUSH_ERR)?;
    }
    end.nothing_more()?;
    session.link.meet("end")
}

/// Writes several packets, the last of which finds no receive for its immediate data.
fn write_not_ready<P: Provider>(session: &mut Session<P>, end: &mut End<P>, role: Role) -> CaseResult {
    let size = 3 * session.mtu.bytes().unwrap_or(256) as usize + 1;
    match Memory::new(session, role, size, RemoteAccess::WRITE)? {
        Memory::Peers(RemoteMr { addr: remote_addr, rkey, .. }) => {
            session.link.meet("start")?;
            let op = SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 5 };
            end.qp.post_send_buf(op, SendFlags::empty(), session.buf(11, size)?, ..)?;
            session.link.meet("posted")?;
            end.wait_for(WcOpcode::RDMA_WRITE)?;
        }
        Memory::Own(own) => {
            session.link.meet("start")?;
            session.link.meet("posted")?;
            end.qp.post_recv_buf(session.buf(0, 8)?, ..)?;
            let wc = end.wait_for(WcOpcode::RECV_RDMA_WITH_IMM)?.wc;
            if (wc.byte_len as usize, wc.imm_data) != (size, 5) {
                return fail(format_args!("a write of {size} bytes with 5 was to arrive, not {wc:?}"));
            }
            let mut bytes = vec![0; size];
            own.read_at(0, &mut bytes);
            check(11, &bytes).map_err(Stop::Failed)?;
        }
    }
    session.link.meet("written")
}

/// Sends to a queue pair that is gone: the sender fails after its retries.
fn rc_not_there<P: Provider>(session: &mut Session<P>, role: Role, _: &Plan) -> CaseResult {
    let shape = Shape::of(QpType::RC);
    // 4 ms, 4 times.
    let mut end =
        session.connect(&Shape { rts: RtsAttr { timeout: 10, retry_cnt: 3, ..shape.rts }, ..shape })?;
    match role {
        Role::Responder => {
            end.qp.close()?;
            session.link.meet("gone")?;
        }
        Role::Requester => {
            session.link.meet("gone")?;
            for _ in 0..DEPTH / 2 {
                end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), session.buf(1, 8)?, ..)?;
            }
            end.wait_status(WcStatus::RETRY_EXC_ERR)?;
            for _ in 1..DEPTH / 2 {
                end.wait_status(WcStatus::WR_FLUSH_ERR)?;
            }
            end.nothing_more()?;
        }
    }
    session.link.meet("end")
}
