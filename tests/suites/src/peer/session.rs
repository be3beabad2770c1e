//! [`Session`]: two peers that have exchanged addresses, with their connections; [`End`]: an end of
//! a connection.

use std::time::{Duration, Instant};

use verbs::state::{Reset, Rts};
use verbs::{
    AccessFlags, AhAttr, Buf, Completed, Context, Cq, CqInit, Exposed, Gid, GidEntry, InitAttr, Mtu, Pd,
    Provider, Qp, QpCap, QpInit, QpType, RemoteAccess, RemoteMr, RtrAttr, RtsAttr, WcOpcode, WcStatus,
};
use verbs_harness::pattern::{Choices, fill};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::link::Link;

/// The port to use.
const PORT: u8 = 1;

/// The queue key of every UD queue pair here.
pub const QKEY: u32 = 0x0bad_cafe;

/// Beyond the time of a completion, with retries, in an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The role of a peer in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Posts the requests of the step.
    Requester,
    /// Receives them, or exposes memory to them.
    Responder,
}

/// Two peers that have exchanged addresses, seen from one side.
#[derive(Debug)]
pub struct Session<P: Provider> {
    /// The device.
    pub context: Context<P>,
    /// The protection domain of all objects.
    pub pd: Pd<P>,
    /// This peer's address.
    pub gid: GidEntry,
    /// The other peer's address.
    pub peer_gid: Gid,
    /// The largest payload of a packet, on connections made from now on.
    pub mtu: Mtu,
    /// The largest MTU of both, which limits a datagram's length.
    pub max_mtu: Mtu,
    /// Whether this side, and the other one, supports reads and atomics.
    pub reads: [bool; 2],
    /// The connection to the other peer.
    pub link: Link,
    choices: Choices,
}

/// The parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The transport service.
    pub qp_type: QpType,
    /// Timeouts and retries.
    pub rts: RtsAttr,
}

impl Shape {
    /// Returns a patient shape: 67 ms, 7 retries, unlimited RNR retries.
    pub fn of(qp_type: QpType) -> Self {
        let rts = RtsAttr { max_rd_atomic: RD_ATOMIC, ..RtsAttr::default() };
        Self { qp_type, rts }
    }
}

const RD_ATOMIC: u8 = 4;
/// The minimum capacity of each queue.
pub const DEPTH: u32 = 64;
/// The number of inline bytes of a request.
pub const INLINE: u32 = 64;

impl<P: Provider> Session<P> {
    /// Exchanges addresses with the other side. Without `reads`, this side runs no reads and
    /// atomics. By default, [`Context::find_gid`] chooses the GID.
    ///
    /// # Errors
    /// The device has no such GID; the other side is gone.
    pub fn new(
        context: &Context<P>,
        gid_index: Option<u32>,
        reads: bool,
        mut link: Link,
        seed: u64,
    ) -> CaseResult<Self> {
        let gid = match gid_index {
            None => context.find_gid(PORT)?,
            Some(index) => match context.query_gid_entry(PORT, index)? {
                Some(entry) => entry,
                None => return fail(format_args!("GID {index} of {} is empty", context.device_name())),
            },
        };
        let own_mtu = context.query_port(PORT)?.active_mtu;
        let heard = link.swap(&format!("{} {} {reads}", gid.gid, own_mtu.0))?;
        let [peer_gid, peer_mtu, peer_reads] = heard.split(' ').collect::<Vec<_>>()[..] else {
            return Err(not_understood(&heard));
        };
        let peer_gid = peer_gid.parse()?;
        let max_mtu = Mtu(own_mtu.0.min(peer_mtu.parse()?));
        let pd = context.alloc_pd()?;
        Ok(Self {
            context: context.clone(),
            pd,
            gid,
            peer_gid,
            mtu: max_mtu,
            max_mtu,
            reads: [reads, peer_reads.parse()?],
            link,
            choices: Choices::new(seed),
        })
    }

