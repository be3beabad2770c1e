//! Memory windows: binds, rights, invalidations by either side and revoked exposures.
//!
//! In each case, end `b` binds a window and end `a` is its peer.

mod safe;

use verbs::{
    AccessFlags, Context, Cq, Errno, Mw, MwBindInfo, MwType, OpKind, Pd, PostReason, Provider, Qp, QpState,
    QpType, RecvWr, SendFlags, SendOp, SendWr, Wc, WcFlags, WcOpcode, WcStatus, inc_rkey, state,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    ANY_ERROR, Arena, Pair, Shape, ended, eventually, in_error, is_empty, is_mlx5, is_rxe, pattern,
    post_recv, post_send, rxe_is_before, signalled, wait_for, wait_one, wait_remote_access_error,
    wait_status,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        a_window_of_type_1_gives_access_until_it_is_bound_to_nothing,
        a_window_of_type_2_gives_access_until_its_key_is_invalidated,
        a_window_of_type_1_is_bound_again_under_a_new_key,
        a_window_of_type_2_is_bound_again_after_an_invalidation,
        a_bound_window_of_type_2_is_not_bound_again,
        a_window_of_type_2_is_not_bound_to_nothing,
        a_region_without_the_right_takes_no_window,
        a_writable_window_needs_a_writable_region,
        a_window_gives_only_the_rights_of_its_bind,
        a_window_has_rights_that_its_region_does_not_give_to_peers,
        atomics_run_through_a_window,
        a_window_ends_where_its_bind_says,
        a_window_lies_inside_of_its_region,
        addresses_of_a_zero_based_window_count_from_zero,
        a_peer_invalidates_a_key_with_its_message,
        a_key_of_another_queue_pair_is_not_invalidated,
        a_window_of_type_1_is_not_invalidated,
        a_key_that_is_not_the_windows_present_one_is_not_invalidated,
        the_key_of_a_region_is_not_invalidated,
        a_window_of_type_2_serves_the_queue_pair_that_bound_it,
        a_window_of_type_1_serves_every_queue_pair_of_its_domain,
        a_window_of_another_domain_is_not_bound,
        a_region_of_another_domain_is_not_bound,
        a_window_that_has_another_key_is_not_bound,
        a_key_changes_in_its_low_8_bits_only,
        a_bound_window_is_deallocated_with_its_key,
        a_region_with_a_bound_window_stays,
        a_key_is_good_for_the_message_behind_its_bind,
        a_bind_waits_for_a_fence,
        a_window_serves_an_unreliable_connection,
        datagrams_have_no_windows,
        binds_are_flushed_in_the_error_state,
    );
    cases.extend(safe::cases());
    cases
}

const NONE: SendFlags = SendFlags::empty();
const READ_WRITE: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);
const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// Two ends, the peer's memory and memory for windows.
///
/// The windows are dropped first, because rxe waits for them when it destroys a queue pair.
struct Fixture<P: Provider> {
    windows: Vec<Mw<P>>,
    pair: Pair<P>,
    local: Arena<P>,
    target: Arena<P>,
}

type Rts<P> = Qp<state::Rts, P>;

/// Skips the case on kernels whose rxe lacks memory windows.
fn has_windows() -> CaseResult {
    if rxe_is_before(6, 1)? { skip("rxe of this kernel has no memory windows") } else { Ok(()) }
}

impl<P: Provider> Fixture<P> {
    fn new(context: &Context<P>, shape: &Shape) -> CaseResult<Self> {
        Self::with_access(context, shape, BINDABLE)
    }

    fn with_access(context: &Context<P>, shape: &Shape, access: AccessFlags) -> CaseResult<Self> {
        has_windows()?;
        let pair = Pair::new(context, shape)?;
        let (local, target) = (Arena::new(&pair.pd, 64)?, Arena::with_access(&pair.pd, 4096, access)?);
        local.write(0, &[0xff; 64]);
        Ok(Self { windows: Vec::new(), pair, local, target })
    }

    fn usual(context: &Context<P>) -> CaseResult<Self> {
        Self::new(context, &Shape::default())
    }

