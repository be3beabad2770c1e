//! Attributes of a device and its ports: `QUERY_DEVICE`, `QUERY_PORT`, `QUERY_PORT_SPEED`.

use core::mem::offset_of;

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, UVERBS_ATTR_QUERY_PORT_SPEED_RESP, UVERBS_METHOD_QUERY_PORT_SPEED,
    UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_ioctl_verbs::IbUverbsQueryPortRespEx;
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_QUERY_DEVICE, IB_USER_VERBS_EX_CMD_QUERY_DEVICE, IbUverbsExQueryDevice,
    IbUverbsExQueryDeviceResp, IbUverbsQueryDevice, IbUverbsQueryDeviceResp,
};
use zerocopy::IntoBytes;

use crate::channel::{Attr, Uhw, Uverbs, WriteCmd, queries};
use crate::errno::Errno;
use crate::error::Result;
use crate::types::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceAttrEx, DeviceCapFlags, Guid, LinkLayer, Mtu, OdpCaps,
    OdpGeneralCaps, OdpTransportCaps, PacketPacingCaps, PciAtomicCaps, PortAttr, PortCapFlags, PortCapFlags2,
    PortFlags, PortSpeed, PortState, PortWidth, RawPacketCaps, RssCaps, TmCapFlags, TmCaps, TsoCaps,
};
use crate::with_device_limits;

/// Queries the device's limits and capabilities. `fw_ver` formats the firmware version, whose
/// encoding depends on the driver.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` after the device was unplugged.
#[doc(alias = "ibv_query_device")]
pub fn query_device(uverbs: &Uverbs, fw_ver: fn(u64) -> String) -> Result<DeviceAttr> {
    let reply = query_device_plain(uverbs).map_err(|errno| uverbs.error("query_device", errno))?;
    Ok(device_attr(&reply, fw_ver))
}

fn query_device_plain(uverbs: &Uverbs) -> Result<IbUverbsQueryDeviceResp, Errno> {
    let mut reply = IbUverbsQueryDeviceResp::default();
    let request = IbUverbsQueryDevice::default();
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_QUERY_DEVICE, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command)?;
    Ok(reply)
}

/// Queries the device's limits and capabilities in the extended form. Fields not reported by the
/// kernel are zero.
///
/// TSO, the RSS hash functions and fields, packet pacing and PCIe atomics are not in the kernel's
/// reply, so their fields are zero. Drivers with these features report them in their part of the
/// reply, `uhw`, and the provider fills them in.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` after the device was unplugged. If the kernel lacks
/// the extended form (`EOPNOTSUPP`, `ENOSYS`), the plain query is sent instead.
#[doc(alias = "ibv_query_device_ex")]
pub fn query_device_ex(uverbs: &Uverbs, fw_ver: fn(u64) -> String, uhw: Uhw<'_>) -> Result<DeviceAttrEx> {
    const VERB: &str = "query_device_ex";
    let mut reply = IbUverbsExQueryDeviceResp::default();
    let request = IbUverbsExQueryDevice::default();
    let command =
        WriteCmd::extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, request.as_bytes(), reply.as_mut_bytes(), uhw);
    match uverbs.write(command) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let base = query_device_plain(uverbs).map_err(|errno| uverbs.error(VERB, errno))?;
            reply = IbUverbsExQueryDeviceResp { base, ..Default::default() };
        }
        Err(errno) => return Err(uverbs.error(VERB, errno)),
    }
    zero_unreported(&mut reply);
    Ok(device_attr_ex(&reply, fw_ver))
}

/// Zeroes the end of the reply: the bytes beyond the length that the kernel reported.
fn zero_unreported(reply: &mut IbUverbsExQueryDeviceResp) {
    let reported = (reply.response_length as usize).max(offset_of!(IbUverbsExQueryDeviceResp, odp_caps));
    if let Some(rest) = reply.as_mut_bytes().get_mut(reported..) {
        rest.fill(0);
    }
}

/// Queries a port's state and attributes.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a nonexistent port.
#[doc(alias = "ibv_query_port")]
pub fn query_port(uverbs: &Uverbs, port_num: u8) -> Result<PortAttr> {
    let reply = queries::port(uverbs, port_num).map_err(|errno| uverbs.error("query_port", errno))?;
    Ok(port_attr(&reply))
}

