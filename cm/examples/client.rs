//! Sends a message to a `server` and prints the reply: `client ADDRESS:PORT MESSAGE`.
//!
//! With `VERBS_SOFT=auto`, it runs on any machine.

use std::env;
use std::time::Duration;

use rdmacm::Connector;
use verbs::{Result, SendFlags, SendOp};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let [address, message] = [1, 2].map(|at| env::args().nth(at).expect("ADDRESS:PORT MESSAGE"));
    let mut server = Connector::default().connect(address)?;
    let pd = &server.resources.pd;
    server.qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
    let message = pd.register(message.into_bytes())?;
    server.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
    server.resources.next_send(PATIENCE)?.ok()?;
    let received = server.resources.next_recv(PATIENCE)?.ok()?;
    let len = received.received();
    println!("{}", String::from_utf8_lossy(&received.into_buf()?[..len]));
    server.disconnect(PATIENCE)?;
    Ok(())
}