    /// Allocates a window and returns its key.
    fn alloc(&mut self, mw_type: MwType) -> CaseResult<u32> {
        let mw = self.pair.pd.alloc_mw(mw_type)?;
        let rkey = mw.rkey();
        assert_eq!(mw.mw_type(), mw_type);
        self.windows.push(mw);
        Ok(rkey)
    }

    /// Returns the type of the window that has or had this key; type 2 if there is none.
    fn mw_type(&self, rkey: u32) -> MwType {
        let its = |mw: &&Mw<P>| mw.rkey() >> 8 == rkey >> 8;
        self.windows.iter().find(its).map_or(MwType::TYPE_2, Mw::mw_type)
    }

    /// Returns the parameters that bind a window to bytes 64 to 128 with these rights.
    fn info(&self, mw_access_flags: AccessFlags) -> MwBindInfo {
        let Self { target, .. } = self;
        MwBindInfo { lkey: target.lkey(), addr: target.addr() + 64, length: 64, mw_access_flags }
    }

    /// Allocates a window and binds it. Returns its key.
    fn bound(&mut self, mw_type: MwType, access: AccessFlags) -> CaseResult<u32> {
        let rkey = self.alloc(mw_type)?;
        let info = self.info(access);
        self.bind(rkey, &info)
    }

    /// Binds a window with its next key and returns that key.
    fn bind(&mut self, rkey: u32, bind_info: &MwBindInfo) -> CaseResult<u32> {
        let new_rkey = inc_rkey(rkey);
        self.bind_to(rkey, new_rkey, bind_info)?;
        Ok(new_rkey)
    }

    fn bind_to(&mut self, rkey: u32, new_rkey: u32, bind_info: &MwBindInfo) -> CaseResult {
        let mw_type = self.mw_type(rkey);
        let wr = signalled(50, SendOp::BindMw { mw_type, rkey, new_rkey, bind_info }, &[]);
        post_send(&mut self.pair.b.qp, &[wr])?;
        let wc = wait_for(&mut self.pair.b.cq, 50, WcOpcode::BIND_MW)?;
        assert_eq!(wc.qp_num, self.pair.b.qp.qp_num());
        Ok(())
    }

    /// Checks that a bind is rejected.
    fn refuses(&mut self, rkey: u32, new_rkey: u32, bind_info: &MwBindInfo) -> CaseResult {
        let mw_type = self.mw_type(rkey);
        let bind = signalled(51, SendOp::BindMw { mw_type, rkey, new_rkey, bind_info }, &[]);
        post_send(&mut self.pair.b.qp, &[bind])?;
        wait_local(&mut self.pair.b.cq, 51, WcStatus::MW_BIND_ERR)?;
        in_error(&self.pair.b.qp)?;
        Ok(())
    }

    fn invalidate(&mut self, invalidate_rkey: u32) -> CaseResult {
        post_send(&mut self.pair.b.qp, &[signalled(52, SendOp::LocalInv { invalidate_rkey }, &[])])?;
        wait_for(&mut self.pair.b.cq, 52, WcOpcode::LOCAL_INV).map(drop)
    }

    /// Checks that the invalidation of a key is rejected.
    fn keeps(&mut self, invalidate_rkey: u32) -> CaseResult {
        post_send(&mut self.pair.b.qp, &[signalled(53, SendOp::LocalInv { invalidate_rkey }, &[])])?;
        if is_mlx5()? {
            // The status depends on whether the key exists with other low bits, or not at all.
            let wc = wait_one(&mut self.pair.b.cq)?;
            let is_refused = matches!(wc.status, WcStatus::MW_BIND_ERR | WcStatus::LOC_QP_OP_ERR);
            assert!(wc.wr_id == 53 && is_refused, "{wc:?}");
            return Ok(());
        }
        let status = if is_rxe()? { WcStatus::LOC_QP_OP_ERR } else { WcStatus::MW_BIND_ERR };
        wait_local(&mut self.pair.b.cq, 53, status)
    }

