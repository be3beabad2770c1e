//! Memory that queues own until a completion returns it. Connecting and waiting in safe code.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    Buf, Cause, CompChannel, ConnectAttr, Context, CqInit, Endpoint, HandleError, Memory, PostBufReason,
    Provider, QpInit, QpType, RemoteAccess, SendFlags, SendOp,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    PATIENCE, PORT, Pair, Shape, filled, imm, init_attr, is_empty, next_completed, pattern,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        unsignalled_sends_return_with_the_next_signalled_one,
        an_aborted_batch_sends_nothing,
        memory_is_posted_while_it_is_exposed,
        one_frozen_buffer_goes_to_many_peers,
        memory_of_the_program_is_sent_and_received_in_place,
        a_queue_pair_is_created_on_a_queue_that_another_thread_polls,
        endpoints_travel_as_text_and_connect,
        waiting_ends_in_time_and_with_an_event,
    )
}

const NONE: SendFlags = SendFlags::empty();

fn unsignalled_sends_return_with_the_next_signalled_one<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    for _ in 0..4 {
        pair.b.qp.post_recv_buf(pair.pd.alloc_buf(100)?, ..)?;
    }
    for seed in 0..3 {
        pair.a.qp.post_send_buf_unsignaled(SendOp::Send, NONE, filled(&pair.pd, seed, 100)?, ..)?;
    }
    let number = pair.a.qp.post_send_buf(SendOp::Send, NONE, filled(&pair.pd, 3, 100)?, ..)?;
    for seed in 0..4 {
        let received = next_completed(&mut pair.b.cq)?.into_buf()?;
        assert_eq!(received[..], pattern(seed, 100), "message {seed}");
    }
    let completed = next_completed(&mut pair.a.cq)?;
    assert_eq!(completed.wr_id, number);
    let returned: Vec<_> = completed.returned.into_iter().flat_map(verbs::Returned::into_bufs).collect();
    // The buffers of this send and of all earlier sends, in reverse order of posting.
    let expected = [3, 2, 1, 0].map(|seed| pattern(seed, 100));
    assert!(returned.iter().map(|buf| &buf[..]).eq(expected.iter().map(|bytes| &bytes[..])));
    assert!(is_empty(&mut pair.a.cq), "an unsignalled send has a completion");
    Ok(())
}

fn an_aborted_batch_sends_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let with_imm = |imm_data| SendOp::SendWithImm { imm_data };
    for _ in 0..4 {
        pair.b.qp.post_recv_buf(pair.pd.alloc_buf(8)?, ..)?;
    }
    for aborts in [true, false] {
        let mut batch = pair.a.qp.batch();
        for seed in 0..3 {
            batch.post(with_imm(seed), NONE, filled(&pair.pd, seed, 8)?, ..)?;
        }
        batch.post_inline(7, with_imm(3), SendFlags::SIGNALED, b"copied")?;
        assert_eq!(batch.len(), 4);
        if aborts {
            let returned: Vec<Buf> = batch.abort().into_iter().filter_map(Memory::into_buf).collect();
            let expected = [0, 1, 2].map(|seed| pattern(seed, 8));
            assert!(returned.iter().map(|buf| &buf[..]).eq(expected.iter().map(|bytes| &bytes[..])));
        } else {
            drop(batch);
        }
    }
    // Only the following sends arrive, in order.
    let mut batch = pair.a.qp.batch();
    for imm_data in 10..13 {
        batch.post_unsignaled(with_imm(imm_data), NONE, pair.pd.alloc_buf(8)?, ..)?;
    }
    let last = batch.post(with_imm(13), NONE, pair.pd.alloc_buf(8)?, ..)?;
    assert_eq!(batch.ring()?, 4);
    for imm_data in 10..14 {
        assert_eq!(imm(&next_completed(&mut pair.b.cq)?.wc), Some(imm_data));
    }
    let completed = next_completed(&mut pair.a.cq)?;
    assert_eq!((completed.wr_id, completed.returned.map(Iterator::count)), (last, Some(4)));
    assert!(is_empty(&mut pair.a.cq) && is_empty(&mut pair.b.cq));
    Ok(())
}

fn memory_is_posted_while_it_is_exposed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let all = RemoteAccess::READ | RemoteAccess::WRITE;
    let expose = |len: usize| pair.pd.expose(pair.pd.alloc_buf(len)?, all).map_err(verbs::Error::from);
    let (from, into, read) = (expose(3000)?, expose(3000)?, expose(3000)?);
    from.write_at(0, &pattern(1, 3000));
    pair.b.qp.post_recv_buf(into.clone(), ..)?;
    // A clone is in flight, so the memory stays exposed.
    let Err(HandleError { handle: into, error }) = into.unexpose() else {
        return fail("memory in flight was taken back");
    };
    assert!(matches!(error.cause, Cause::InUse { .. }), "{error}");
    pair.a.qp.post_send_buf(SendOp::Send, NONE, from.clone(), 1000..)?;
    let share = next_completed(&mut pair.b.cq)?.returned.and_then(verbs::Returned::into_exposed);
    assert_eq!(share.map(|share| share.remote()), Some(into.remote()));
    drop(next_completed(&mut pair.a.cq)?);
    // The sender reads its data back, into memory exposed as well.
    let op = SendOp::RdmaRead { remote_addr: into.addr(), rkey: into.rkey() };
    pair.a.qp.post_send_buf(op, NONE, read.clone(), ..2000)?;
    drop(next_completed(&mut pair.a.cq)?);
    for exposed in [into, read] {
        let buf = exposed.unexpose()?;
        assert!(buf[..2000] == pattern(1, 3000)[1000..] && buf[2000..] == [0; 1000]);
    }
    Ok(())
}

