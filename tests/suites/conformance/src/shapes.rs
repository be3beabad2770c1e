//! The shapes of requests: lists, inline data, lengths, batches and borrowed memory.

use verbs::{
    AccessFlags, Context, PostBufReason, PostReason, Provider, QpCap, RecvWr, Returned, SendFlags, SendOp,
    Sge, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, Shape, eventually, is_empty, is_length_error, next_completed, pattern, post_recv,
    post_send, signalled, wait, wait_for, wait_local_key_error, wait_one,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_list_has_any_number_of_elements_up_to_the_largest,
        one_element_more_than_the_largest_list_is_not_posted,
        empty_elements_count_and_carry_nothing,
        an_empty_element_may_have_any_key_and_address,
        odd_splits_of_both_sides_arrive_whole,
        elements_of_several_regions_make_one_message,
        an_element_of_another_domain_fails,
        an_element_beyond_its_region_fails,
        the_same_bytes_may_be_named_twice,
        a_receive_that_is_longer_keeps_its_rest,
        a_receive_that_is_shorter_fails_both_sides,
        inline_data_of_every_length_up_to_the_largest,
        one_inline_byte_more_than_the_largest_is_not_posted,
        inline_data_comes_from_many_pieces,
        a_request_that_claims_more_than_two_gigabytes_is_not_posted,
        a_claim_of_one_gigabyte_beyond_its_region_fails_without_harm,
        elements_cross_pages_at_every_offset,
        batches_wrap_around_the_ring,
        the_longest_inline_data_crosses_the_end_of_the_ring,
        the_longest_list_crosses_the_end_of_the_ring,
        a_raw_batch_of_every_operation_arrives,
        a_raw_batch_with_a_refused_request_posts_nothing,
        borrowed_memory_is_sent_and_received_in_a_scope,
        a_scope_that_is_left_early_ends_its_requests,
        a_scope_whose_closure_panics_ends_its_requests,
    )
}

const NONE: SendFlags = SendFlags::empty();

/// Sends a gather list into a receive list and returns the received length in bytes.
fn sent<P: Provider>(pair: &mut Pair<P>, send: &[Sge], recv: &[Sge]) -> CaseResult<usize> {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: recv }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, send)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    Ok(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize)
}

/// Returns a pair and memory for both ends. The first end's memory is filled.
fn setup<P: Provider>(context: &Context<P>, len: usize) -> CaseResult<(Pair<P>, Arena<P>, Arena<P>)> {
    let pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, len)?, Arena::new(&pair.pd, len)?);
    from.write(0, &pattern(1, len));
    Ok((pair, from, into))
}

fn a_list_has_any_number_of_elements_up_to_the_largest<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 1000)?;
    let max = pair.a.qp.cap().max_send_sge.min(pair.b.qp.cap().max_recv_sge) as usize;
    assert!(max >= 4);
    for count in 0..=max {
        let send: Vec<_> = (0..count).map(|n| from.sge(n * 10..n * 10 + 7)).collect();
        let recv: Vec<_> = (0..count).map(|n| into.sge(n * 20..n * 20 + 7)).collect();
        assert_eq!(sent(&mut pair, &send, &recv)?, count * 7);
        for n in 0..count {
            assert_eq!(into.read(n * 20..n * 20 + 8)[..7], pattern(1, 1000)[n * 10..n * 10 + 7]);
        }
        into.write(0, &[0; 1000]);
    }
    Ok(())
}

fn one_element_more_than_the_largest_list_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, _) = setup(context, 64)?;
    let (send, recv) = (pair.a.qp.cap().max_send_sge, pair.b.qp.cap().max_recv_sge);
    let list = vec![from.sge(0..1); send.max(recv) as usize + 1];
    let refused = post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &list[..send as usize + 1])]);
    let given = send as usize + 1;
    assert_eq!(refused.unwrap_err().reason, PostReason::TooManySge { given, max: send });
    let refused = post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 1, sge: &list[..recv as usize + 1] }]);
    let given = recv as usize + 1;
    assert_eq!(refused.unwrap_err().reason, PostReason::TooManySge { given, max: recv });
    Ok(())
}