    /// Makes the peer write 8 bytes at an offset in the memory.
    fn writes(&mut self, rkey: u32, at: usize) -> CaseResult {
        let remote_addr = self.target.addr() + at as u64;
        peer(&mut self.pair, &self.local, SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE)
    }

    fn reads(&mut self, rkey: u32, at: usize) -> CaseResult {
        let remote_addr = self.target.addr() + at as u64;
        peer(&mut self.pair, &self.local, SendOp::RdmaRead { remote_addr, rkey }, WcOpcode::RDMA_READ)
    }

    /// Checks that a peer's operation is rejected because of its key and changes no memory.
    fn closed(&mut self, op: impl Fn(u64) -> SendOp<'static>, at: usize) -> CaseResult {
        let before = self.target.read(0..4096);
        let sge = [self.local.sge(0..8)];
        let op = op(self.target.addr() + at as u64);
        post_send(&mut self.pair.a.qp, &[signalled(60, op, &sge)])?;
        wait_remote_access_error(&mut self.pair.a.cq, 60)?;
        assert!(self.target.read(0..4096) == before, "{op:?} changed memory");
        Ok(())
    }

    fn closed_to_writes(&mut self, rkey: u32, at: usize) -> CaseResult {
        self.closed(move |remote_addr| SendOp::RdmaWrite { remote_addr, rkey }, at)
    }

    /// Makes the peer send a message that invalidates a key. Returns the receiver's completion.
    fn peer_invalidates(&mut self, invalidate_rkey: u32) -> CaseResult<Wc> {
        let Self { pair, local, .. } = self;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 70, sge: &[local.sge(32..64)] }])?;
        let sge = [local.sge(0..8)];
        post_send(&mut pair.a.qp, &[signalled(71, SendOp::SendWithInv { invalidate_rkey }, &sge)])?;
        wait_for(&mut pair.a.cq, 71, WcOpcode::SEND)?;
        wait_for(&mut pair.b.cq, 70, WcOpcode::RECV)
    }

    /// Checks that a peer's message that invalidates this key fails the receive and moves the
    /// receiver to the error state.
    fn peer_cannot_invalidate(&mut self, invalidate_rkey: u32) -> CaseResult {
        let Self { pair, local, .. } = self;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 72, sge: &[local.sge(32..64)] }])?;
        let sge = [local.sge(0..8)];
        post_send(&mut pair.a.qp, &[signalled(73, SendOp::SendWithInv { invalidate_rkey }, &sge)])?;
        // The message has arrived, so it is acknowledged (rxe's `RESPST_ERR_INVALIDATE_RKEY`, 6.1).
        ended(&wait_one(&mut pair.a.cq)?, 73, WcStatus::SUCCESS, WcStatus::NAMED)?;
        ended(&wait_one(&mut pair.b.cq)?, 72, WcStatus::REM_INV_REQ_ERR, ANY_ERROR)?;
        in_error(&pair.b.qp)?;
        Ok(())
    }
}

/// Runs a peer's operation on 8 bytes.
fn peer<P: Provider>(pair: &mut Pair<P>, local: &Arena<P>, op: SendOp<'_>, opcode: WcOpcode) -> CaseResult {
    post_send(&mut pair.a.qp, &[signalled(61, op, &[local.sge(0..8)])])?;
    wait_for(&mut pair.a.cq, 61, opcode).map(drop)
}

/// Checks that a request that sends no packets ends with this status. Newer rxe flushes it at once.
fn wait_local<P: Provider>(cq: &mut Cq<P>, wr_id: u64, status: WcStatus) -> CaseResult {
    let wc = wait_one(cq)?;
    let is_flushed = wc.status == WcStatus::WR_FLUSH_ERR && is_rxe()?;
    if wc.wr_id == wr_id && (wc.status == status || is_flushed) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

fn a_window_of_type_1_gives_access_until_it_is_bound_to_nothing<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_1, READ_WRITE)?;
    fixture.writes(rkey, 64)?;
    fixture.reads(rkey, 120)?;
    assert_eq!(fixture.target.read(64..72), [0xff; 8]);
    let nothing = fixture.bind(rkey, &MwBindInfo::default())?;
    fixture.closed_to_writes(nothing, 64)
}