fn one_frozen_buffer_goes_to_many_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    const PEERS: usize = 4;
    let mut pairs =
        (0..PEERS).map(|_| Pair::new(context, &Shape::default())).collect::<CaseResult<Vec<_>>>()?;
    // All queue pairs in one protection domain may read the same memory.
    let pd = pairs[0].pd.clone();
    let port = context.port(PORT)?;
    let mut cq = context.create_cq(&CqInit::new(32))?;
    let mut frozen = filled(&pd, 5, 5000)?.freeze();
    let mut senders = Vec::new();
    for pair in &mut pairs {
        let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let receiver = pair.pd.create_qp(&QpInit::new(QpType::RC, &pair.b.cq))?;
        let (here, there) = (qp.endpoint(&port), receiver.endpoint(&port));
        let mut receiver = receiver.connect(&port, &here, &ConnectAttr::default())?;
        let mut sender = qp.connect(&port, &there, &ConnectAttr::default())?;
        receiver.post_recv_buf(pair.pd.alloc_buf(5000)?, ..)?;
        sender.post_send_buf(SendOp::Send, NONE, frozen.clone(), ..)?;
        senders.push((sender, receiver));
    }
    frozen = match frozen.thaw() {
        Ok(_) => return fail("a buffer was thawed while it was in flight"),
        Err(failed) => failed.handle,
    };
    // Devices may not write frozen memory.
    let error = senders[0].1.post_recv_buf(frozen.clone(), ..).unwrap_err();
    assert_eq!((error.returned.is_some(), error.reason), (true, PostBufReason::ReadOnly));
    drop(error);
    for pair in &mut pairs {
        let received = next_completed(&mut pair.b.cq)?.into_buf()?;
        assert_eq!(received[..], pattern(5, 5000));
        let share = next_completed(&mut cq)?.returned.and_then(verbs::Returned::into_frozen);
        assert_eq!(share.as_deref(), Some(&pattern(5, 5000)[..]));
    }
    match frozen.thaw() {
        Ok(mut buf) => buf.fill(0),
        Err(frozen) => return fail(format_args!("the last share was not thawed: {frozen:?}")),
    }
    Ok(())
}

fn memory_of_the_program_is_sent_and_received_in_place<P: Provider>(context: &Context<P>) -> CaseResult {
    static FIXED: [u8; 3000] = [0x5a; 3000];
    let mut pair = Pair::new(context, &Shape::default())?;
    let shared: Arc<[u8]> = pattern(2, 3000).into();
    let messages = [
        Memory::from(pair.pd.register(pattern(1, 3000))?),
        Memory::from(pair.pd.register_bytes(Arc::clone(&shared))?),
        Memory::from(pair.pd.register_bytes(&FIXED[..])?),
    ];
    for (message, expected) in messages.into_iter().zip([&pattern(1, 3000)[..], &shared, &FIXED]) {
        let into = vec![0; 4000];
        let place = into.as_ptr();
        pair.b.qp.post_recv_buf(pair.pd.register(into)?, ..)?;
        pair.a.qp.post_send_buf(SendOp::Send, NONE, message, ..)?;
        let received = next_completed(&mut pair.b.cq)?.into_buf()?;
        let bytes: Vec<u8> = received.into_memory()?;
        assert_eq!((bytes.as_ptr(), bytes.len()), (place, 4000));
        assert!(bytes[..3000] == *expected && bytes[3000..] == [0; 1000]);
        match next_completed(&mut pair.a.cq)?.returned.and_then(|mut returned| returned.next()) {
            Some(Memory::Buf(buf)) => assert_eq!(buf.into_memory::<Vec<u8>>()?, pattern(1, 3000)),
            // Memory with a different type stays registered.
            Some(Memory::Frozen(buf)) => match buf.into_memory::<Arc<[u8]>>() {
                Ok(bytes) => assert_eq!(bytes, shared),
                Err(failed) => assert_eq!(failed.handle.into_memory::<&'static [u8]>()?, &FIXED),
            },
            other => return fail(format_args!("{other:?} returned with a send")),
        }
    }
    Ok(())
}

fn a_queue_pair_is_created_on_a_queue_that_another_thread_polls<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    const COUNT: u32 = 6;
    let (pd, port) = (context.alloc_pd()?, context.port(PORT)?);
    let mut cq = context.create_cq(&CqInit::new(64))?;
    let handle = cq.handle();
    let poller = thread::spawn(move || -> CaseResult<Vec<Buf>> {
        let mut received = Vec::new();
        for _ in 0..2 * COUNT {
            let completed = next_completed(&mut cq)?;
            if completed.opcode.is_recv() {
                received.extend(completed.into_buf());
            }
        }
        Ok(received)
    });
    let mut qps = Vec::new();
    for seed in 0..COUNT {
        let qp = pd.create_qp(&QpInit::new(QpType::RC, &handle))?;
        let own = qp.endpoint(&port);
        let mut qp = qp.connect(&port, &own, &ConnectAttr::default())?;
        qp.post_recv_buf(pd.alloc_buf(500)?, ..)?;
        qp.post_send_buf(SendOp::Send, NONE, filled(&pd, seed, 500)?, ..)?;
        qps.push(qp);
    }
    let Ok(received) = poller.join() else { return fail("the poller panicked") };
    let mut received: Vec<_> = received?.iter().map(|buf| buf.to_vec()).collect();
    let mut expected: Vec<_> = (0..COUNT).map(|seed| pattern(seed, 500)).collect();
    received.sort();
    expected.sort();
    assert!(received == expected, "{} messages", received.len());
    // The poller has dropped the queue.
    let refused = pd.create_qp(&QpInit::new(QpType::RC, &handle));
    assert!(matches!(refused, Err(error) if matches!(error.cause, Cause::Closed { .. })));
    Ok(())
}

