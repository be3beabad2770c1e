//! All steps up to the queue pair in INIT, in C's order, because the first failure decides the
//! message.

use verbs::state::Init;
use verbs::{
    AccessFlags, CompChannel, Context, Cq, CqInit, Device, DeviceAttrEx, DeviceList, Errno, InitAttr,
    OdpGeneralCaps, OdpTransportCaps, Pd, QpCap, QpInit,
};

use super::endpoint::{Buffer, Endpoint, QKEY, register_everything};
use super::options::{Options, Program};
use crate::console::{Console, Failed, complain_of_no_devices};

/// The objects of a ping-pong, without the endpoint, whose type changes when it is connected.
#[derive(Debug)]
pub struct Setup {
    /// The device.
    pub context: Context,
    /// The channel of the completion queue's events, if the program sleeps.
    pub channel: Option<CompChannel>,
    /// The protection domain of all objects.
    pub pd: Pd,
    /// The completion queue of sends and receives.
    pub cq: Cq,
}

/// Returns the requested device.
///
/// # Errors
/// There is no such device, which has been reported.
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
/// An object cannot be created, or the device lacks a requested feature; the failure has been
/// reported.
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
    if options.cc_unprotected {
        return Err(fail("Couldn't allocate parent domain", &no_parent_domain(&context)));
    }
    let pd = context.alloc_pd().map_err(|error| fail("Couldn't allocate PD", &error))?;

    if options.odp || options.timestamps || options.device_memory {
        let attr = context
            .query_device_ex()
            .map_err(|error| fail("Couldn't query device for its features", &error))?;
        if let Some((line, reason)) = lacks(&attr, options) {
            return Err(fail(line, &format_args!("{}: {reason}", device.name())));
        }
    }

    let buffer = map(options.program.header_len(), options.size)
        .map_err(|reason| fail("Couldn't allocate work buf.", &reason))?;
    let mut access = AccessFlags::LOCAL_WRITE;
    access.set(AccessFlags::ON_DEMAND, options.odp);
    let registered =
        if options.implicit_odp { register_everything(&pd, access) } else { buffer.register(&pd, access) };
    let mr = registered.map_err(|error| fail("Couldn't register MR", &error))?;
    if options.prefetch {
        let errno = Errno::OPNOTSUPP.raw();
        let _ = fail(&format!("Couldn't prefetch MR({errno}). Continue anyway"), &NO_PREFETCH);
    }

    let init = CqInit { channel: channel.as_ref(), ..CqInit::new(options.rx_depth.wrapping_add(1)) };
    let cq = context.create_cq(&init).map_err(|error| fail("Couldn't create CQ", &error))?;
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: options.rx_depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInit { cap, ..QpInit::new(options.program.qp_type(), &cq) };
    let qp = pd.create_qp(&init).map_err(|error| fail("Couldn't create QP", &error))?;
    let qp = qp
        .to_init(&InitAttr { port_num: options.ib_port, qkey: QKEY, ..InitAttr::default() })
        .map_err(|failed| fail("Failed to modify QP to INIT", &failed.error))?;
    Ok((Setup { context, channel, pd, cq }, Endpoint::new(qp, buffer, mr)))
}

/// Returns a requested feature that the device lacks: C's sentence, and the reason.
fn lacks(attr: &DeviceAttrEx, options: &Options) -> Option<(&'static str, String)> {
    let odp = &attr.odp_caps;
    if options.odp {
        let needed = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
        if !odp.general_caps.contains(OdpGeneralCaps::SUPPORT) || !odp.rc_odp_caps.contains(needed) {
            let line = "The device isn't ODP capable or does not support RC send and receive with ODP";
            let caps = (odp.general_caps.bits(), odp.rc_odp_caps.bits());
            return Some((line, format!("general_odp_caps {:#x}, rc_odp_caps {:#x}", caps.0, caps.1)));
        }
        if options.implicit_odp && !odp.general_caps.contains(OdpGeneralCaps::IMPLICIT) {
            let reason = format!("general_odp_caps {:#x}", odp.general_caps.bits());
            return Some(("The device doesn't support implicit ODP", reason));
        }
    }
    if options.timestamps {
        return Some(match attr.completion_timestamp_mask {
            0 => {
                ("The device isn't completion timestamp capable", "its completion_timestamp_mask is 0".into())
            }
            _ => ("Couldn't create CQ", "completion timestamps cannot be read yet".into()),
        });
    }
    if options.device_memory {
        return Some(match attr.max_dm_size {
            0 => ("Device doesn't support dm allocation", "its max_dm_size is 0".into()),
            max if max < options.size.into() => (
                "Device memory is insufficient",
                format!("its max_dm_size is {max}, the message has {} bytes", options.size),
            ),
            _ => ("Dev mem allocation failed", "device memory cannot be allocated yet".into()),
        });
    }
    None
}

/// Maps the message's buffer. As in C, a length beyond 2 GiB is negative.
fn map(header: usize, size: u32) -> Result<Buffer, String> {
    let len = i32::try_from(size).map_err(|_| format!("a message of {size} bytes is longer than 2 GiB"))?;
    Buffer::map(header, len as usize).map_err(|error| crate::console::describe(&error))
}

fn no_parent_domain(context: &Context) -> String {
    format!(
        "alloc_parent_domain on {}: the provider {} has none",
        context.device_name(),
        context.provider_name()
    )
}

const NO_PREFETCH: &str = "regions cannot be fetched ahead yet; pages come when they are touched";

#[cfg(test)]
mod tests;