fn empty_elements_count_and_carry_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 64)?;
    let send = [from.sge(5..5), from.sge(0..3), from.sge(9..9), from.sge(3..8)];
    let recv = [into.sge(0..0), into.sge(0..2), into.sge(2..2), into.sge(2..20)];
    assert_eq!(sent(&mut pair, &send, &recv)?, 8);
    assert_eq!(into.read(0..9), [&pattern(1, 64)[..8], &[0]].concat());
    Ok(())
}

fn an_empty_element_may_have_any_key_and_address<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 64)?;
    let nothing = Sge { addr: 0x1234, length: 0, lkey: from.lkey() };
    assert_eq!(sent(&mut pair, &[nothing, from.sge(0..4)], &[into.sge(0..4)])?, 4);
    assert_eq!(into.read(0..4), pattern(1, 64)[..4]);
    Ok(())
}

fn odd_splits_of_both_sides_arrive_whole<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 5000;
    let (mut pair, from, into) = setup(context, LEN)?;
    for (one, two) in [(1, 2), (1023, 1025), (1024, 2048), (3, 4999), (4097, 4098)] {
        let cut =
            |arena: &Arena<P>, a: usize, b: usize| [arena.sge(0..a), arena.sge(a..b), arena.sge(b..LEN)];
        let (send, recv) = (cut(&from, one, two), cut(&into, LEN - two, LEN - one));
        assert_eq!(sent(&mut pair, &send, &recv)?, LEN);
        assert!(into.read(0..LEN) == pattern(1, LEN), "{one} {two}");
        into.write(0, &[0; LEN]);
    }
    Ok(())
}

fn elements_of_several_regions_make_one_message<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 3000)?;
    let other = Arena::new(&pair.pd, 3000)?;
    other.write(0, &pattern(2, 3000));
    let last = Arena::with_access(&pair.pd, 3000, AccessFlags::LOCAL_WRITE)?;
    let send = [other.sge(0..1500), from.sge(0..1500)];
    assert_eq!(sent(&mut pair, &send, &[last.sge(0..700), into.sge(0..2300)])?, 3000);
    let message = [&pattern(2, 3000)[..1500], &pattern(1, 3000)[..1500]].concat();
    assert!(last.read(0..700) == message[..700] && into.read(0..2300) == message[700..]);
    Ok(())
}

fn an_element_of_another_domain_fails<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, _) = setup(context, 64)?;
    let foreign = Arena::new(&context.alloc_pd()?, 64)?;
    let write = SendOp::RdmaWrite { remote_addr: from.addr(), rkey: from.rkey() };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[from.sge(0..4), foreign.sge(0..4)])])?;
    wait_local_key_error(&mut pair.a.cq, 1)
}

fn an_element_beyond_its_region_fails<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 64)?;
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    let beyond = Sge { length: 9, ..from.sge(56..64) };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[beyond])])?;
    wait_local_key_error(&mut pair.a.cq, 1)
}

fn the_same_bytes_may_be_named_twice<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 64)?;
    let piece = from.sge(3..8);
    assert_eq!(sent(&mut pair, &[piece, piece, piece], &[into.sge(0..64)])?, 15);
    assert_eq!(into.read(0..15), pattern(1, 64)[3..8].repeat(3));
    Ok(())
}

fn a_receive_that_is_longer_keeps_its_rest<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 5000)?;
    into.write(0, &[0xee; 5000]);
    for len in [0, 1, 1024, 1025, 4999] {
        assert_eq!(sent(&mut pair, &[from.sge(0..len)], &[into.sge(0..5000)])?, len);
        assert!(
            into.read(0..len) == pattern(1, 5000)[..len] && into.read(len..5000) == vec![0xee; 5000 - len]
        );
    }
    Ok(())
}

fn a_receive_that_is_shorter_fails_both_sides<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 5000)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..2999)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..3000)])])?;
    let (a, b) = (wait_one(&mut pair.a.cq)?, wait_one(&mut pair.b.cq)?);
    assert!(is_length_error(a.status, b.status)?, "{a:?}, {b:?}");
    assert_eq!(into.read(2999..5000), [0; 2001], "behind the receive");
    Ok(())
}