fn a_window_of_type_2_gives_access_until_its_key_is_invalidated<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    fixture.writes(rkey, 64)?;
    fixture.reads(rkey, 120)?;
    fixture.invalidate(rkey)?;
    fixture.closed_to_writes(rkey, 64)
}

fn a_window_of_type_1_is_bound_again_under_a_new_key<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let first = fixture.bound(MwType::TYPE_1, READ_WRITE)?;
    fixture.writes(first, 64)?;
    let elsewhere = MwBindInfo { addr: fixture.target.addr() + 1024, ..fixture.info(READ_WRITE) };
    let second = fixture.bind(first, &elsewhere)?;
    assert_eq!(first >> 8, second >> 8);
    fixture.writes(second, 1024)?;
    fixture.closed_to_writes(first, 1024)
}

fn a_window_of_type_2_is_bound_again_after_an_invalidation<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let mut rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    let first = rkey;
    // The keys wrap around once.
    for round in 0..300 {
        fixture.invalidate(rkey)?;
        let info =
            MwBindInfo { addr: fixture.target.addr() + round * 8, length: 8, ..fixture.info(READ_WRITE) };
        rkey = fixture.bind(rkey, &info)?;
        fixture.writes(rkey, round as usize * 8)?;
    }
    assert_eq!(rkey, (0..300).fold(first, |rkey, _| inc_rkey(rkey)));
    fixture.closed_to_writes(first, 299 * 8)
}

fn a_bound_window_of_type_2_is_not_bound_again<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    let info = fixture.info(READ_WRITE);
    fixture.refuses(rkey, inc_rkey(rkey), &info)
}

fn a_window_of_type_2_is_not_bound_to_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX takes the bind of nothing for an invalidation");
    }
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    fixture.refuses(rkey, inc_rkey(rkey), &MwBindInfo::default())
}

fn a_region_without_the_right_takes_no_window<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX's regions have no right to be bound: all may be");
    }
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let access = AccessFlags::LOCAL_WRITE | READ_WRITE;
        let mut fixture = Fixture::with_access(context, &Shape::default(), access)?;
        let rkey = fixture.alloc(mw_type)?;
        let info = fixture.info(READ_WRITE);
        fixture.refuses(rkey, inc_rkey(rkey), &info)?;
    }
    Ok(())
}

fn a_writable_window_needs_a_writable_region<P: Provider>(context: &Context<P>) -> CaseResult {
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        let mut fixture = Fixture::with_access(context, &Shape::default(), AccessFlags::MW_BIND)?;
        let rkey = fixture.bound(MwType::TYPE_2, AccessFlags::REMOTE_READ)?;
        fixture.reads(rkey, 64)?;
        fixture.invalidate(rkey)?;
        let info = fixture.info(access);
        fixture.refuses(rkey, inc_rkey(rkey), &info)?;
    }
    Ok(())
}

fn a_window_gives_only_the_rights_of_its_bind<P: Provider>(context: &Context<P>) -> CaseResult {
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(mw_type, AccessFlags::REMOTE_READ)?;
        fixture.reads(rkey, 64)?;
        fixture.closed_to_writes(rkey, 64)?;
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(mw_type, AccessFlags::REMOTE_WRITE)?;
        fixture.writes(rkey, 64)?;
        fixture.closed(move |remote_addr| SendOp::RdmaRead { remote_addr, rkey }, 64)?;
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(mw_type, READ_WRITE)?;
        fixture.closed(move |remote_addr| SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, 64)?;
    }
    Ok(())
}

fn a_window_has_rights_that_its_region_does_not_give_to_peers<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fixture = Fixture::with_access(context, &Shape::default(), BINDABLE | AccessFlags::REMOTE_READ)?;
    let (rkey, of_region) = (fixture.bound(MwType::TYPE_2, READ_WRITE)?, fixture.target.rkey());
    fixture.writes(rkey, 64)?;
    fixture.reads(of_region, 64)?;
    fixture.closed_to_writes(of_region, 64)
}

