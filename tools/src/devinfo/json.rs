//! The values of [`text`](super::text) as JSON. Names and numbers stay the same, and bit masks
//! become arrays of names. All bits without a name form one more element, in hexadecimal.

use serde_json::{Map, Value, json};
use verbs::{GidEntry, Mtu, PortAttr};

use super::names::{self, Bits, GidForm};
use super::text::{DeviceText, PortText, gid_form};
use crate::ctext::Ntop;

/// Returns a device, without its ports.
pub fn device(device: &DeviceText<'_>) -> Map<String, Value> {
    let attr = &device.attr.orig_attr;
    let mut object = object(json!({
        "hca_id": device.name,
        "transport": device.transport.to_string(),
        "fw_ver": attr.fw_ver,
        "node_guid": attr.node_guid.to_string(),
        "sys_image_guid": attr.sys_image_guid.to_string(),
        "vendor_id": attr.vendor_id,
        "vendor_part_id": attr.vendor_part_id,
        "hw_ver": attr.hw_ver,
        "board_id": device.board_id,
        "phys_port_cnt": attr.phys_port_cnt,
    }));
    if device.verbose {
        object.append(&mut limits(device));
        object.append(&mut extended(device));
        object.insert("num_comp_vectors".into(), device.num_comp_vectors.into());
    }
    object
}

fn limits(device: &DeviceText<'_>) -> Map<String, Value> {
    let attr = &device.attr.orig_attr;
    let mut limits = object(json!({
        "max_mr_size": attr.max_mr_size,
        "page_size_cap": attr.page_size_cap,
        "device_cap_flags": flags(attr.device_cap_flags.bits() & 0xffff_ffff, names::DEVICE_CAP_FLAGS),
        "atomic_cap": names::atomic_cap(attr.atomic_cap),
    }));
    limits.extend(attr.limits().map(|(name, value)| (name.to_owned(), value.into())));
    limits
}

fn extended(device: &DeviceText<'_>) -> Map<String, Value> {
    let attr = device.attr;
    let odp = &attr.odp_caps;
    object(json!({
        "odp_caps": {
            "general": flags(odp.general_caps.bits(), names::ODP_GENERAL),
            "rc": flags(odp.rc_odp_caps.bits().into(), names::ODP_TRANSPORT),
            "uc": flags(odp.uc_odp_caps.bits().into(), names::ODP_TRANSPORT),
            "ud": flags(odp.ud_odp_caps.bits().into(), names::ODP_TRANSPORT),
            "xrc": flags(attr.xrc_odp_caps.bits().into(), names::ODP_TRANSPORT),
        },
        "completion_timestamp_mask": attr.completion_timestamp_mask,
        "hca_core_clock": attr.hca_core_clock,
        "raw_packet_caps": flags(attr.raw_packet_caps.bits().into(), names::RAW_PACKET),
        "device_cap_flags_ex": flags(attr.device_cap_flags_ex.bits() & !0xffff_ffff, names::DEVICE_CAP_FLAGS_EX),
        "tso_caps": {
            "max_tso": attr.tso_caps.max_tso,
            "supported_qp": flags(attr.tso_caps.supported_qpts.into(), names::RAW_PACKET_AND_UD),
        },
        "rss_caps": {
            "max_rwq_indirection_tables": attr.rss_caps.max_rwq_indirection_tables,
            "max_rwq_indirection_table_size": attr.rss_caps.max_rwq_indirection_table_size,
            "rx_hash_function": attr.rss_caps.rx_hash_function,
            "rx_hash_fields_mask": attr.rss_caps.rx_hash_fields_mask,
            "supported_qp": flags(attr.rss_caps.supported_qpts.into(), names::RAW_PACKET_AND_UD),
        },
        "max_wq_type_rq": attr.max_wq_type_rq,
        "packet_pacing_caps": {
            "qp_rate_limit_min": attr.packet_pacing_caps.qp_rate_limit_min,
            "qp_rate_limit_max": attr.packet_pacing_caps.qp_rate_limit_max,
            "supported_qp":
                flags(attr.packet_pacing_caps.supported_qpts.into(), names::RAW_PACKET_UD_AND_RC),
        },
        "tm_caps": {
            "max_rndv_hdr_size": attr.tm_caps.max_rndv_hdr_size,
            "max_num_tags": attr.tm_caps.max_num_tags,
            "max_ops": attr.tm_caps.max_ops,
            "max_sge": attr.tm_caps.max_sge,
            "flags": flags(attr.tm_caps.flags.bits().into(), names::TM),
        },
        "cq_moderation_caps": {
            "max_cq_count": attr.cq_mod_caps.max_cq_count,
            "max_cq_period": attr.cq_mod_caps.max_cq_period,
        },
        "max_dm_size": attr.max_dm_size,
    }))
}

/// Returns a port, without its GIDs.
pub fn port(port: &PortText<'_>) -> Map<String, Value> {
    let attr = port.attr;
    let mut object = object(json!({
        "port": port.port_num,
        "state": names::port_state(attr.state),
        "max_mtu": mtu(attr.max_mtu),
        "active_mtu": mtu(attr.active_mtu),
        "sm_lid": attr.sm_lid,
        "port_lid": attr.lid,
        "port_lmc": attr.lmc,
        "link_layer": names::link_layer(attr.link_layer),
    }));
    if let Some(details) = &port.verbose {
        object.append(&mut port_details(attr));
        object.insert(
            "effective_speed".into(),
            details.effective_speed.map(|hundreds| hundreds as f64 / 10.0).into(),
        );
    }
    object
}

fn port_details(attr: &PortAttr) -> Map<String, Value> {
    object(json!({
        "max_msg_sz": attr.max_msg_sz,
        "port_cap_flags": attr.port_cap_flags.bits(),
        "port_cap_flags2": attr.port_cap_flags2.bits(),
        "max_vl_num": names::vl(attr.max_vl_num).parse::<u8>().ok(),
        "bad_pkey_cntr": attr.bad_pkey_cntr,
        "qkey_viol_cntr": attr.qkey_viol_cntr,
        "sm_sl": attr.sm_sl,
        "pkey_tbl_len": attr.pkey_tbl_len,
        "gid_tbl_len": attr.gid_tbl_len,
        "subnet_timeout": attr.subnet_timeout,
        "init_type_reply": attr.init_type_reply,
        "active_width": names::width(attr.active_width.0).parse::<u8>().ok(),
        "active_speed": names::speed(attr.speed().0).strip_suffix(" Gbps").and_then(|gbps| gbps.parse::<f64>().ok()),
        "phys_state": names::phys_state(attr.phys_state),
    }))
}

/// Returns an entry of a port's GID table. `None` for an entry that the text omits.
pub fn gid(entry: &GidEntry) -> Option<Value> {
    let (form, _) = gid_form(entry)?;
    let gid = match form {
        GidForm::Groups => format!("{:#}", entry.gid),
        GidForm::Ipv6 => Ntop(entry.gid.0).to_string(),
    };
    Some(
        json!({ "index": entry.gid_index, "gid": gid, "type": entry.gid_type.to_string(), "ifindex": entry.ndev_ifindex }),
    )
}

/// Returns the MTU in bytes. `null` for an encoding that is not in the specification.
fn mtu(mtu: Mtu) -> Value {
    mtu.bytes().into()
}

fn flags(mask: u64, bits: &Bits) -> Value {
    let (names, unknown) = names::split(mask, bits);
    let mut flags: Vec<Value> = names.into_iter().map(Value::from).collect();
    if unknown != 0 {
        flags.push(format!("{unknown:#x}").into());
    }
    flags.into()
}

/// Returns the members of an object literal.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
