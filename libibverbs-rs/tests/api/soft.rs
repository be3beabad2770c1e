//! Soft devices requested by the program itself.
#![cfg(feature = "soft")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use verbs::soft::{self, Soft};
use verbs::state::{Reset, Rts};
use verbs::{
    Buf, Cause, ConnectAttr, Context, Cq, CqInit, Endpoint, Errno, Pd, Port, Qp, QpInit, QpType,
    RemoteAccess, SendFlags, SendOp, SkipReason,
};

#[test]
fn an_address_is_had_once_and_again_when_the_device_is_gone() {
    // No other process has this address.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 102, high, low]);
    let device = soft::bind(address).unwrap();
    let context = device.open().unwrap();
    assert_eq!(context.find_gid(1).unwrap().gid.to_ipv6().to_canonical(), address);
    let refused = || {
        let error = soft::bind(address).unwrap_err();
        assert_eq!(error.errno, Errno::ADDRINUSE, "{error}");
        let Cause::LeftOut { reason } = &error.cause else { panic!("{error:?}") };
        assert!(matches!(**reason, SkipReason::Address { address: told, port: 4791, .. } if told == address));
    };
    refused();
    // The open context keeps the device.
    drop(device);
    refused();
    drop(context);
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = soft::bind(address) {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[test]
fn an_address_of_another_machine_is_refused_with_the_reason() {
    let error = soft::bind(Ipv4Addr::new(192, 0, 2, 77).into()).unwrap_err();
    assert_eq!(error.errno, Errno::ADDRNOTAVAIL);
    assert!(error.to_string().contains("192.0.2.77 is not an address of this machine"), "{error}");
}

#[test]
fn a_device_has_a_name_and_a_guid_that_no_other_has_and_says_that_it_is_soft() {
    let (first, second) = (soft::auto().unwrap(), soft::auto().unwrap());
    assert!(first.name().starts_with("soft") && first.name() != second.name());
    assert!(first.guid() != second.guid() && first.guid().0 != 0);
    assert_eq!((first.driver().name, first.index(), first.info().dev()), ("soft", None, None));
    assert_eq!(first.transport_type(), verbs::TransportType::IB);
    let context = first.open().unwrap();
    assert_eq!((context.device_name(), context.provider_name()), (first.name(), "soft"));
    assert_eq!(context.query_device().unwrap().node_guid, first.guid());
}

#[test]
fn two_opens_of_a_device_share_it() {
    let device = soft::auto().unwrap();
    let (hidden, named) = (device.open().unwrap(), device.clone().open_as::<Soft>().unwrap());
    assert_eq!(hidden.gid_table().unwrap(), named.gid_table().unwrap());
    // Queue pair numbers are unique per device, not only per context.
    let (one, other) = (End::new(&hidden), End::new(&device.open().unwrap()));
    assert_ne!(one.qp.qp_num(), other.qp.qp_num());
}

#[test]
fn a_device_that_was_asked_for_joins_a_list() {
    let mut list = verbs::devices().unwrap();
    let before = list.len();
    let device = soft::auto().unwrap();
    list.push(device.clone());
    list.push(device.clone());
    assert_eq!(list.len(), before + 1);
    assert_eq!(list.find(device.name()).unwrap().guid(), device.guid());
    // No other list contains the device.
    assert!(verbs::devices().unwrap().find(device.name()).is_err());
}

#[test]
fn two_devices_of_one_process_talk_to_each_other() {
    let (here, there) = (soft::auto().unwrap().open().unwrap(), soft::auto().unwrap().open().unwrap());
    let (a, b) = (End::new(&here), End::new(&there));
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (mut a, a_pd, mut a_cq) = a.connect(&to_b);
    let (mut b, b_pd, mut b_cq) = b.connect(&to_a);
    b.post_recv_buf(b_pd.alloc_buf(4096).unwrap(), ..).unwrap();
    let mut buf = a_pd.alloc_buf(3000).unwrap();
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = at as u8;
    }
    a.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap();
    let (sent, received) = (wait(&mut a_cq), wait(&mut b_cq));
    assert_eq!(received[..3000], sent[..]);
    assert_eq!(received[3000..], [0; 1096]);
}

#[test]
fn a_read_of_a_forgotten_batch_has_its_bytes_once_the_next_send_has_ended() {
    const NONE: SendFlags = SendFlags::empty();
    let (here, there) = (soft::auto().unwrap().open().unwrap(), soft::auto().unwrap().open().unwrap());
    let (a, b) = (End::new(&here), End::new(&there));
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (mut a, a_pd, mut a_cq) = a.connect(&to_b);
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let _b = b.qp.connect(&b.port, &to_a, &ConnectAttr { access, ..ConnectAttr::default() }).unwrap();
    let mut source = b.pd.alloc_buf(308).unwrap();
    source.fill(7);
    let exposed = b.pd.expose(source, access).unwrap();
    let remote = |part: std::ops::Range<usize>| exposed.remote().slice(part).unwrap();
    let mut batch = a.batch();
    batch.post_unsignaled(remote(0..300).read(), NONE, a_pd.alloc_buf(300).unwrap(), ..).unwrap();
    std::mem::forget(batch);
    // The batch removes its own request but not the read.
    let mut batch = a.batch();
    batch.post(SendOp::Send, NONE, a_pd.alloc_buf(8).unwrap(), ..).unwrap();
    assert_eq!(batch.abort().len(), 1);
    a.post_send_buf(remote(300..308).write(), NONE, a_pd.alloc_buf(8).unwrap(), ..).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let returned = loop {
        if let Some(completed) = a_cq.poll_one() {
            break completed.ok().unwrap().returned.unwrap().into_bufs();
        }
        assert!(Instant::now() < deadline, "no completion");
    };
    let lens: Vec<usize> = returned.iter().map(|buf| buf.len()).collect();
    assert_eq!(lens, [8, 300], "the memory of both");
    assert!(returned[1].iter().all(|byte| *byte == 7), "the read was executed");
}

/// One end of a connection between two devices.
struct End {
    port: Port,
    pd: Pd,
    cq: Cq,
    qp: Qp<Reset>,
}

impl End {
    fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(&CqInit::new(8)).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq)).unwrap();
        Self { port: context.port(1).unwrap(), pd, cq, qp }
    }

    fn endpoint(&self) -> Endpoint {
        self.qp.endpoint(&self.port)
    }

    fn connect(self, peer: &Endpoint) -> (Qp<Rts>, Pd, Cq) {
        (self.qp.connect(&self.port, peer, &ConnectAttr::default()).unwrap(), self.pd, self.cq)
    }
}

/// Waits for one completion and returns the buffer of its request.
fn wait(cq: &mut Cq) -> Buf {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(completed) = cq.poll_one() {
            return completed.ok().unwrap().into_buf().unwrap();
        }
        assert!(Instant::now() < deadline, "no completion");
    }
}
