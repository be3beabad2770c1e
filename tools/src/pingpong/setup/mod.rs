//! All steps up to the queue pair in INIT. They follow the C program's order, because the first
//! failure determines the message.

use verbs::state::{Init, Reset};
use verbs::{
    AccessFlags, CompChannel, Context, Cq, CqInit, CqWcFlags, Device, DeviceAttrEx, DeviceList, DmAttr,
    InitAttr, OdpGeneralCaps, OdpTransportCaps, ParentDomainInit, Pd, Qp, QpCap, QpInit, Srq, SrqInit,
};

use super::endpoint::{Buffer, Endpoint, Message, QKEY, register_everything};
use super::options::{Options, Program};
use crate::console::{Console, Failed, complain_of_no_devices};

/// The objects of a ping-pong, except the endpoint, whose type changes when it is connected.
#[derive(Debug)]
pub struct Setup {
    /// The context of the opened device.
    pub context: Context,
    /// The channel for the completion queue's events, if the program sleeps.
    pub channel: Option<CompChannel>,
    /// The protection domain of all objects; with `-U` a parent domain.
    pub pd: Pd,
    /// The protection domain that the parent domain is based on.
    pub base_pd: Option<Pd>,
    /// The completion queue of sends and receives.
    pub cq: Cq,
    /// With `-t`: the valid bits of a completion's timestamp.
    pub timestamp_mask: Option<u64>,
}

/// Returns the requested device.
///
/// # Errors
/// Fails if the device does not exist; the failure has been reported.
pub fn choose(list: &DeviceList, options: &Options, console: &mut Console) -> Result<Device, Failed> {
    match &options.ib_dev {
        None => list.first().map_err(|_| {
            complain_of_no_devices(console, list);
            Failed
        }),
        Some(name) => list.find(&name.to_string_lossy()).map_err(|error| {
            console.complain(format_args!("IB device {} not found", name.display()));
            console.because(error)
        }),
    }
}

/// Creates all objects.
///
/// # Errors
/// Fails if an object cannot be created, or the device lacks a requested feature. The failure has
/// been reported.
pub fn build(
    device: &Device,
    options: &Options,
    console: &mut Console,
) -> Result<(Setup, Endpoint<Init>), Failed> {
    let mut fail = |line: &str, reason: &dyn std::fmt::Display| {
        console.complain(line);
        console.because(reason)
    };
    let context = device
        .open()
        .map_err(|error| fail(&format!("Couldn't get context for {}", device.name()), &error))?;
    if options.program == Program::Ud {
        let port = context.query_port(options.ib_port);
        let line = format!("Unable to query port info for port {}", options.ib_port);
        let max = 1_u64 << (port.map_err(|error| fail(&line, &error))?.active_mtu.0 + 7).min(63);
        if u64::from(options.size) > max {
            let reason = format_args!("a datagram is one packet: -s {max} at most");
            return Err(fail(&format!("Requested size larger than port MTU ({max})"), &reason));
        }
    }
    let channel = options
        .events
        .then(|| context.create_comp_channel())
        .transpose()
        .map_err(|error| fail("Couldn't create completion channel", &error))?;
    let (pd, base_pd) = if options.cc_unprotected {
        let base = context.alloc_pd().map_err(|error| fail("Couldn't allocate base PD", &error))?;
        let init = ParentDomainInit { allow_cc_unprotected_alloc: true, ..ParentDomainInit::default() };
        let parent = base.alloc_parent_domain(&init);
        (parent.map_err(|error| fail("Couldn't allocate parent domain", &error))?, Some(base))
    } else {
        (context.alloc_pd().map_err(|error| fail("Couldn't allocate PD", &error))?, None)
    };

    let (mut timestamp_mask, mut dm) = (None, None);
    if options.odp || options.timestamps || options.device_memory {
        let attr = context
            .query_device_ex()
            .map_err(|error| fail("Couldn't query device for its features", &error))?;
        if let Some((line, reason)) = lacks(&attr, options) {
            return Err(fail(line, &format_args!("{}: {reason}", device.name())));
        }
        timestamp_mask = options.timestamps.then_some(attr.completion_timestamp_mask);
        if options.device_memory {
            let attr = DmAttr { length: options.size.into(), log_align: 0 };
            let allocated = context.alloc_dm(&attr);
            dm = Some(allocated.map_err(|error| fail("Dev mem allocation failed", &error))?);
        }
    }

    let buffer = map(options).map_err(|reason| fail("Couldn't allocate work buf.", &reason))?;
    let mut access = AccessFlags::LOCAL_WRITE;
    access.set(AccessFlags::ON_DEMAND, options.odp);
    let registered = match &dm {
        // The region is zero-based.
        Some(dm) => pd.reg_dm_mr(dm, 0, options.size as usize, access),
        None if options.implicit_odp => register_everything(&pd, access),
        None => buffer.register(&pd, access),
    };
    let mr = registered.map_err(|error| fail("Couldn't register MR", &error))?;
    let message = match dm {
        Some(dm) => Message::in_device_memory(buffer, mr, dm),
        None => Message::new(buffer, mr),
    };
    if options.prefetch
        && let Err(error) = message.prefetch(&pd)
    {
        let _ = fail(&format!("Couldn't prefetch MR({}). Continue anyway", error.errno.raw()), &error);
    }

    let of_srq = options.program == Program::Srq;
    let sends = if of_srq { options.num_qp } else { 1 };
    let mut init = CqInit { channel: channel.as_ref(), ..CqInit::new(options.rx_depth.wrapping_add(sends)) };
    init.wc_flags.set(CqWcFlags::COMPLETION_TIMESTAMP, options.timestamps);
    init.parent_domain = base_pd.as_ref().map(|_| &pd);
    let cq = context.create_cq(&init).map_err(|error| fail("Couldn't create CQ", &error))?;
    let srq = of_srq
        .then(|| pd.create_srq(&SrqInit::new(options.rx_depth)))
        .transpose()
        .map_err(|error| fail("Couldn't create SRQ", &error))?;
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: if of_srq { 0 } else { options.rx_depth },
        max_send_sge: 1,
        max_recv_sge: if of_srq { 0 } else { 1 },
        max_inline_data: 0,
    };
    let srq_handle = srq.as_ref().map(Srq::handle);
    let init = QpInit { cap, srq: srq_handle, ..QpInit::new(options.program.qp_type(), &cq) };
    let name = |index: u32| if of_srq { format!("QP[{index}]") } else { "QP".to_owned() };
    let create = |index| {
        pd.create_qp(&init).map_err(|error| fail(&format!("Couldn't create {}", name(index)), &error))
    };
    let qps = (0..options.num_qp).map(create).collect::<Result<Vec<_>, _>>()?;
    let attr = InitAttr { port_num: options.ib_port, qkey: QKEY, ..InitAttr::default() };
    let to_init = |(index, qp): (u32, Qp<Reset>)| {
        let line = format!("Failed to modify {} to INIT", name(index));
        qp.to_init(&attr).map_err(|failed| fail(&line, &failed.error))
    };
    let qps = (0..).zip(qps).map(to_init).collect::<Result<Vec<_>, _>>()?;
    Ok((Setup { context, channel, pd, base_pd, cq, timestamp_mask }, Endpoint::new(qps, srq, message)))
}

