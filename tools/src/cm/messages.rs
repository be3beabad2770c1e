//! `rdma_server`, `rdma_client`, `rdma_xserver` and `rdma_xclient`: one message over a connection
//! made by address. `rdma_server` and `rdma_client` also send one message back.
//!
//! A failed completion ends the program with the reason. The C programs ignore it and wait forever
//! when their peer is gone.
//!
//! # References
//! `rdma_server(1)`, `rdma_client(1)`, `rdma_xserver(1)`, `rdma_xclient(1)`

use std::ffi::OsString;

use rdmacm::{ConnParam, Hints, PortSpace};
use verbs::{Buf, Error, QpCap, QpType};

use super::endpoint::{Endpoint, Listener, start};
use super::options::{Options, Program};
use super::perror;
use crate::console::Console;
use crate::getopt::Getopt;

/// The length of a message, in bytes.
const LEN: usize = 16;

/// A function that runs a program and returns the same value as `main` in C.
type Run = fn(&Options, &mut Console) -> Result<(), i32>;

/// Runs a program with its command line and returns the exit status.
pub fn main(program: Program, mut args: impl Iterator<Item = OsString>) -> u8 {
    let name = args.next().unwrap_or_else(|| program.name().into());
    let mut console = Console::new(name.clone());
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let getopt = Getopt::new(program.spec(), name.clone(), args.collect(), posixly_correct);
    let options = match Options::parse(program, getopt, &mut console) {
        Ok(options) => options,
        Err(status) => return status as u8,
    };
    let (name, run): (String, Run) = match program {
        Program::Server => (program.name().into(), server),
        Program::Client => (program.name().into(), client),
        Program::Xserver => (name.display().to_string(), xserver),
        Program::Xclient => (name.display().to_string(), xclient),
    };
    console.say(format_args!("{name}: start\n"));
    let ret = run(&options, &mut console).err().unwrap_or(0);
    console.say(format_args!("{name}: end {ret}\n"));
    // An exit status has only 8 bits.
    ret as u8
}

fn server(options: &Options, console: &mut Console) -> Result<(), i32> {
    let hints = hints(options, QpType::RC, true);
    let (channel, found) = start(options.server.as_deref(), &options.port, &hints, console)?;
    let listener =
        Listener::bind(channel, &found, BOTH).or_else(|error| failed("rdma_create_ep", &error, console))?;
    listener.listen().or_else(|error| failed("rdma_listen", &error, console))?;
    console.flush();
    let mut end = listener.get_request().or_else(|error| failed("rdma_get_request", &error, console))?;
    let memory = messages(&mut end, Program::Server, console)?;
    end.accept(&ConnParam::default()).or_else(|error| failed("rdma_accept", &error, console))?;
    console.flush();
    let passed = end
        .recv_comp()
        .or_else(|error| failed("rdma_get_recv_comp", &error, console))
        .and_then(|_| send(&mut end, memory, console))
        .and_then(|()| end.send_comp().or_else(|error| failed("rdma_get_send_comp", &error, console)));
    let _ = end.disconnect();
    passed.map(|_| ())
}

fn client(options: &Options, console: &mut Console) -> Result<(), i32> {
    let hints = hints(options, QpType::RC, false);
    let (channel, found) = start(options.server.as_deref(), &options.port, &hints, console)?;
    let mut end = Endpoint::resolve(channel, &found, BOTH)
        .or_else(|error| failed("rdma_create_ep", &error, console))?;
    let memory = messages(&mut end, Program::Client, console)?;
    end.connect(&ConnParam::default()).or_else(|error| failed("rdma_connect", &error, console))?;
    console.flush();
    let passed = send(&mut end, memory, console)
        .and_then(|()| end.send_comp().or_else(|error| failed("rdma_get_send_comp", &error, console)))
        .and_then(|_| end.recv_comp().or_else(|error| failed("rdma_get_recv_comp", &error, console)));
    let _ = end.disconnect();
    passed.map(|_| ())
}