fn atomics_run_through_a_window<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, AccessFlags::REMOTE_ATOMIC)?;
    fixture.target.write(64, &40_u64.to_ne_bytes());
    let remote_addr = fixture.target.addr() + 64;
    let Fixture { pair, local, target, .. } = &mut fixture;
    let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 2 };
    peer(pair, local, add, WcOpcode::FETCH_ADD)?;
    assert_eq!((local.number(0), target.number(64)), (40, 42));
    let swap = SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 42, swap: 7 };
    peer(pair, local, swap, WcOpcode::COMP_SWAP)?;
    assert_eq!((local.number(0), target.number(64)), (42, 7));
    Ok(())
}

fn a_window_ends_where_its_bind_says<P: Provider>(context: &Context<P>) -> CaseResult {
    // rxe compares with the region's range instead (`check_rkey`), in all kernels tested.
    let outside = if is_rxe()? { [4096 - 7, usize::MAX] } else { [121, 63] };
    for at in outside {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
        fixture.writes(rkey, 64)?;
        fixture.writes(rkey, 120)?;
        let op = move |remote_addr| SendOp::RdmaWrite { remote_addr, rkey };
        // One byte before the region, at offset -1.
        let wraps = move |remote_addr: u64| op(remote_addr);
        if at == usize::MAX {
            fixture.closed(move |addr| op(addr - 1), 0)?;
        } else {
            fixture.closed(wraps, at)?;
        }
    }
    Ok(())
}

fn a_window_lies_inside_of_its_region<P: Provider>(context: &Context<P>) -> CaseResult {
    for (before, length) in [(1, 64), (0, 4097)] {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.alloc(MwType::TYPE_2)?;
        let info = MwBindInfo { addr: fixture.target.addr() - before, length, ..fixture.info(READ_WRITE) };
        fixture.refuses(rkey, inc_rkey(rkey), &info)?;
    }
    Ok(())
}

fn addresses_of_a_zero_based_window_count_from_zero<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE | AccessFlags::ZERO_BASED)?;
    let Fixture { pair, local, target, .. } = &mut fixture;
    peer(pair, local, SendOp::RdmaWrite { remote_addr: 8, rkey }, WcOpcode::RDMA_WRITE)?;
    assert_eq!((target.read(64..72), target.read(72..80)), (vec![0; 8], vec![0xff; 8]));
    Ok(())
}

fn a_peer_invalidates_a_key_with_its_message<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    fixture.writes(rkey, 64)?;
    let wc = fixture.peer_invalidates(rkey)?;
    assert!(wc.wc_flags.contains(WcFlags::WITH_INV), "{wc:?}");
    assert!(!wc.wc_flags.contains(WcFlags::WITH_IMM), "{wc:?}");
    assert_eq!((wc.imm_data, wc.byte_len, wc.qp_num), (rkey, 8, fixture.pair.b.qp.qp_num()));
    // The window is free and can be bound again.
    let info = fixture.info(READ_WRITE);
    let next = fixture.bind(rkey, &info)?;
    fixture.writes(next, 64)?;
    fixture.closed_to_writes(rkey, 64)
}

fn a_key_of_another_queue_pair_is_not_invalidated<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe does not compare the queue pair of an invalidation");
    }
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    // The other pair is in another domain. End `a` is in the window's domain, but the window was
    // bound through `b`.
    let invalidate = signalled(1, SendOp::LocalInv { invalidate_rkey: rkey }, &[]);
    let mut other = Pair::new(context, &Shape::default())?;
    post_send(&mut other.b.qp, &[invalidate])?;
    wait_status(&mut other.b.cq, 1, WcStatus::MW_BIND_ERR)?;
    fixture.writes(rkey, 64)?;
    post_send(&mut fixture.pair.a.qp, &[invalidate])?;
    wait_status(&mut fixture.pair.a.cq, 1, WcStatus::MW_BIND_ERR)
}

