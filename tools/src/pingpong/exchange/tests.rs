//! Tests of both parts against each other, and against a peer that disappears or sends garbage, on
//! loopback.

use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use verbs::Gid;
use verbs_harness::port;

use super::*;

fn dest(qpn: u32) -> Dest {
    Dest { lid: 0, qpn, psn: 0xab_cdef, gid: Gid::from(Ipv4Addr::LOCALHOST) }
}

/// Runs `ask` against a server that runs `serve`. Returns `ask`'s result and the error messages.
fn asked(serve: impl FnOnce(TcpStream) + Send + 'static) -> (Result<Dest, Failed>, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("its number").port();
    in_time("the server and its client", move || {
        let server = thread::spawn(move || serve(listener.accept().expect("a client").0));
        let mut console = Console::captured("pp");
        let result = ask("127.0.0.1".as_ref(), port, Program::Rc, &[dest(0x11)], &mut console);
        let result = result.map(|(remote, _)| remote[0]);
        server.join().expect("the server");
        (result, console.complaints())
    })
}

/// Runs `wait` and `answer` against a client that runs `talk`. Returns the result and error
/// messages.
fn waited(talk: impl FnOnce(TcpStream) + Send + 'static) -> (Result<Dest, Failed>, String) {
    waited_on(free_port(), talk)
}

fn waited_on(port: u16, talk: impl FnOnce(TcpStream) + Send + 'static) -> (Result<Dest, Failed>, String) {
    in_time("the client and its server", move || {
        let client = thread::spawn(move || {
            let stream = loop {
                match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    Ok(stream) => break stream,
                    Err(_) => thread::yield_now(),
                }
            };
            talk(stream);
        });
        let mut console = Console::captured("pp");
        let result = wait(port, Program::Rc, &mut console)
            .and_then(|(client, remote)| client.answer(&[dest(0x22)], &mut console).map(|_| remote[0]));
        client.join().expect("the client");
        (result, console.complaints())
    })
}

/// Runs a closure on a separate thread, which is abandoned if the closure takes too long.
#[track_caller]
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    const LIMIT: Duration = Duration::from_secs(60);
    let (send, done) = mpsc::channel();
    let thread = thread::spawn(move || send.send(run()));
    match done.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: not done within {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("only a panic sends nothing"))
        }
    }
}

fn free_port() -> u16 {
    port::free().expect("a port")
}