fn inline_data_of_every_length_up_to_the_largest<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, _, into) = setup(context, 1000)?;
    let max = (pair.a.qp.cap().max_inline_data as usize).min(200);
    for len in 0..=max {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..1000)] }])?;
        pair.a.qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, &pattern(len as u32, len))?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, len);
        assert_eq!(into.read(0..len), pattern(len as u32, len));
    }
    Ok(())
}

fn one_inline_byte_more_than_the_largest_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, _, _) = setup(context, 8)?;
    let max = pair.a.qp.cap().max_inline_data;
    let refused = pair.a.qp.post_send_inline(1, SendOp::Send, NONE, &vec![0; max as usize + 1]).unwrap_err();
    let given = u64::from(max) + 1;
    assert_eq!(refused, PostBufReason::Post(PostReason::InlineTooLong { given, max }));
    Ok(())
}

fn inline_data_comes_from_many_pieces<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, _, into) = setup(context, 64)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..64)] }])?;
    let pieces = [&b"one "[..], b"", b"two ", b"three"];
    pair.a.qp.post_send_inline_list(1, SendOp::Send, SendFlags::SIGNALED, &pieces)?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 13);
    assert_eq!(into.read(0..13), b"one two three");
    let many = vec![&b"x"[..]; pair.a.qp.cap().max_send_sge as usize + 1];
    let refused = pair.a.qp.post_send_inline_list(1, SendOp::Send, NONE, &many).unwrap_err();
    assert!(matches!(refused, PostBufReason::Post(PostReason::TooManySge { .. })), "{refused}");
    Ok(())
}

fn a_request_that_claims_more_than_two_gigabytes_is_not_posted<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let (mut pair, from, _) = setup(context, 8)?;
    let half = Sge { length: 1 << 30, ..from.sge(0..8) };
    let list = [half, half, Sge { length: 1, ..half }];
    let reason = PostReason::MessageTooLong { given: (1 << 31) + 1 };
    assert_eq!(post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &list)]).unwrap_err().reason, reason);
    let refused = post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 1, sge: &list }]).unwrap_err();
    assert_eq!(refused.reason, reason);
    Ok(())
}

fn a_claim_of_one_gigabyte_beyond_its_region_fails_without_harm<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let (mut pair, from, into) = setup(context, 4096)?;
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    let claim = Sge { length: 1 << 30, ..from.sge(0..8) };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[claim])])?;
    let wc = wait_one(&mut pair.a.cq)?;
    assert!(wc.status != WcStatus::SUCCESS, "{wc:?}");
    assert_eq!(into.read(0..4096), [0; 4096]);
    Ok(())
}

fn elements_cross_pages_at_every_offset<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 3 * 4096;
    let (mut pair, from, into) = setup(context, LEN + 4096)?;
    for offset in [0, 1, 7, 8, 63, 64, 4088, 4095] {
        let there = 4095 - offset;
        let recv = [into.sge(there..there + LEN)];
        assert_eq!(sent(&mut pair, &[from.sge(offset..offset + LEN)], &recv)?, LEN);
        assert!(into.read(there..there + LEN) == pattern(1, LEN + 4096)[offset..offset + LEN], "{offset}");
    }
    Ok(())
}

fn batches_wrap_around_the_ring<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, from, into) = setup(context, 64)?;
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    let sge = [from.sge(0..8)];
    // The number of slots is not a multiple of 7.
    for round in 0..50_u64 {
        let wrs: Vec<_> = (0..7).map(|n| signalled(round * 7 + n, write, &sge)).collect();
        post_send(&mut pair.a.qp, &wrs)?;
        let ids: Vec<u64> = wait(&mut pair.a.cq, 7)?.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (round * 7..round * 7 + 7).collect::<Vec<_>>());
    }
    Ok(())
}

/// The largest number of 64-byte blocks that a request below takes on ConnectX. ConnectX has the
/// shortest ring, because its requests take only the blocks that they need.
const BLOCKS: usize = 4;

