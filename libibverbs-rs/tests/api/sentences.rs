//! Error messages on a soft device: each message names the cause and the remedy.
#![cfg(feature = "soft")]

use std::io::{Cursor, ErrorKind, Read, Write};
use std::time::Duration;

use verbs::state::{Reset, Rts};
use verbs::{
    AhAttr, Cause, ConnectAttr, Context, Cq, CqInit, Endpoint, Errno, FlushPlacement, FlushSelectivity, Gid,
    InitAttr, MwType, OpKind, Pd, Port, PostBufReason, PostReason, Qp, QpInit, QpType, SendFlags, SendOp,
    SrqInit,
};

struct Setup {
    context: Context,
    pd: Pd,
    cq: Cq,
    port: Port,
}

impl Setup {
    fn new() -> Self {
        let context = verbs::soft::auto().unwrap().open().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(16)).unwrap());
        let port = context.port(1).unwrap();
        Self { context, pd, cq, port }
    }

    fn qp(&self, qp_type: QpType) -> Qp<Reset> {
        self.pd.create_qp(&QpInit::new(qp_type, &self.cq)).unwrap()
    }

    /// Returns a queue pair connected to itself.
    fn connected(&self) -> Qp<Rts> {
        let qp = self.qp(QpType::RC);
        let own = qp.endpoint(&self.port);
        qp.connect(&self.port, &own, &ConnectAttr::default()).unwrap()
    }

    /// Returns an error message with this device's name in place of `{}`.
    fn of_device(&self, sentence: &str) -> String {
        sentence.replace("{}", self.context.device_name())
    }
}

const FLUSH: SendOp<'static> = SendOp::Flush {
    remote_addr: 0,
    rkey: 0,
    length: 1,
    placement: FlushPlacement::GLOBAL,
    selectivity: FlushSelectivity::RANGE,
};

#[test]
fn a_group_is_refused_to_a_connected_queue_pair_although_the_device_has_its_type() {
    let s = Setup::new();
    let group: Gid = "ff0e::1".parse().unwrap();
    let text = s.of_device(
        "attach_mcast on {}: the queue pair is of the type RC, and only UD queue pairs join multicast groups (EINVAL)",
    );
    let mut qp = s.qp(QpType::RC);
    assert_eq!(qp.attach_mcast(&group, 0).unwrap_err().to_string(), text);
    let detached = qp.detach_mcast(&group, 0).unwrap_err().to_string();
    assert!(detached.contains("not attached to the group ff0e::1"), "{detached}");
}

#[test]
fn an_operation_that_another_call_posts_names_that_call() {
    let s = Setup::new();
    let mut qp = s.connected();
    let other = |op| PostBufReason::Post(PostReason::OtherCall { op });
    let (read, add) = (
        SendOp::RdmaRead { remote_addr: 0, rkey: 0 },
        SendOp::AtomicFetchAndAdd { remote_addr: 0, rkey: 0, add: 1 },
    );
    for (op, kind) in [(read, OpKind::RDMA_READ), (add, OpKind::ATOMIC_FETCH_AND_ADD)] {
        let reason = qp.post_send_op(1, op, SendFlags::empty()).unwrap_err();
        assert_eq!(reason, other(kind));
        assert!(reason.to_string().contains("post it with memory, by post_send_buf"), "{reason}");
    }
    let buf = s.pd.alloc_buf(8).unwrap();
    let error = qp.post_send_buf(FLUSH, SendFlags::empty(), buf, ..).unwrap_err();
    assert_eq!(error.reason, other(OpKind::FLUSH));
    assert_eq!(error.to_string(), "Flush takes no local memory: post it by post_send_op");
    assert!(error.returned.is_some());
    assert_eq!(qp.post_send_inline(1, FLUSH, SendFlags::empty(), b"x"), Err(other(OpKind::FLUSH)));
    let invalidate = SendOp::LocalInv { invalidate_rkey: 3 };
    let reason = qp.post_send_op(1, invalidate, SendFlags::empty()).unwrap_err();
    assert_eq!(reason.to_string(), "a window is revoked by post_revoke");
}

#[test]
fn memory_of_another_type_is_named_by_both_types() {
    let s = Setup::new();
    let registered = s.pd.register(vec![0_u8; 8]).unwrap();
    let text = registered.into_memory::<Box<[u8]>>().unwrap_err().error.to_string();
    let wanted = "dereg_mr on {}: the buffer holds alloc::vec::Vec<u8>, not alloc::boxed::Box<[u8]> (EINVAL)";
    assert_eq!(text, s.of_device(wanted));
}

