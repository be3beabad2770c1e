//! An echo server with one thread, which waits for connections, completions and events in epoll(7).
//!
//! A client, a thread of the same program, sends three words.

use std::collections::HashMap;
use std::error::Error;
use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use verbs::{ConnectAttr, Context, Cq, CqInit, Pd, Qp, QpInit, QpType, SendFlags, SendOp, WcOpcode};

const SIZE: usize = 1024;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
const LISTENER: u64 = 0;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Connects a new queue pair, with receives posted, to the queue pair at the other end of a stream.
fn connect(context: &Context, pd: &Pd, cq: &Cq, mut stream: TcpStream) -> Result<Qp<verbs::state::Rts>> {
    let port = context.port(1)?;
    let qp = pd.create_qp(&QpInit::new(QpType::RC, cq))?;
    let peer = qp.endpoint(&port).exchange(&mut stream)?;
    let mut qp = qp.connect(&port, &peer, &ConnectAttr::default())?;
    for _ in 0..8 {
        qp.post_recv_buf(pd.alloc_buf(SIZE)?, ..)?;
    }
    Ok(qp)
}

/// Echoes messages until a message is `bye`.
fn serve(context: &Context, listener: &TcpListener) -> Result<()> {
    let (pd, channel) = (context.alloc_pd()?, context.create_comp_channel()?);
    let events = context.async_events()?;
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(64) })?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    epoll.add(&channel, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
    epoll.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 2))?;
    let mut qps = HashMap::new();
    loop {
        let mut ready = [EpollEvent::empty()];
        if epoll.wait(&mut ready, EpollTimeout::from(10_000_u16))? == 0 {
            return Err("the client is silent".into());
        }
        match ready[0].data() {
            LISTENER => {
                let qp = connect(context, &pd, &cq, listener.accept()?.0)?;
                qps.insert(qp.qp_num(), qp);
            }
            1 => drop(channel.next_event()?),
            _ => events.next_event()?.iter().for_each(|event| println!("{event}")),
        }
        cq.req_notify(false)?;
        while let Some(completed) = cq.poll_one() {
            let completed = completed.ok()?;
            let (wc, buf) = (completed.wc, completed.into_buf()?);
            let qp: &mut Qp<verbs::state::Rts> = qps.get_mut(&wc.qp_num).ok_or("a closed connection")?;
            let len = wc.received();
            if !wc.opcode.is_recv() {
                qp.post_recv_buf(buf, ..)?;
            } else if &buf[..len] == b"bye" {
                return Ok(());
            } else {
                qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..len)?;
            }
        }
    }
}

fn client(context: &Context, address: SocketAddr) -> Result<()> {
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?);
    let mut qp = connect(context, &pd, &cq, TcpStream::connect(address)?)?;
    for text in ["hello", "there", "bye"] {
        let mut buf = pd.alloc_buf(SIZE)?;
        buf[..text.len()].copy_from_slice(text.as_bytes());
        qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..text.len())?;
        let wanted = if text == "bye" { WcOpcode::SEND } else { WcOpcode::RECV };
        while cq.poll_within(PATIENCE)?.ok()?.opcode != wanted {}
    }
    Ok(())
}

fn main() -> Result<()> {
    let (context, listener) = (verbs::soft::auto()?.open()?, TcpListener::bind("127.0.0.1:0")?);
    let (address, its) = (listener.local_addr()?, context.clone());
    let client = std::thread::spawn(move || client(&its, address));
    serve(&context, &listener)?;
    println!("the client said bye");
    client.join().expect("it does not panic")
}