fn a_window_of_type_1_is_not_invalidated<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_1, READ_WRITE)?;
    fixture.peer_cannot_invalidate(rkey)?;
    if is_mlx5()? {
        // A local request invalidates any key in its domain.
        return Ok(());
    }
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_1, READ_WRITE)?;
    fixture.keeps(rkey)
}

fn a_key_that_is_not_the_windows_present_one_is_not_invalidated<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    for change in [1, 0x80, 1 << 31] {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
        fixture.keeps(rkey ^ change)?;
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
        fixture.peer_cannot_invalidate(rkey ^ change)?;
    }
    Ok(())
}

fn the_key_of_a_region_is_not_invalidated<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe of some kernels lets peers invalidate registered regions");
    }
    let mut fixture = Fixture::with_access(context, &Shape::default(), BINDABLE | READ_WRITE)?;
    let rkey = fixture.target.rkey();
    fixture.writes(rkey, 0)?;
    // On ConnectX, a local request invalidates any key in its domain.
    if !is_mlx5()? {
        fixture.keeps(rkey)?;
    }
    let mut fixture = Fixture::with_access(context, &Shape::default(), BINDABLE | READ_WRITE)?;
    let rkey = fixture.target.rkey();
    fixture.peer_cannot_invalidate(rkey)
}

/// Connects two more queue pairs in a domain. Returns one end, its completion queue and the other
/// end.
fn another_pair<P: Provider>(context: &Context<P>, pd: &Pd<P>) -> CaseResult<(Rts<P>, Cq<P>, Rts<P>)> {
    let shape = Shape::default();
    let cq = context.create_cq(&verbs::CqInit::new(64))?;
    let (a, b) = (
        verbs_fixtures::fabric::create_qp(pd, &cq, &shape)?,
        verbs_fixtures::fabric::create_qp(pd, &cq, &shape)?,
    );
    let (to_a, to_b) =
        (verbs_fixtures::fabric::Remote::from_qp(&a), verbs_fixtures::fabric::Remote::from_qp(&b));
    let a = verbs_fixtures::fabric::connect(context, a, &shape, to_b)?;
    let b = verbs_fixtures::fabric::connect(context, b, &shape, to_a)?;
    Ok((a, cq, b))
}

fn a_window_of_type_2_serves_the_queue_pair_that_bound_it<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    let (mut other, mut cq, _b) = another_pair(context, &fixture.pair.pd)?;
    let remote_addr = fixture.target.addr() + 64;
    let write = SendOp::RdmaWrite { remote_addr, rkey };
    post_send(&mut other, &[signalled(1, write, &[fixture.local.sge(0..8)])])?;
    wait_remote_access_error(&mut cq, 1)?;
    assert_eq!(fixture.target.read(64..72), [0; 8]);
    fixture.writes(rkey, 64)
}

fn a_window_of_type_1_serves_every_queue_pair_of_its_domain<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_1, READ_WRITE)?;
    let (mut other, mut cq, _b) = another_pair(context, &fixture.pair.pd)?;
    let write = SendOp::RdmaWrite { remote_addr: fixture.target.addr() + 64, rkey };
    post_send(&mut other, &[signalled(1, write, &[fixture.local.sge(0..8)])])?;
    wait_for(&mut cq, 1, WcOpcode::RDMA_WRITE)?;
    // Queue pairs in another domain have no access.
    let mut stranger = Pair::new(context, &Shape::default())?;
    let local = Arena::new(&stranger.pd, 8)?;
    post_send(&mut stranger.a.qp, &[signalled(1, write, &[local.sge(0..8)])])?;
    wait_remote_access_error(&mut stranger.a.cq, 1)
}

fn a_window_of_another_domain_is_not_bound<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let elsewhere = context.alloc_pd()?;
    let mw = elsewhere.alloc_mw(MwType::TYPE_2)?;
    let info = fixture.info(READ_WRITE);
    fixture.refuses(mw.rkey(), inc_rkey(mw.rkey()), &info)
}

