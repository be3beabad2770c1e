//! All steps up to the queue pairs in INIT. They follow the C program's order, because the first
//! failure determines the message.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::{O_CREAT, O_NOFOLLOW};
use verbs::state::{Init, State};
use verbs::{
    AccessFlags, CompChannel, Context, Cq, CqInit, InitAttr, LinkLayer, Pd, PortAttr, Qp, QpCap, QpInit, Srq,
    SrqInit, Xrcd, XrcdInit,
};

use crate::console::{Console, Failed, list_devices_or};
use crate::pingpong::advice::NO_LID;
use crate::pingpong::endpoint::Message;
use crate::pingpong::options::Options;
use crate::pingpong::setup::{lacks, map};

/// The objects of a ping-pong, without the queue pairs.
#[derive(Debug)]
pub struct Setup {
    /// The context of the opened device.
    pub context: Context,
    /// The attributes of the device's port.
    pub port: PortAttr,
    /// The channel for received messages, if the program sleeps.
    pub channel: Option<CompChannel>,
    /// The protection domain of all objects.
    pub pd: Pd,
    /// The message.
    pub message: Message,
    /// The file that identifies the XRC domain, if it can be opened.
    pub file: Option<File>,
    /// The XRC domain, which clients on the same device share.
    pub xrcd: Xrcd,
    /// The completion queue of receives.
    pub recv_cq: Cq,
    /// The completion queue of sends.
    pub send_cq: Cq,
    /// The shared receive queue of all messages.
    pub srq: Srq,
}

/// The queue pairs connected to one client or to the server.
#[derive(Debug)]
pub struct Pair<S: State> {
    /// The XRC target, for receives.
    pub recv: Qp<S>,
    /// The XRC initiator, for sends.
    pub send: Qp<S>,
}

/// Opens the requested device.
///
/// # Errors
/// Fails if the device does not exist or cannot be opened. The failure has been reported.
fn open(options: &Options, console: &mut Console) -> Result<Context, Failed> {
    const FAILED: &str = "Failed to open device";
    let list = list_devices_or(console, |console, _| {
        // The first message of the C program lacks a line break.
        console.complain(format_args!("Failed to get IB devices list{FAILED}"));
    });
    let list = list.ok_or(Failed)?;
    let mut fail = |line: String, reason: &dyn fmt::Display| {
        console.complain(line);
        console.complain(FAILED);
        console.because(reason)
    };
    let name = options.ib_dev.as_deref().unwrap_or_default();
    let found = match &options.ib_dev {
        None => list.first(),
        Some(name) => list.find(&name.to_string_lossy()),
    };
    let device = found.map_err(|error| fail(format!("IB device {} not found", name.display()), &error))?;
    device.open().map_err(|error| fail(format!("Couldn't get context for {}", device.name()), &error))
}

/// Creates all objects.
///
/// # Errors
/// Fails if an object cannot be created, or the device lacks a requested feature. The failure has
/// been reported.
pub fn build(options: &Options, console: &mut Console) -> Result<(Setup, Vec<Pair<Init>>), Failed> {
    let context = open(options, console)?;
    let clients = u32::try_from(options.clients).unwrap_or(0);
    let fail = |line: &str, reason: &dyn fmt::Display, console: &mut Console| {
        console.complain(line);
        console.because(reason)
    };
    if options.odp {
        let attr = context.query_device_ex();
        let attr = attr.map_err(|error| fail("Couldn't query device for its features", &error, console))?;
        if let Some((line, reason)) = lacks(&attr, options) {
            return Err(fail(line, &format_args!("{}: {reason}", context.device_name()), console));
        }
    }
    let port = context.query_port(options.ib_port);
    let port = port.map_err(|error| fail("Failed to get port info", &error, console))?;
    if port.link_layer != LinkLayer::ETHERNET && port.lid == 0 {
        return Err(fail("Couldn't get local LID", &NO_LID, console));
    }
    let buffer = map(options).map_err(|reason| fail("Couldn't allocate work buf.", &reason, console))?;
    let channel = options.events.then(|| context.create_comp_channel()).transpose();
    let channel = channel.map_err(|error| fail("Couldn't create completion channel", &error, console))?;
    let pd = context.alloc_pd().map_err(|error| fail("Couldn't allocate PD", &error, console))?;
    let mut access = AccessFlags::LOCAL_WRITE;
    access.set(AccessFlags::ON_DEMAND, options.odp);
    let mr = buffer.register(&pd, access);
    let mr = mr.map_err(|error| fail("Couldn't register MR", &error, console))?;

    let file = open_domain_file().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        let line = "Couldn't create the file for the XRC Domain but not stopping";
        console.complain(format_args!("{line} {errno}"));
    });
    let file = file.ok();
    let init = XrcdInit { file: file.as_ref().map(AsFd::as_fd), create: true, exclusive: false };
    let xrcd = context.open_xrcd(&init).map_err(|error| {
        fail(&format!("Couldn't Open the XRC Domain {}", error.errno.raw()), &error, console)
    })?;

    let init = CqInit { channel: channel.as_ref(), ..CqInit::new(clients) };
    let recv_cq = context.create_cq(&init);
    let mut recv_cq = recv_cq.map_err(|error| fail("Couldn't create recv CQ", &error, console))?;
    if options.events {
        let armed = recv_cq.req_notify(false);
        armed.map_err(|error| fail("Couldn't request CQ notification", &error, console))?;
    }
    let send_cq = context.create_cq(&CqInit::new(clients));
    let send_cq = send_cq.map_err(|error| fail("Couldn't create send CQ", &error, console))?;
    let srq = xrcd.create_srq(&pd, &recv_cq, &SrqInit::new(clients));
    let srq = srq.map_err(|error| fail("Couldn't create SRQ", &error, console))?;

    let attr = InitAttr { port_num: options.ib_port, ..InitAttr::default() };
    let sends = u32::try_from(i64::from(options.clients) * i64::from(options.tests.max(1)));
    let cap = QpCap {
        max_send_wr: sends.unwrap_or(u32::MAX),
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 0,
        max_inline_data: 0,
    };
    let init = QpInit { cap, ..QpInit::new(options.program.qp_type(), &send_cq) };
    let mut pair = |index: u32| {
        let mut not_created = |which: &str, error: &verbs::Error| {
            let errno = error.errno.raw();
            fail(&format!("Couldn't create {which} QP[{index}] errno {errno}"), error, console)
        };
        let recv = xrcd.create_target().map_err(|error| not_created("recv", &error))?;
        let send = pd.create_qp(&init).map_err(|error| not_created("send", &error))?;
        let mut not_modified = |which: &str, error: &verbs::Error| {
            fail(&format!("Failed to modify {which} QP[{index}] to INIT"), error, console)
        };
        let recv = recv.to_init(&attr).map_err(|failed| not_modified("recv", &failed.error))?;
        let send = send.to_init(&attr).map_err(|failed| not_modified("send", &failed.error))?;
        Ok(Pair { recv, send })
    };
    let pairs = (0..clients).map(&mut pair).collect::<Result<_, _>>()?;
    let message = Message::new(buffer, mr);
    Ok((Setup { context, port, channel, pd, message, file, xrcd, recv_cq, send_cq, srq }, pairs))
}

/// Opens the file that lets the C programs share a domain. Does not follow a symbolic link, because
/// any user could place one there.
fn open_domain_file() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(O_CREAT | O_NOFOLLOW).mode(0o440).open("/tmp/xrc_domain")
}