/// Returns the C program's message and the reason if a requested feature is missing.
pub(super) fn lacks(attr: &DeviceAttrEx, options: &Options) -> Option<(&'static str, String)> {
    let odp = &attr.odp_caps;
    if options.odp {
        let (line, needed, name, has) = match options.program {
            Program::Srq => (NO_ODP_OF_SRQ, OdpTransportCaps::SRQ_RECV, "rc_odp_caps", odp.rc_odp_caps),
            Program::Xsrq => (NO_ODP_OF_XSRQ, OdpTransportCaps::SRQ_RECV, "xrc_odp_caps", attr.xrc_odp_caps),
            _ => (NO_ODP, OdpTransportCaps::RECV, "rc_odp_caps", odp.rc_odp_caps),
        };
        let general = odp.general_caps;
        if !general.contains(OdpGeneralCaps::SUPPORT) || !has.contains(OdpTransportCaps::SEND | needed) {
            let caps = (general.bits(), has.bits());
            return Some((line, format!("general_odp_caps {:#x}, {name} {:#x}", caps.0, caps.1)));
        }
        if options.implicit_odp && !odp.general_caps.contains(OdpGeneralCaps::IMPLICIT) {
            let reason = format!("general_odp_caps {:#x}", odp.general_caps.bits());
            return Some(("The device doesn't support implicit ODP", reason));
        }
    }
    if options.timestamps && attr.completion_timestamp_mask == 0 {
        let reason = "its completion_timestamp_mask is 0".to_owned();
        return Some(("The device isn't completion timestamp capable", reason));
    }
    if options.device_memory && attr.max_dm_size == 0 {
        return Some(("Device doesn't support dm allocation", "its max_dm_size is 0".to_owned()));
    }
    if options.device_memory && attr.max_dm_size < options.size.into() {
        let reason =
            format!("its max_dm_size is {}, the message has {} bytes", attr.max_dm_size, options.size);
        return Some(("Device memory is insufficient", reason));
    }
    None
}

/// Maps the message's buffer and fills it as in C, where a length beyond 2 GiB is negative.
pub(super) fn map(options: &Options) -> Result<Buffer, String> {
    let Options { program, size, .. } = *options;
    let len = i32::try_from(size).map_err(|_| format!("a message of {size} bytes is longer than 2 GiB"))?;
    let byte = if matches!(program, Program::Srq | Program::Xsrq) { 0 } else { 0x7b };
    Buffer::map(program.header_len(), len as usize, byte).map_err(|error| crate::console::describe(&error))
}

const NO_ODP: &str = "The device isn't ODP capable or does not support RC send and receive with ODP";

const NO_ODP_OF_SRQ: &str =
    "The device isn't ODP capable or does not support RC send, receive and srq with ODP";

const NO_ODP_OF_XSRQ: &str =
    "The device isn't ODP capable or does not support XRC send, receive and srq with ODP";

#[cfg(test)]
mod tests;