fn a_region_of_another_domain_is_not_bound<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe does not compare the domains of a bind's window and region");
    }
    let mut fixture = Fixture::usual(context)?;
    let elsewhere = Arena::with_access(&context.alloc_pd()?, 4096, BINDABLE)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    let info = MwBindInfo { lkey: elsewhere.lkey(), addr: elsewhere.addr(), ..fixture.info(READ_WRITE) };
    fixture.refuses(rkey, inc_rkey(rkey), &info)
}

fn a_window_that_has_another_key_is_not_bound<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    let info = fixture.info(READ_WRITE);
    fixture.refuses(inc_rkey(rkey), inc_rkey(inc_rkey(rkey)), &info)
}

fn a_key_changes_in_its_low_8_bits_only<P: Provider>(context: &Context<P>) -> CaseResult {
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.alloc(mw_type)?;
        let info = fixture.info(READ_WRITE);
        // The upper bits of the new key are ignored: C programs pass a counter.
        fixture.bind_to(rkey, inc_rkey(rkey) & 0xff, &info)?;
        fixture.writes(inc_rkey(rkey), 64)?;
        fixture.closed_to_writes(rkey, 64)?;
    }
    Ok(())
}

fn a_bound_window_is_deallocated_with_its_key<P: Provider>(context: &Context<P>) -> CaseResult {
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut fixture = Fixture::usual(context)?;
        let rkey = fixture.bound(mw_type, READ_WRITE)?;
        fixture.writes(rkey, 64)?;
        for mw in fixture.windows.drain(..) {
            mw.close()?;
        }
        fixture.closed_to_writes(rkey, 64)?;
    }
    Ok(())
}

fn a_region_with_a_bound_window_stays<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.bound(MwType::TYPE_2, READ_WRITE)?;
    if is_mlx5()? {
        // The driver releases the memory. Windows on it no longer give access.
        let Fixture { target, mut pair, local, windows } = fixture;
        let op = SendOp::RdmaWrite { remote_addr: target.addr() + 64, rkey };
        target.close()?;
        post_send(&mut pair.a.qp, &[signalled(60, op, &[local.sge(0..8)])])?;
        wait_remote_access_error(&mut pair.a.cq, 60)?;
        drop(windows);
        return Ok(());
    }
    let Fixture { target, .. } = fixture;
    let (target, refused) = target.dereg_refused()?;
    let expected = if is_rxe()? { Errno::INVAL } else { Errno::BUSY };
    assert_eq!(refused.errno, expected, "{refused}");
    let mut fixture = Fixture { target, ..fixture };
    fixture.writes(rkey, 64)?;
    fixture.invalidate(rkey)?;
    fixture.target.close()
}

fn a_key_is_good_for_the_message_behind_its_bind<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    let (new_rkey, info) = (inc_rkey(rkey), fixture.info(READ_WRITE));
    let Fixture { pair, local, .. } = &mut fixture;
    post_recv(&mut pair.a.qp, &[RecvWr { wr_id: 1, sge: &[local.sge(32..40)] }])?;
    let bind = SendWr {
        flags: NONE,
        ..signalled(2, SendOp::BindMw { mw_type: MwType::TYPE_2, rkey, new_rkey, bind_info: &info }, &[])
    };
    let sge = [local.sge(0..8)];
    post_send(&mut pair.b.qp, &[bind, signalled(3, SendOp::SendWithImm { imm_data: new_rkey }, &sge)])?;
    let told = wait_for(&mut pair.a.cq, 1, WcOpcode::RECV)?.imm_data;
    wait_for(&mut pair.b.cq, 3, WcOpcode::SEND)?;
    fixture.writes(told, 64)
}

fn a_bind_waits_for_a_fence<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    let (new_rkey, info) = (inc_rkey(rkey), fixture.info(READ_WRITE));
    let peers = Arena::new(&fixture.pair.pd, 4096)?;
    peers.write(0, &pattern(3, 4096));
    let Fixture { pair, target, .. } = &mut fixture;
    let read = SendOp::RdmaRead { remote_addr: peers.addr(), rkey: peers.rkey() };
    let sge = [target.sge(0..4096)];
    let bind = SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..signalled(2, SendOp::BindMw { mw_type: MwType::TYPE_2, rkey, new_rkey, bind_info: &info }, &[])
    };
    post_send(&mut pair.b.qp, &[signalled(1, read, &sge), bind])?;
    wait_for(&mut pair.b.cq, 1, WcOpcode::RDMA_READ)?;
    assert_eq!(target.read(0..4096), pattern(3, 4096));
    wait_for(&mut pair.b.cq, 2, WcOpcode::BIND_MW)?;
    fixture.writes(new_rkey, 64)
}

