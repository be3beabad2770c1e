//! A key-value store over RDMA: clients read and write the table directly, without executing code
//! on the server.
//!
//! The program is the server. It starts itself again as a client, which has its own device.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use verbs::state::Rts;
use verbs::{Buf, ConnectAttr, Cq, CqInit, Qp, QpInit, QpType, RemoteAccess, RemoteMr, SendFlags, SendOp};

const SLOT: usize = 64;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Exposes a table to one client until the client closes the stream.
fn serve(listener: &TcpListener) -> Result<()> {
    let context = verbs::soft::auto()?.open()?;
    let (pd, port, cq) = (context.alloc_pd()?, context.port(1)?, context.create_cq(&CqInit::new(1))?);
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let table = pd.expose(pd.alloc_buf(1024 * SLOT)?, access)?;
    let (mut stream, _) = listener.accept()?;
    let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
    let client = qp.endpoint(&port).exchange(&mut stream)?;
    let _qp = qp.connect(&port, &client, &ConnectAttr { access, ..ConnectAttr::default() })?;
    stream.write_all(&table.remote().to_bytes())?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Client {
    qp: Qp<Rts>,
    cq: Cq,
    table: RemoteMr,
    slot: Option<Buf>,
    _stream: TcpStream,
}

impl Client {
    fn connect(address: &str) -> Result<Self> {
        let context = verbs::soft::auto()?.open()?;
        let (pd, port, cq) = (context.alloc_pd()?, context.port(1)?, context.create_cq(&CqInit::new(16))?);
        let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let mut stream = TcpStream::connect(address)?;
        let server = qp.endpoint(&port).exchange(&mut stream)?;
        let qp = qp.connect(&port, &server, &ConnectAttr::default())?;
        let mut table = [0; 20];
        stream.read_exact(&mut table)?;
        let (table, slot) = (RemoteMr::from_bytes(&table), Some(pd.alloc_buf(SLOT)?));
        Ok(Self { qp, cq, table, slot, _stream: stream })
    }

    /// Executes an operation on the buffer and returns the buffer.
    fn run(&mut self, op: SendOp<'_>, buf: Buf) -> Result<&mut Buf> {
        self.qp.post_send_buf(op, SendFlags::empty(), buf, ..)?;
        let completed = self.cq.poll_within(std::time::Duration::from_secs(5))?;
        Ok(self.slot.insert(completed.ok()?.into_buf()?))
    }

    fn put(&mut self, key: usize, value: &[u8]) -> Result<()> {
        let slot = self.table.slice(key * SLOT..(key + 1) * SLOT)?;
        let mut buf = self.slot.take().ok_or("an earlier request failed")?;
        buf.fill(0);
        buf.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        self.run(slot.write(), buf).map(drop)
    }

    fn get(&mut self, key: usize) -> Result<&[u8]> {
        let slot = self.table.slice(key * SLOT..(key + 1) * SLOT)?;
        let buf = self.slot.take().ok_or("an earlier request failed")?;
        Ok(self.run(slot.read(), buf)?.split(|byte| *byte == 0).next().unwrap_or_default())
    }
}

fn main() -> Result<()> {
    if let Some(address) = std::env::args().nth(1) {
        let mut store = Client::connect(&address)?;
        store.put(7, b"seven")?;
        println!("7 is {}", String::from_utf8_lossy(store.get(7)?));
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = Command::new(std::env::current_exe()?);
    client.arg(listener.local_addr()?.to_string());
    let server = std::thread::spawn(move || serve(&listener));
    client.status()?.success().then_some(()).ok_or("the client failed")?;
    server.join().expect("it does not panic")
}