/// Calls `post` until its request has started at each block of the ring. Between rounds, a
/// one-block request shifts the start.
fn at_each_block<P: Provider>(
    pair: &mut Pair<P>,
    into: &Arena<P>,
    mut post: impl FnMut(&mut Pair<P>, u32) -> CaseResult,
) -> CaseResult {
    // Several times around the ring, even if its size is rounded up.
    let rounds = 2 * (pair.a.qp.cap().max_send_wr as usize).next_power_of_two();
    for round in 0..BLOCKS {
        for n in 0..rounds {
            post(pair, (round * rounds + n) as u32)?;
            wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
        }
        let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, write, &[])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    }
    Ok(())
}

/// Returns a pair with the shortest send queue for long requests.
fn with_long_requests<P: Provider>(context: &Context<P>) -> CaseResult<Pair<P>> {
    let cap = QpCap { max_send_wr: 3, max_send_sge: 11, max_inline_data: 172, ..Shape::default().cap };
    Pair::new(context, &Shape { cap, ..Shape::default() })
}

fn the_longest_inline_data_crosses_the_end_of_the_ring<P: Provider>(context: &Context<P>) -> CaseResult {
    const MOST: usize = 1024;
    let mut pair = with_long_requests(context)?;
    let into = Arena::new(&pair.pd, MOST + 1)?;
    let max = (pair.a.qp.cap().max_inline_data as usize).min(MOST);
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    at_each_block(&mut pair, &into, |pair, seed| {
        pair.a.qp.post_send_inline(1, write, SendFlags::SIGNALED, &pattern(seed, max))?;
        eventually("the data arrives", || into.read(0..max) == pattern(seed, max))
    })?;
    assert_eq!(into.read(max..max + 1), [0], "behind the data");
    Ok(())
}

fn the_longest_list_crosses_the_end_of_the_ring<P: Provider>(context: &Context<P>) -> CaseResult {
    const EACH: usize = 5;
    let mut pair = with_long_requests(context)?;
    let count = pair.a.qp.cap().max_send_sge as usize;
    assert!(count >= 11);
    let (from, into) = (Arena::new(&pair.pd, 2 * EACH * count)?, Arena::new(&pair.pd, EACH * count + 1)?);
    // Elements with gaps between them, in reverse order.
    let list: Vec<_> = (0..count).rev().map(|n| from.sge(2 * EACH * n..2 * EACH * n + EACH)).collect();
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    at_each_block(&mut pair, &into, |pair, seed| {
        let bytes = pattern(seed, 2 * EACH * count);
        from.write(0, &bytes);
        post_send(&mut pair.a.qp, &[signalled(1, write, &list)])?;
        let whole: Vec<_> = bytes.chunks(2 * EACH).rev().flat_map(|piece| &piece[..EACH]).copied().collect();
        eventually("the data arrives", || into.read(0..EACH * count) == whole)
    })?;
    assert_eq!(into.read(EACH * count..EACH * count + 1), [0], "behind the data");
    Ok(())
}

fn a_raw_batch_of_every_operation_arrives<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, _, into) = setup(context, 64)?;
    for wr_id in [10, 11] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[into.sge(32..64)] }])?;
    }
    let (addr, rkey) = (into.addr(), into.rkey());
    let mut wr = pair.a.qp.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.wr_id = 1;
    wr.rdma_write(rkey, addr).set_inline_data(b"written.");
    wr.wr_id = 2;
    wr.send_imm(0x0102_0304).set_inline_data_list(&[b"se", b"nt"]);
    wr.wr_id = 3;
    wr.rdma_write_imm(rkey, addr + 8, 7).set_inline_data(b"imm");
    wr.wr_id = 4;
    wr.rdma_read(rkey, addr).no_data();
    assert_eq!(wr.complete()?, 4);
    let ended: Vec<_> = wait(&mut pair.a.cq, 4)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
    let received: Vec<_> = wait(&mut pair.b.cq, 2)?.iter().map(|wc| (wc.wr_id, wc.imm_data)).collect();
    assert_eq!(received, [(10, 0x0102_0304), (11, 7)]);
    assert_eq!((into.read(0..11), into.read(32..36)), (b"written.imm".to_vec(), b"sent".to_vec()));
    Ok(())
}