    /// Returns whether the requester of a step supports reads and atomics.
    pub fn requester_reads(&self, role: Role) -> bool {
        self.reads[usize::from(role == Role::Responder)]
    }

    /// Returns the path to the other side.
    pub fn path(&self) -> AhAttr {
        AhAttr::new(&self.gid, self.peer_gid)
    }

    /// Creates a queue pair and connects it to the one that the other side creates at the same
    /// time. UD queue pairs only exchange their numbers.
    ///
    /// # Errors
    /// Those of creating and modifying objects; the other side is gone.
    pub fn connect(&mut self, shape: &Shape) -> CaseResult<End<P>> {
        let (qp, cq) = create(&self.context, &self.pd, shape)?;
        let psn = first_psn(&mut self.choices);
        let heard = self.link.swap(&format!("{} {psn}", qp.qp_num()))?;
        let (peer_qpn, peer_psn) = heard.split_once(' ').ok_or_else(|| not_understood(&heard))?;
        let (peer_qpn, peer_psn): (u32, u32) = (peer_qpn.parse()?, peer_psn.parse()?);
        let rtr = rtr_attr(self.path(), self.mtu, peer_qpn, peer_psn);
        let qp = bring_up(qp, &rtr, &RtsAttr { sq_psn: Some(psn), ..shape.rts })?;
        // No side sends before the other one is ready.
        self.link.meet("connected")?;
        Ok(End { qp, cq, peer_qpn })
    }

    /// Returns a buffer filled with the bytes of a seed.
    ///
    /// # Errors
    /// Any error of allocating the buffer.
    pub fn buf(&self, seed: u64, len: usize) -> CaseResult<Buf> {
        let mut buf = self.pd.alloc_buf(len)?;
        fill(seed, &mut buf);
        Ok(buf)
    }

    /// Exposes memory and sends its address and key to the other side.
    ///
    /// # Errors
    /// Any errno of the device; the other side is gone.
    pub fn expose(&mut self, buf: Buf, access: RemoteAccess) -> CaseResult<Exposed> {
        let exposed = self.pd.expose(buf, access)?;
        let RemoteMr { addr, length, rkey } = exposed.remote();
        self.link.tell(&format!("{addr} {length} {rkey}"))?;
        Ok(exposed)
    }

    /// Waits for the address and key of memory exposed by the other side.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn told_of_memory(&mut self) -> CaseResult<RemoteMr> {
        let heard = self.link.hear()?;
        match heard.split(' ').collect::<Vec<_>>()[..] {
            [addr, length, rkey] => {
                Ok(RemoteMr { addr: addr.parse()?, length: length.parse()?, rkey: rkey.parse()? })
            }
            _ => Err(not_understood(&heard)),
        }
    }
}

/// Returns two ends of a connection on one device.
///
/// # Errors
/// Those of creating and modifying objects.
pub fn loopback<P: Provider>(pd: &Pd<P>, mtu: Mtu, choices: &mut Choices) -> CaseResult<[End<P>; 2]> {
    let context = pd.context();
    let shape = Shape::of(QpType::RC);
    let gid = context.find_gid(PORT)?;
    let [(one, one_cq), (other, other_cq)] = [create(context, pd, &shape)?, create(context, pd, &shape)?];
    let (one_psn, other_psn) = (first_psn(choices), first_psn(choices));
    let (one_qpn, other_qpn) = (one.qp_num(), other.qp_num());
    let path = AhAttr::new(&gid, gid.gid);
    let rts = |psn| RtsAttr { sq_psn: Some(psn), ..shape.rts };
    let one = bring_up(one, &rtr_attr(path, mtu, other_qpn, other_psn), &rts(one_psn))?;
    let other = bring_up(other, &rtr_attr(path, mtu, one_qpn, one_psn), &rts(other_psn))?;
    Ok([End { qp: one, cq: one_cq, peer_qpn: other_qpn }, End { qp: other, cq: other_cq, peer_qpn: one_qpn }])
}