#[test]
fn an_address_of_the_other_family_is_named_beside_that_of_the_device() {
    let s = Setup::new();
    let (from, to): (_, Gid) = (s.port.gid.gid, "2001:db8::9".parse().unwrap());
    let cause = Cause::Unreachable { from, to };
    let error = s.pd.create_ah(&AhAttr::new(&s.port.gid, to)).unwrap_err();
    assert_eq!((error.errno, &error.cause), (Errno::NETUNREACH, &cause));
    let own = from.to_ipv4().unwrap();
    let text = format!("2001:db8::9 is not reached from {own}, which is of another address family");
    assert!(error.to_string().contains(&text), "{error}");
    let qp = s.qp(QpType::RC);
    let peer = Endpoint { gid: to, ..qp.endpoint(&s.port) };
    let failed = qp.connect(&s.port, &peer, &ConnectAttr::default()).unwrap_err();
    assert_eq!((failed.error.errno, failed.error.cause), (Errno::NETUNREACH, cause));
}

#[test]
fn a_device_whose_objects_are_all_in_use_says_how_many_it_has() {
    let s = Setup::new();
    let refused = |made: &mut dyn FnMut() -> Result<(), verbs::Error>| loop {
        if let Err(error) = made() {
            assert_eq!(error.errno, Errno::NOMEM);
            return error.to_string();
        }
    };
    let text = |verb, max, what| {
        s.of_device(&format!(
            "{verb} on {{}}: the device has {max} {what}, and all are in use: destroy some first (ENOMEM)"
        ))
    };
    let mut pds = Vec::new();
    let refusal = refused(&mut || s.context.alloc_pd().map(|pd| pds.push(pd)));
    assert_eq!(refusal, text("alloc_pd", 16_384, "protection domains"));
    let mut srqs = Vec::new();
    let refusal = refused(&mut || s.pd.create_srq(&SrqInit::new(1)).map(|srq| srqs.push(srq)));
    assert_eq!(refusal, text("create_srq", 16_384, "shared receive queues"));
    let mut qps = Vec::new();
    let refusal = refused(&mut || s.pd.create_qp(&QpInit::new(QpType::UC, &s.cq)).map(|qp| qps.push(qp)));
    assert_eq!(refusal, text("create_qp", 16_000, "queue pairs"));
    let mut windows = Vec::new();
    let refusal = refused(&mut || s.pd.alloc_window(MwType::TYPE_1).map(|window| windows.push(window)));
    assert_eq!(refusal, text("alloc_mw", 65536, "memory regions and windows"));
    let refusal = s.pd.alloc_buf(1).unwrap_err().to_string();
    assert_eq!(refusal, text("reg_mr", 65536, "memory regions and windows"));
}

#[test]
fn memory_that_the_process_does_not_get_is_named_by_its_size() {
    let s = Setup::new();
    for bytes in [1 << 47, usize::MAX] {
        let error = s.pd.alloc_buf(bytes).unwrap_err();
        assert_eq!((error.errno, error.cause), (Errno::NOMEM, Cause::Allocation { bytes: bytes as u64 }));
    }
}

#[test]
fn numbers_that_choose_are_refused_with_their_range() {
    let s = Setup::new();
    for (error, text) in [
        (
            s.context.create_cq(&CqInit { comp_vector: 1, ..CqInit::new(1) }).map(drop).unwrap_err(),
            "create_cq on {}: comp_vector 1 is out of range: the only one is 0 (EINVAL)",
        ),
        (
            s.context.query_pkey(1, 1).map(drop).unwrap_err(),
            "query_pkey on {}: pkey index 1 is out of range: the only one is 0 (EINVAL)",
        ),
        (
            s.qp(QpType::RC).to_init(&InitAttr { pkey_index: 3, ..InitAttr::default() }).unwrap_err().error,
            "modify_qp on {}: pkey_index 3 is out of range: the only one is 0 (EINVAL)",
        ),
        (
            s.context.query_port(2).map(drop).unwrap_err(),
            "query_port on {}: port_num 2 is out of range: the device has 1 alone (EINVAL)",
        ),
    ] {
        assert_eq!(error.to_string(), s.of_device(text));
    }
}

/// A stream whose other end sends these bytes and closes.
struct Peer(Cursor<Vec<u8>>);