/// Reads until the other side closes.
fn drain(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn two_peers_learn_each_others_address() {
    let port = free_port();
    let (heard, complaints) = waited_on(port, move |mut stream| {
        stream.write_all(&dest(0x11).to_wire()).expect("our address");
        let mut wire = [0; WIRE_LEN];
        stream.read_exact(&mut wire).expect("its address");
        assert_eq!(Dest::from_wire(&wire), Some(dest(0x22)));
        stream.write_all(DONE).expect("done");
    });
    assert_eq!((heard, complaints.as_str()), (Ok(dest(0x11)), ""));

    let (heard, complaints) = asked(|mut stream| {
        let mut wire = [0; WIRE_LEN];
        stream.read_exact(&mut wire).expect("its address");
        assert_eq!(Dest::from_wire(&wire), Some(dest(0x11)));
        // Sent in pieces, as a network may deliver it.
        let wire = dest(0x22).to_wire();
        stream.write_all(&wire[..7]).expect("a piece");
        stream.write_all(&wire[7..]).expect("the rest");
        let mut done = [0; DONE.len()];
        stream.read_exact(&mut done).expect("done");
        assert_eq!(&done, DONE);
    });
    assert_eq!((heard, complaints.as_str()), (Ok(dest(0x22)), ""));
}

#[test]
fn a_server_that_goes_away_is_said_to_have() {
    let (heard, complaints) = asked(|stream| {
        let _ = stream.shutdown(Shutdown::Write);
        drain(stream);
    });
    assert_eq!(heard, Err(Failed));
    assert_eq!(
        complaints,
        "client read/write: the peer closed the connection after 0 bytes\n\
         Couldn't read/write remote address\n"
    );
}

#[test]
fn a_server_that_talks_nonsense_is_quoted() {
    let (heard, complaints) = asked(|mut stream| {
        stream.write_all(&[b'\x1b'; WIRE_LEN]).expect("nonsense");
        drain(stream);
    });
    assert_eq!(heard, Err(Failed));
    assert!(complaints.starts_with("Couldn't read/write remote address\npp: the peer sent \"\\x1b\\x1b"));
    assert!(complaints.ends_with("\", which is no lid:qpn:psn:gid\n"));
}

#[test]
fn a_client_that_goes_away_is_said_to_have() {
    let (heard, complaints) = waited(|mut stream| stream.write_all(b"abc").expect("three bytes"));
    assert_eq!(heard, Err(Failed));
    assert_eq!(
        complaints,
        "server read: the peer closed the connection after 3 bytes\n\
         3/52: Couldn't read remote address\n"
    );
}

#[test]
fn a_client_that_talks_nonsense_is_quoted() {
    let (heard, complaints) = waited(|mut stream| {
        stream.write_all(&[b'z'; WIRE_LEN]).expect("nonsense");
        drain(stream);
    });
    assert_eq!(heard, Err(Failed));
    assert!(complaints.starts_with("52/52: Couldn't read remote address\npp: the peer sent \"zzz"));
}

#[test]
fn a_client_that_is_not_done_is_said_to_have_gone() {
    let (heard, complaints) = waited(|mut stream| {
        stream.write_all(&dest(0x11).to_wire()).expect("our address");
        let mut wire = [0; WIRE_LEN];
        stream.read_exact(&mut wire).expect("its address");
    });
    assert_eq!(heard, Err(Failed));
    assert_eq!(
        complaints,
        "Couldn't send/recv local address\npp: the peer closed the connection after 0 bytes\n"
    );
}

#[test]
fn nobody_there_is_said_as_c_says_it_and_why() {
    let mut console = Console::captured("pp");
    let port = free_port();
    let asked = ask("127.0.0.1".as_ref(), port, Program::Rc, &[dest(1)], &mut console);
    assert!(asked.is_err());
    assert_eq!(
        console.complaints(),
        format!("Couldn't connect to 127.0.0.1:{port}\npp: 127.0.0.1:{port}: Connection refused\n")
    );
}

#[test]
fn a_port_that_is_taken_is_said_as_c_says_it_and_why() {
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    let port = taken.local_addr().expect("its number").port();
    let mut console = Console::captured("pp");
    assert_eq!(wait(port, Program::Rc, &mut console).map(|_| ()), Err(Failed));
    let complaints = console.complaints();
    assert!(complaints.starts_with(&format!("Couldn't listen to port {port}\npp: ")), "{complaints}");
}

/// The peer behaves like rdma-core: it makes one write for each of 256 addresses.
#[test]
fn peers_that_share_a_receive_queue_tell_256_addresses() {
    let port = free_port();
    in_time("the client and its server", move || {
        let server = thread::spawn(move || {
            let mut console = Console::captured("pp");
            let (client, remote) = wait(port, Program::Srq, &mut console).expect("a client");
            client.answer(&[dest(0x31), dest(0x32)], &mut console).expect("it is done");
            remote
        });
        let mut console = Console::captured("pp");
        let heard = loop {
            let local = [dest(0x21), dest(0x22), dest(0x23)];
            match ask("127.0.0.1".as_ref(), port, Program::Srq, &local, &mut console) {
                Ok((heard, _)) => break heard,
                Err(Failed) => thread::yield_now(),
            }
        };
        let told = server.join().expect("the server");
        assert_eq!((heard.len(), told.len()), (256, 256));
        assert_eq!(heard[..3], [dest(0x31), dest(0x32), Dest::NONE]);
        assert_eq!(told[..4], [dest(0x21), dest(0x22), dest(0x23), Dest::NONE]);
    });
}

#[test]
fn an_address_among_256_that_is_missing_is_named_as_in_c() {
    let port = free_port();
    let complaints = in_time("the client and its server", move || {
        let client = thread::spawn(move || {
            let mut stream = loop {
                match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    Ok(stream) => break stream,
                    Err(_) => thread::yield_now(),
                }
            };
            stream.write_all(&[dest(1).to_wire(); 7].concat()).expect("seven addresses");
            stream.write_all(b"0000:").expect("a piece");
        });
        let mut console = Console::captured("pp");
        assert!(wait(port, Program::Srq, &mut console).is_err());
        client.join().expect("the client");
        console.complaints()
    });
    assert_eq!(
        complaints,
        "server read: the peer closed the connection after 5 bytes\n\
         5/52: Couldn't read remote address [7]\n"
    );
}