fn a_window_serves_an_unreliable_connection<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::new(context, &Shape::for_type(QpType::UC))?;
    let rkey = fixture.bound(MwType::TYPE_2, AccessFlags::REMOTE_WRITE)?;
    let lacks = |op| Err(PostReason::UnsupportedOp { op, qp_type: QpType::UC });
    let posted = |result: Result<(), verbs::PostError>| result.map_err(|error| error.reason);
    let Fixture { pair, local, target, .. } = &mut fixture;
    if is_rxe()? {
        let invalidate = signalled(1, SendOp::LocalInv { invalidate_rkey: rkey }, &[]);
        assert_eq!(posted(post_send(&mut pair.b.qp, &[invalidate])), lacks(OpKind::LOCAL_INV));
    }
    let send = signalled(1, SendOp::SendWithInv { invalidate_rkey: rkey }, &[]);
    assert_eq!(posted(post_send(&mut pair.a.qp, &[send])), lacks(OpKind::SEND_WITH_INV));
    let remote_addr = target.addr() + 64;
    for wr_id in [1, 2] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[local.sge(32..64)] }])?;
    }
    let write = |imm_data| SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data };
    peer(pair, local, write(7), WcOpcode::RDMA_WRITE)?;
    let wc = wait_for(&mut pair.b.cq, 1, WcOpcode::RECV_RDMA_WITH_IMM)?;
    assert_eq!((wc.imm_data, target.read(64..72)), (7, vec![0xff; 8]));
    // Without the window, a write is dropped and may move the receiver to the error state. If it
    // does not, the next message arrives.
    if is_rxe()? {
        fixture.windows.clear();
    } else {
        fixture.invalidate(rkey)?;
    }
    let Fixture { pair, local, target, .. } = &mut fixture;
    target.write(64, &[0; 8]);
    peer(pair, local, SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE)?;
    peer(pair, local, SendOp::SendWithImm { imm_data: 8 }, WcOpcode::SEND)?;
    eventually("the receiver has processed both", || {
        !is_empty(&mut pair.b.cq) || pair.b.qp.state().is_ok_and(|state| state == QpState::ERR)
    })?;
    assert_eq!(target.read(64..72), [0; 8]);
    Ok(())
}

fn datagrams_have_no_windows<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let info = MwBindInfo::default();
    for op in [
        SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 1, new_rkey: 2, bind_info: &info },
        SendOp::LocalInv { invalidate_rkey: 1 },
        SendOp::SendWithInv { invalidate_rkey: 1 },
    ] {
        let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[])]).unwrap_err();
        assert_eq!(refused.reason, PostReason::UnsupportedOp { op: op.kind(), qp_type: QpType::UD });
    }
    Ok(())
}

fn binds_are_flushed_in_the_error_state<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fixture = Fixture::usual(context)?;
    let rkey = fixture.alloc(MwType::TYPE_2)?;
    let info = fixture.info(READ_WRITE);
    fixture.refuses(inc_rkey(rkey), rkey, &info)?;
    let bind = SendOp::BindMw { mw_type: MwType::TYPE_2, rkey, new_rkey: inc_rkey(rkey), bind_info: &info };
    let invalidate = SendOp::LocalInv { invalidate_rkey: rkey };
    let Fixture { pair, .. } = &mut fixture;
    post_send(&mut pair.b.qp, &[signalled(1, bind, &[]), signalled(2, invalidate, &[])])?;
    wait_status(&mut pair.b.cq, 1, WcStatus::WR_FLUSH_ERR)?;
    wait_status(&mut pair.b.cq, 2, WcStatus::WR_FLUSH_ERR)
}
