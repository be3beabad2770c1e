//! Threads share one completion queue without a lock: one thread creates queue pairs on the queue,
//! another thread polls the queue and reposts each buffer, and clients send.

use std::collections::HashMap;
use std::error::Error;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use verbs::state::Rts;
use verbs::{
    ConnectAttr, Context, Cq, CqHandle, CqInit, Pd, Qp, QpInit, QpType, RecvHalf, SendFlags, SendOp,
};

const CLIENTS: usize = 3;
const MESSAGES: usize = 20;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn connect(context: &Context, pd: &Pd, cq: &CqHandle, mut stream: TcpStream) -> Result<Qp<Rts>> {
    let port = context.port(1)?;
    let qp = pd.create_qp(&QpInit::new(QpType::RC, cq))?;
    let peer = qp.endpoint(&port).exchange(&mut stream)?;
    Ok(qp.connect(&port, &peer, &ConnectAttr::default())?)
}

/// Accepts connections and sends the poller a receive half for each.
fn accept(context: &Context, listener: TcpListener, cq: &CqHandle, poller: Sender<RecvHalf>) -> Result<()> {
    let pd = context.alloc_pd()?;
    for _ in 0..CLIENTS {
        let (_, mut recv) = connect(context, &pd, cq, listener.accept()?.0)?.into_split();
        for _ in 0..8 {
            recv.post_recv_buf(pd.alloc_buf(1024)?, ..)?;
        }
        poller.send(recv)?;
    }
    Ok(())
}

/// Polls one completion per message. Returns the number of bytes received from all clients.
fn poll(mut cq: Cq, new: Receiver<RecvHalf>) -> Result<usize> {
    let (mut halves, mut bytes) = (HashMap::<u32, RecvHalf>::new(), 0);
    for _ in 0..CLIENTS * MESSAGES {
        let completed = cq.poll_within(PATIENCE)?.ok()?;
        bytes += completed.received();
        // A completion may arrive before its queue pair is handed over. A closed queue pair is
        // never handed over.
        while !halves.contains_key(&completed.qp_num) && cq.has_qp(completed.qp_num) {
            let half = new.recv()?;
            halves.insert(half.qp_num(), half);
        }
        if let Some(half) = halves.get_mut(&completed.qp_num) {
            half.post_recv_buf(completed.into_buf()?, ..)?;
        }
    }
    Ok(bytes)
}

fn client(context: &Context, address: SocketAddr) -> Result<()> {
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(4))?);
    let mut qp = connect(context, &pd, &cq.handle(), TcpStream::connect(address)?)?;
    for _ in 0..MESSAGES {
        qp.post_send_buf(SendOp::Send, SendFlags::empty(), pd.alloc_buf(1024)?, ..)?;
        cq.poll_within(PATIENCE)?.ok()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let context = verbs::soft::auto()?.open()?;
    let (cq, listener) = (context.create_cq(&CqInit::new(256))?, TcpListener::bind("127.0.0.1:0")?);
    let (handle, address, (to_poller, new)) = (cq.handle(), listener.local_addr()?, channel());
    let poller = thread::spawn(|| poll(cq, new));
    thread::scope(|scope| {
        let acceptor = scope.spawn(|| accept(&context, listener, &handle, to_poller));
        let clients = [(); CLIENTS].map(|()| scope.spawn(|| client(&context, address)));
        clients.into_iter().try_for_each(|client| client.join().expect("it does not panic"))?;
        acceptor.join().expect("it does not panic")
    })?;
    println!("{} bytes from {CLIENTS} clients", poller.join().expect("it does not panic")?);
    Ok(())
}
