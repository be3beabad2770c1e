//! Records the RDMA netlink messages of discovery, in the format of `src/discovery/testdata`. The
//! README there describes how to set up the guest.
//!
//! | line | contents |
//! |---|---|
//! | `# TEXT` | the kernel's release; the result of discovery |
//! | `> HEX` | a datagram to the kernel |
//! | `< PORT HEX` | a datagram and the port that sent it |
//! | `! ERRNO` | the errno received instead of a datagram |
//! | `= NAME GUID` | a device that rdma-core's `ibv_devices` listed, if that is installed |
//!
//! # Safety
//! The recorder passes the kernel's messages to discovery unchanged.
#![allow(unsafe_code)]

use std::process::Command;

use verbs_core::Errno;
use verbs_core::discovery::{NetlinkSocket, Roots, Wire, discover_at};

fn main() -> verbs_core::Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("# Linux {}", release.trim());
    let roots = Roots::system();
    let mut recorder = NetlinkSocket::open().map(Recorder);
    let netlink = recorder.as_mut().map(|wire| wire as &mut dyn Wire).map_err(|errno| *errno);
    // SAFETY: the files are the system's and the recorder changes no message, so the devices are
    // the kernel's.
    let found = unsafe { discover_at(&roots, netlink) }?;
    println!("# told by {:?}", found.source);
    for device in found.devices {
        println!("# {} {}", device.name(), device.node_guid());
    }
    for skipped in found.skipped {
        println!("# {skipped}");
    }
    if let Ok(theirs) = Command::new("ibv_devices").output() {
        for line in String::from_utf8_lossy(&theirs.stdout).lines().skip(2) {
            println!("= {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    Ok(())
}

/// A netlink connection that forwards all messages and prints them.
struct Recorder(NetlinkSocket);

impl Wire for Recorder {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        println!("> {}", hex(datagram));
        self.0.send(datagram)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        let received = self.0.recv(buffer);
        match received {
            Ok((len, sender)) => println!("< {sender} {}", hex(&buffer[..len.min(buffer.len())])),
            Err(errno) => println!("! {}", errno.raw()),
        }
        received
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