fn xserver(options: &Options, console: &mut Console) -> Result<(), i32> {
    let hints = hints(options, QpType::XRC_RECV, true);
    let (channel, found) = start(None, &options.port, &hints, console)?;
    let cap = if options.xrc { QpCap { max_send_wr: 0, max_send_sge: 0, ..BOTH } } else { BOTH };
    let cap = QpCap { max_inline_data: 0, ..cap };
    let listener =
        Listener::bind(channel, &found, cap).or_else(|error| failed("rdma_create_ep", &error, console))?;
    listener.listen().or_else(|error| failed("rdma_listen", &error, console))?;
    console.flush();
    let mut end = listener.get_request().or_else(|error| failed("rdma_get_request", &error, console))?;
    let srqn = if options.xrc {
        end.create_srq().or_else(|error| failed("rdma_create_srq:", &error, console))?
    } else {
        0
    };
    let memory = end.reg_msgs(LEN).or_else(|error| failed("rdma_reg_msgs", &error, console))?;
    end.post_recv(memory).or_else(|error| failed("rdma_post_recv", &error, console))?;
    let param = ConnParam {
        private_data: &srqn.to_be_bytes(),
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ..ConnParam::default()
    };
    end.accept(&param).or_else(|error| failed("rdma_accept", &error, console))?;
    console.flush();
    end.recv_comp().or_else(|error| failed("rdma_get_recv_comp", &error, console))?;
    let _ = end.disconnect();
    Ok(())
}

fn xclient(options: &Options, console: &mut Console) -> Result<(), i32> {
    let hints = hints(options, QpType::XRC_SEND, false);
    let (channel, found) = start(options.server.as_deref(), &options.port, &hints, console)?;
    // The C program sends inline without requesting space, but a device may reserve no space by
    // default.
    let cap = if options.xrc { QpCap { max_recv_wr: 0, max_recv_sge: 0, ..BOTH } } else { BOTH };
    let mut end =
        Endpoint::resolve(channel, &found, cap).or_else(|error| failed("rdma_create_ep", &error, console))?;
    let peers =
        end.connect(&ConnParam::default()).or_else(|error| failed("rdma_connect", &error, console))?;
    console.flush();
    let srqn = options.xrc.then(|| srq_num(&peers));
    if let Err(error) = end.post_send(&[0; LEN], None, srqn) {
        console.complain(format_args!("rdma_post_send: {}", error.errno.description()));
        return Err(positive("post_send", &error, console));
    }
    end.send_comp().or_else(|error| failed("rdma_get_recv_comp", &error, console))?;
    let _ = end.disconnect();
    Ok(())
}

/// Returns the peer's shared receive queue number, from the private data of its accept message.
fn srq_num(private_data: &[u8]) -> u32 {
    private_data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Posts the receive. If the device cannot send inline, returns the memory to send from.
fn messages(end: &mut Endpoint, program: Program, console: &mut Console) -> Result<Option<Buf>, i32> {
    let inline = end.sends_inline(LEN);
    if !inline {
        let name = program.name();
        console.say(format_args!("{name}: device doesn't support IBV_SEND_INLINE, using sge sends\n"));
    }
    let registered = |what: &str, end: &Endpoint, console: &mut Console| {
        end.reg_msgs(LEN).or_else(|error| failed(&format!("rdma_reg_msgs for {what}"), &error, console))
    };
    let received = registered("recv_msg", end, console)?;
    let sent = if inline { None } else { Some(registered("send_msg", end, console)?) };
    end.post_recv(received).or_else(|error| failed("rdma_post_recv", &error, console))?;
    Ok(sent)
}

fn send(end: &mut Endpoint, memory: Option<Buf>, console: &mut Console) -> Result<(), i32> {
    end.post_send(&[0; LEN], memory, None).or_else(|error| failed("rdma_post_send", &error, console))
}

fn hints(options: &Options, xrc: QpType, passive: bool) -> Hints {
    let (space, qp_type) = if options.xrc { (PortSpace::IB, xrc) } else { (PortSpace::TCP, QpType::RC) };
    Hints { passive, port_space: Some(space), qp_type: Some(qp_type), ..Hints::default() }
}

/// Reports a failed call and returns -1 as the program's result.
fn failed<T>(call: &str, error: &Error, console: &mut Console) -> Result<T, i32> {
    perror(call, error, console);
    Err(-1)
}

/// Reports a failed call and returns its errno as the program's result.
fn positive(call: &str, error: &Error, console: &mut Console) -> i32 {
    perror(call, error, console);
    error.errno.raw()
}

/// The capacity for one message in each direction.
const BOTH: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: LEN as u32 };
