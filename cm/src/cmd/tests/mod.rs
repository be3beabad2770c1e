//! Tests of each command's bytes and of short or absurd replies.

mod calls;
mod queries;

use std::sync::Arc;

use verbs::{Ece, Errno, Gid, QpType};
use zerocopy::IntoBytes;

use crate::channel::{Expect, Reply, Scripted, Ucma, hex};
use crate::cmd::{addr, conn, event, id, mcast, option, query};
use crate::types::{Address, ConnParam, EventType, IbAddress, PortSpace, Service};

/// Returns the address 192.0.2.1:7471.
fn v4() -> Address {
    ([192, 0, 2, 1], 7471).into()
}

/// Returns the address's bytes in a field for IPv6 addresses.
fn v4_in6() -> String {
    format!("02001d2fc0000201{}", "00".repeat(20))
}

/// Returns the address's bytes in a field for any address.
fn v4_storage() -> String {
    format!("02001d2fc0000201{}", "00".repeat(120))
}

fn ib() -> Address {
    IbAddress::new(Gid([1; 16]), PortSpace::TCP, 80).into()
}

/// Returns zero bytes in hexadecimal.
fn zeros(count: usize) -> String {
    "00".repeat(count)
}

/// Returns a kernel that expects one command and sends one reply.
fn kernel(command: &str, reply: Reply) -> (Scripted, Arc<Ucma>) {
    let kernel = Scripted::new([Expect::command(command, reply)]);
    let ucma = kernel.ucma(true);
    (kernel, ucma)
}

/// Returns a kernel that replies to any one command.
fn replying(reply: Reply) -> Arc<Ucma> {
    Scripted::new([Expect::anything(reply)]).ucma(true)
}