fn create<P: Provider>(context: &Context<P>, pd: &Pd<P>, shape: &Shape) -> CaseResult<(Qp<Reset, P>, Cq<P>)> {
    let cq = context.create_cq(&CqInit::new(4 * DEPTH))?;
    let cap = QpCap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: INLINE,
    };
    let qp = pd.create_qp(&QpInit { cap, ..QpInit::new(shape.qp_type, &cq) })?;
    Ok((qp, cq))
}

/// Returns a sequence number; half of them wrap around to 0 soon.
fn first_psn(choices: &mut Choices) -> u32 {
    let psn = choices.any() as u32 & 0xff_ffff;
    if psn & 1 == 0 { psn } else { 0xff_ffff - (psn >> 19) }
}

const fn rtr_attr(ah_attr: AhAttr, path_mtu: Mtu, dest_qp_num: u32, rq_psn: u32) -> RtrAttr {
    // An RNR timer of 0.08 ms.
    RtrAttr { ah_attr, dest_qp_num, rq_psn, path_mtu, max_dest_rd_atomic: RD_ATOMIC, min_rnr_timer: 6 }
}

fn bring_up<P: Provider>(qp: Qp<Reset, P>, rtr: &RtrAttr, rts: &RtsAttr) -> CaseResult<Qp<Rts, P>> {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let init = InitAttr { port_num: PORT, access, qkey: QKEY, ..InitAttr::default() };
    let qp = qp.to_init(&init)?;
    let qp = qp.to_rtr(rtr)?;
    Ok(qp.to_rts(rts)?)
}

fn not_understood(line: &str) -> Stop {
    Stop::Failed(format!("{line:?} was not expected"))
}

/// One end of a connection.
#[derive(Debug)]
pub struct End<P: Provider> {
    /// Its queue pair.
    pub qp: Qp<Rts, P>,
    /// Its completion queue, for sends and receives.
    pub cq: Cq<P>,
    /// The other end's queue pair.
    pub peer_qpn: u32,
}

/// Returns the buffer of a completed request.
///
/// # Errors
/// The request had no buffer.
pub fn buf_of(completed: Completed) -> CaseResult<Buf> {
    Ok(completed.into_buf()?)
}

impl<P: Provider> End<P> {
    /// Polls until a request has ended.
    ///
    /// # Errors
    /// No completion in time.
    pub fn wait(&mut self) -> CaseResult<Completed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(ended) = self.cq.poll_one() {
                return Ok(ended);
            }
            if Instant::now() > deadline {
                return fail(format_args!("no completion within {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
    }

    /// Polls until a request has ended, which must have this status.
    ///
    /// # Errors
    /// Another status, or no completion in time.
    pub fn wait_status(&mut self, status: WcStatus) -> CaseResult<Completed> {
        let ended = self.wait()?;
        let own = self.qp.qp_num();
        if ended.wc.status != status {
            fail(format_args!("{status} was expected, not {:?}", ended.wc))
        } else if ended.wc.qp_num != own {
            fail(format_args!("a completion of {own:#x} names another queue pair: {:?}", ended.wc))
        } else {
            Ok(ended)
        }
    }

    /// Polls until a request has ended, which must be successful and have this opcode.
    ///
    /// # Errors
    /// Another completion, or no completion in time.
    pub fn wait_for(&mut self, opcode: WcOpcode) -> CaseResult<Completed> {
        let ended = self.wait_status(WcStatus::SUCCESS)?;
        if ended.wc.opcode == opcode {
            Ok(ended)
        } else {
            fail(format_args!("{opcode} was expected, not {:?}", ended.wc))
        }
    }

    /// Checks that no completion is pending.
    ///
    /// # Errors
    /// A completion is pending.
    pub fn nothing_more(&mut self) -> CaseResult {
        match self.cq.poll_one() {
            None => Ok(()),
            Some(ended) => fail(format_args!("nothing should have ended, but {:?}", ended.wc)),
        }
    }
}