fn a_raw_batch_with_a_refused_request_posts_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, _, into) = setup(context, 64)?;
    let (addr, rkey) = (into.addr(), into.rkey());
    let mut wr = pair.a.qp.wr_start();
    wr.wr_flags = SendFlags::SIGNALED;
    wr.rdma_write(rkey, addr).set_inline_data(b"never");
    wr.atomic_fetch_add(rkey, addr + 1, 1).no_data();
    wr.rdma_write(rkey, addr).set_inline_data(b"never");
    assert_eq!(wr.complete().unwrap_err().position, 1);
    let mut wr = pair.a.qp.wr_start();
    wr.rdma_write(rkey, addr).set_inline_data(b"never");
    wr.abort();
    let mut wr = pair.a.qp.wr_start();
    (wr.wr_id, wr.wr_flags) = (9, SendFlags::SIGNALED);
    wr.rdma_write(rkey, addr + 8).set_inline_data(b"now");
    wr.complete()?;
    wait_for(&mut pair.a.cq, 9, WcOpcode::RDMA_WRITE)?;
    assert!(is_empty(&mut pair.a.cq));
    assert_eq!(into.read(0..11), b"\0\0\0\0\0\0\0\0now");
    Ok(())
}

fn borrowed_memory_is_sent_and_received_in_a_scope<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { pd, a, b, .. } = Pair::new(context, &Shape::default())?;
    let (mut a_cq, mut b_cq) = (a.cq, b.cq);
    let out = pattern(4, 9000);
    let mut inbox = vec![0; 10_000];
    let (done, (a, b)) = pd.scope((a.qp, b.qp), |scope, (mut a, mut b)| -> CaseResult {
        let mut room = scope.register(&mut inbox)?;
        let shared = scope.register_bytes(&out)?;
        for _ in 0..3 {
            b.post_recv_buf(room, ..)?;
            a.post_send_buf(SendOp::Send, NONE, shared.clone(), ..)?;
            drop(next_completed(&mut a_cq)?);
            let returned: Option<Returned> = next_completed(&mut b_cq)?.returned;
            let Some(back) = returned.and_then(|returned| scope.reclaim(returned)) else {
                return fail("the completion did not return the memory");
            };
            room = back;
            assert!(room[..9000] == shared[..]);
            room.fill(0);
        }
        b.post_recv_buf(room, ..)?;
        a.post_send_buf(SendOp::Send, NONE, shared, ..5000)?;
        drop((next_completed(&mut a_cq)?, next_completed(&mut b_cq)?));
        Ok(())
    });
    done?;
    assert!(a.is_some() && b.is_some());
    assert!(inbox[..5000] == out[..5000] && inbox[5000..] == [0; 5000]);
    Ok(())
}

fn a_scope_that_is_left_early_ends_its_requests<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { pd, a, b, .. } = Pair::new(context, &Shape::default())?;
    let mut inbox = vec![0; 4096];
    let (number, a_qp) = pd.scope(a.qp, |scope, mut a| {
        a.post_recv_buf(scope.register(&mut inbox)?, ..).map_err(verbs::Error::from)
    });
    number?;
    assert!(a_qp.is_none(), "a receive was in flight");
    // Nothing can reach the memory now, because the queue pair is destroyed.
    inbox.fill(7);
    let mut b_qp = b.qp;
    b_qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"too late")?;
    let mut b_cq = b.cq;
    assert_eq!(wait_one(&mut b_cq)?.status, WcStatus::RETRY_EXC_ERR);
    assert!(inbox.iter().all(|byte| *byte == 7));
    Ok(())
}

fn a_scope_whose_closure_panics_ends_its_requests<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { pd, a, .. } = Pair::new(context, &Shape::default())?;
    let mut inbox = vec![0; 4096];
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pd.scope(a.qp, |scope, mut a| {
            let posted = scope.register(&mut inbox).map(|buf| a.post_recv_buf(buf, ..).is_ok());
            std::panic::resume_unwind(Box::new(posted.unwrap_or(false)));
        })
    }));
    let posted = unwound.err().and_then(|panic| panic.downcast::<bool>().ok());
    assert_eq!(posted.as_deref(), Some(&true), "it was to panic after it had posted");
    inbox.fill(7);
    drop(a.cq);
    // Every object in the domain is destroyed.
    pd.close()?;
    assert!(context.query_port(PORT).is_ok());
    Ok(())
}