impl Read for Peer {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_exchange_with_a_closed_peer_or_a_web_server_says_which_it_was() {
    let s = Setup::new();
    let own = s.qp(QpType::RC).endpoint(&s.port);
    let with = |sent: &[u8]| own.exchange(&mut Peer(Cursor::new(sent.to_vec())));
    assert_eq!(with(&own.to_bytes()).unwrap(), own);
    for (sent, kind, text) in [
        (
            &b""[..],
            ErrorKind::UnexpectedEof,
            "exchange of endpoints: the peer closed the stream without sending its own",
        ),
        (
            &own.to_bytes()[..7],
            ErrorKind::UnexpectedEof,
            "exchange of endpoints: the peer closed the stream after 7 of 32 bytes",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain",
            ErrorKind::InvalidData,
            "exchange of endpoints: the peer sent something else, which begins with \"HTTP/1.1 400 Bad \
             Request\\r\\nConten\"",
        ),
    ] {
        let error = with(sent).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    }
}

#[test]
fn a_failed_completion_names_its_device_and_what_to_look_at() {
    let mut s = Setup::new();
    let (qp, peer) = (s.qp(QpType::RC), s.qp(QpType::RC));
    let (here, there) = (qp.endpoint(&s.port), peer.endpoint(&s.port));
    let mut qp = qp.connect(&s.port, &there, &ConnectAttr::default()).unwrap();
    let _peer = peer.connect(&s.port, &here, &ConnectAttr::default()).unwrap();
    let write = SendOp::RdmaWrite { remote_addr: 0x1000, rkey: 0 };
    qp.post_send_inline(7, write, SendFlags::SIGNALED, b"x").unwrap();
    let failed = s.cq.poll_within(Duration::from_secs(10)).unwrap().ok().unwrap_err();
    let text = format!(
        "work request 7 of queue pair {:#x} of {} failed: remote access error: the key, the range or the rights of the \
         peer's memory do not permit it, or the access flags of its queue pair",
        qp.qp_num(),
        s.context.device_name()
    );
    assert_eq!(failed.to_string(), text);
    let error = verbs::Error::from(failed).to_string();
    let start = format!("poll_cq on {}: work request 7 of queue pair", s.context.device_name());
    assert!(error.starts_with(&start) && error.matches(s.context.device_name()).count() == 1, "{error}");
    // The second way to poll.
    qp.post_send_inline(8, write, SendFlags::SIGNALED, b"x").unwrap();
    let flushed = loop {
        if let Some(completion) = s.cq.poll().next() {
            break completion.ok().unwrap_err();
        }
    };
    assert_eq!(flushed.device, s.context.device_name());
    assert!(flushed.to_string().contains("the cause is in an earlier completion"), "{flushed}");
}

#[test]
fn connect_names_the_steps_of_a_datagram_queue_pair() {
    connect_refuses(QpType::UD, "a datagram queue pair has no peer: move it by to_init, to_rtr and to_rts");
}

#[test]
fn connect_names_the_steps_of_an_xrc_initiator() {
    let text =
        "connect is for RC and UC: move a queue pair of the type XRC_SEND by to_init, to_rtr and to_rts";
    connect_refuses(QpType::XRC_SEND, text);
}

fn connect_refuses(qp_type: QpType, text: &'static str) {
    let s = Setup::new();
    let qp = s.qp(qp_type);
    let own = qp.endpoint(&s.port);
    let failed = qp.connect(&s.port, &own, &ConnectAttr::default()).unwrap_err();
    assert_eq!(failed.error.cause, Cause::Other { reason: text.into() });
}

#[test]
fn an_xrc_target_in_a_protection_domain_names_the_call_that_creates_it() {
    let s = Setup::new();
    let error = s.pd.create_qp(&QpInit::new(QpType::XRC_RECV, &s.cq)).unwrap_err();
    let text =
        "create_qp on {}: an XRC target belongs to an XRC domain: create it by Xrcd::create_target (EINVAL)";
    assert_eq!(error.to_string(), s.of_device(text));
}

#[test]
fn a_file_that_is_no_device_is_not_imported_and_gets_no_advice_about_soft_devices() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = verbs::import_device(file.into()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("import_device", Errno::NODEV));
    let text = error.to_string();
    assert!(text.contains("the file is that of no") && !text.contains("VERBS_SOFT"), "{text}");
}