/// Queries the effective speed of a port, in units of 100 Mbit/s; `None` if the kernel lacks the
/// method or the driver reports no speed.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a nonexistent port.
#[doc(alias = "ibv_query_port_speed")]
pub fn query_port_speed(uverbs: &Uverbs, port_num: u8) -> Result<Option<u64>> {
    let mut speed = 0_u64;
    let mut attrs = [
        Attr::u64(UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, port_num.into()),
        Attr::output(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, speed.as_mut_bytes()),
    ];
    match uverbs.try_ioctl(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT_SPEED, &mut attrs) {
        Ok(true) => Ok(Some(speed)),
        Ok(false) | Err(Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(uverbs.error("query_port_speed", errno)),
    }
}

fn port_attr(reply: &IbUverbsQueryPortRespEx) -> PortAttr {
    let legacy = &reply.legacy_resp;
    PortAttr {
        state: PortState(legacy.state),
        max_mtu: Mtu(legacy.max_mtu),
        active_mtu: Mtu(legacy.active_mtu),
        gid_tbl_len: legacy.gid_tbl_len,
        port_cap_flags: PortCapFlags::from_bits_retain(legacy.port_cap_flags),
        max_msg_sz: legacy.max_msg_sz,
        bad_pkey_cntr: legacy.bad_pkey_cntr,
        qkey_viol_cntr: legacy.qkey_viol_cntr,
        pkey_tbl_len: legacy.pkey_tbl_len,
        lid: legacy.lid,
        sm_lid: legacy.sm_lid,
        lmc: legacy.lmc,
        max_vl_num: legacy.max_vl_num,
        sm_sl: legacy.sm_sl,
        subnet_timeout: legacy.subnet_timeout,
        init_type_reply: legacy.init_type_reply,
        active_width: PortWidth(legacy.active_width),
        active_speed: PortSpeed(legacy.active_speed.into()),
        phys_state: legacy.phys_state,
        link_layer: LinkLayer(legacy.link_layer),
        flags: PortFlags::from_bits_retain(legacy.flags),
        port_cap_flags2: PortCapFlags2::from_bits_retain(reply.port_cap_flags2),
        active_speed_ex: PortSpeed(reply.active_speed_ex),
    }
}

fn device_attr(reply: &IbUverbsQueryDeviceResp, fw_ver: fn(u64) -> String) -> DeviceAttr {
    macro_rules! attr {
        ($($limit:ident),*) => {
            DeviceAttr {
                fw_ver: fw_ver(reply.fw_ver),
                node_guid: Guid(reply.node_guid.to_native()),
                sys_image_guid: Guid(reply.sys_image_guid.to_native()),
                max_mr_size: reply.max_mr_size,
                page_size_cap: reply.page_size_cap,
                vendor_id: reply.vendor_id,
                vendor_part_id: reply.vendor_part_id,
                hw_ver: reply.hw_ver,
                device_cap_flags: DeviceCapFlags::from_bits_retain(reply.device_cap_flags.into()),
                atomic_cap: AtomicCap(reply.atomic_cap),
                phys_port_cnt: reply.phys_port_cnt,
                $($limit: reply.$limit),*
            }
        };
    }
    with_device_limits!(attr)
}

fn device_attr_ex(reply: &IbUverbsExQueryDeviceResp, fw_ver: fn(u64) -> String) -> DeviceAttrEx {
    let odp = &reply.odp_caps;
    DeviceAttrEx {
        orig_attr: device_attr(&reply.base, fw_ver),
        odp_caps: OdpCaps {
            general_caps: OdpGeneralCaps::from_bits_retain(odp.general_caps),
            rc_odp_caps: OdpTransportCaps::from_bits_retain(odp.per_transport_caps.rc_odp_caps),
            uc_odp_caps: OdpTransportCaps::from_bits_retain(odp.per_transport_caps.uc_odp_caps),
            ud_odp_caps: OdpTransportCaps::from_bits_retain(odp.per_transport_caps.ud_odp_caps),
        },
        completion_timestamp_mask: reply.timestamp_mask,
        hca_core_clock: reply.hca_core_clock,
        device_cap_flags_ex: DeviceCapFlags::from_bits_retain(reply.device_cap_flags_ex),
        tso_caps: TsoCaps::default(),
        rss_caps: RssCaps {
            supported_qpts: reply.rss_caps.supported_qpts,
            max_rwq_indirection_tables: reply.rss_caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: reply.rss_caps.max_rwq_indirection_table_size,
            rx_hash_fields_mask: 0,
            rx_hash_function: 0,
        },
        max_wq_type_rq: reply.max_wq_type_rq,
        packet_pacing_caps: PacketPacingCaps::default(),
        raw_packet_caps: RawPacketCaps::from_bits_retain(reply.raw_packet_caps),
        tm_caps: TmCaps {
            max_rndv_hdr_size: reply.tm_caps.max_rndv_hdr_size,
            max_num_tags: reply.tm_caps.max_num_tags,
            flags: TmCapFlags::from_bits_retain(reply.tm_caps.flags),
            max_ops: reply.tm_caps.max_ops,
            max_sge: reply.tm_caps.max_sge,
        },
        cq_mod_caps: CqModerationCaps {
            max_cq_count: reply.cq_moderation_caps.max_cq_moderation_count,
            max_cq_period: reply.cq_moderation_caps.max_cq_moderation_period,
        },
        max_dm_size: reply.max_dm_size,
        pci_atomic_caps: PciAtomicCaps::default(),
        xrc_odp_caps: OdpTransportCaps::from_bits_retain(reply.xrc_odp_caps),
        phys_port_cnt_ex: reply.base.phys_port_cnt.into(),
    }
}
