//! Echoes each client's message, using one thread per client: `server [ADDRESS:PORT]`.
//!
//! With `VERBS_SOFT=auto`, it runs on any machine, as does its `client`.

use std::time::Duration;
use std::{env, thread};

use rdmacm::{Connection, Listener};
use verbs::{Result, SendFlags, SendOp};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let listener = Listener::bind(env::args().nth(1).unwrap_or("0.0.0.0:7471".into()))?;
    println!("listening on {}", listener.local_addr());
    loop {
        let client = listener.accept()?;
        thread::spawn(|| serve(client).unwrap_or_else(|error| eprintln!("server: {error}")));
    }
}

fn serve(mut client: Connection) -> Result<()> {
    client.qp.post_recv_buf(client.resources.pd.alloc_buf(4096)?, ..)?;
    let received = client.resources.next_recv(PATIENCE)?.ok()?;
    let len = received.received();
    client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), received.into_buf()?, ..len)?;
    client.resources.next_send(PATIENCE)?.ok()?;
    client.control.wait(PATIENCE)?;
    Ok(())
}