fn endpoints_travel_as_text_and_connect<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, port) = (context.alloc_pd()?, context.port(PORT)?);
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let attr = ConnectAttr { access, ..ConnectAttr::default() };
    for qp_type in [QpType::RC, QpType::UC] {
        let mut cqs = [context.create_cq(&CqInit::new(8))?, context.create_cq(&CqInit::new(8))?];
        let one = pd.create_qp(&QpInit::new(qp_type, &cqs[0]))?;
        let other = pd.create_qp(&QpInit::new(qp_type, &cqs[1]))?;
        let texts = [one.endpoint(&port).to_string(), other.endpoint(&port).to_string()];
        let bytes = texts[0].parse::<Endpoint>()?.to_bytes();
        assert_eq!(Endpoint::from_bytes(&bytes)?, one.endpoint(&port));
        let mut one = one.connect(&port, &texts[1].parse()?, &attr)?;
        let mut other = other.connect(&port, &texts[0].parse()?, &attr)?;
        for seed in 0..2 {
            let (sender, receiver) = if seed == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
            receiver.post_recv_buf(pd.alloc_buf(5000)?, ..)?;
            sender.post_send_buf(SendOp::Send, NONE, filled(&pd, seed, 5000)?, ..)?;
            let (send_cq, recv_cq) = (seed as usize, 1 - seed as usize);
            drop(next_completed(&mut cqs[send_cq])?);
            let received = next_completed(&mut cqs[recv_cq])?.into_buf()?;
            assert_eq!(received[..], pattern(seed, 5000), "{qp_type}");
        }
    }
    // A datagram queue pair has no peer. The error returns it unchanged.
    let cq = context.create_cq(&CqInit::new(8))?;
    let qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
    let own = qp.endpoint(&port);
    let Err(HandleError { handle: qp, error }) = qp.connect(&port, &own, &attr) else {
        return fail("a UD queue pair was connected");
    };
    assert!(error.to_string().contains("has no peer"), "{error}");
    qp.to_init(&init_attr())?;
    Ok(())
}

fn waiting_ends_in_time_and_with_an_event<P: Provider>(context: &Context<P>) -> CaseResult {
    const SHORT: Duration = Duration::from_millis(30);
    let mut pair = Pair::new(context, &Shape { events: true, ..Shape::default() })?;
    let Some(channel) = pair.b.channel.take() else { return fail("no channel") };
    pair.b.cq.req_notify(false)?;
    let started = Instant::now();
    assert_eq!(channel.wait(Some(SHORT))?, None);
    assert!(started.elapsed() >= SHORT && started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert_eq!(context.async_events()?.wait(Some(Duration::ZERO))?, None);
    // Another thread waits, whether or not the message has already arrived.
    let id = pair.b.cq.id();
    let wait = move |channel: &CompChannel| channel.wait(Some(PATIENCE));
    let event = thread::scope(|scope| -> CaseResult<_> {
        let waiter = scope.spawn(|| wait(&channel));
        pair.b.qp.post_recv_buf(pair.pd.alloc_buf(8)?, ..)?;
        pair.a.qp.post_send_buf(SendOp::Send, NONE, pair.pd.alloc_buf(8)?, ..)?;
        match waiter.join() {
            Ok(event) => Ok(event?),
            Err(_) => fail("the waiter panicked"),
        }
    })?;
    assert_eq!(event.map(|event| event.cq), Some(id));
    drop(next_completed(&mut pair.b.cq)?);
    assert_eq!(channel.wait(Some(Duration::ZERO))?, None, "one event for one request");
    Ok(())
}
