//! A chat over datagrams (UD): prints its endpoint, sends its input lines, prints what arrives.
//!
//! Start `ud_chat`, then `ud_chat 'ENDPOINT'` with the endpoint printed by the first instance. The
//! first instance sends to the peer whose datagram arrived last.

use std::error::Error;
use std::io::stdin;
use std::sync::mpsc::channel;
use std::time::Duration;

use verbs::{AhAttr, CqInit, Endpoint, Grh, InitAttr, QpInit, QpType, RtrAttr, RtsAttr, SendFlags, SendOp};

const QKEY: u32 = 0x1234;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let context = verbs::soft::auto()?.open()?;
    let (pd, port, events) = (context.alloc_pd()?, context.port(1)?, context.create_comp_channel()?);
    let mut received = context.create_cq(&CqInit { channel: Some(&events), ..CqInit::new(16) })?;
    let mut sent = context.create_cq(&CqInit::new(16))?;
    let qp = pd.create_qp(&QpInit { send_cq: sent.handle(), ..QpInit::new(QpType::UD, &received) })?;
    let qp = qp.to_init(&InitAttr { qkey: QKEY, ..InitAttr::default() })?;
    let qp = qp.to_rtr(&RtrAttr::unconnected())?.to_rts(&RtsAttr::default())?;
    let own = qp.endpoint(&port);
    let (mut send, mut recv) = qp.into_split();
    for _ in 0..8 {
        recv.post_recv_buf(pd.alloc_buf(Grh::LEN + 1024)?, ..)?;
    }
    // Printed after posting receives, because a datagram without a receive is lost.
    println!("{own}");
    let (peers, newest) = channel();
    if let Some(peer) = std::env::args().nth(1) {
        let peer: Endpoint = peer.parse()?;
        peers.send((pd.create_ah(&AhAttr::new(&port.gid, peer.gid))?, peer.qp_num))?;
    }
    let mut buf = pd.alloc_buf(1024)?;
    let typing = std::thread::spawn(move || -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut peer = None;
        for line in stdin().lines() {
            let line = line?;
            peer = newest.try_iter().last().or(peer);
            let (ah, qp_num) = peer.as_ref().ok_or("there is no peer yet")?;
            let len = buf.iter_mut().zip(line.bytes()).map(|(to, from)| *to = from).count();
            send.post_send_buf(SendOp::UdSend { to: ah.to(*qp_num, QKEY) }, SendFlags::empty(), buf, ..len)?;
            let completed = sent.poll_within(Duration::from_secs(1))?;
            buf = completed.ok()?.into_buf()?;
        }
        Ok(())
    });
    while !typing.is_finished() {
        received.req_notify(false)?;
        while let Some(completed) = received.poll_one() {
            let (wc, buf) = (completed.wc, completed.ok()?.into_buf()?);
            peers.send((pd.create_ah_from_wc(1, &wc, &buf)?, wc.src_qp)).ok();
            println!("> {}", String::from_utf8_lossy(&buf[Grh::LEN..wc.received()]));
            recv.post_recv_buf(buf, ..)?;
        }
        events.wait(Some(Duration::from_millis(100)))?;
    }
    typing.join().expect("it does not panic")
}
