//! The output of `ibv_devinfo` for a device and its ports, built from plain values.

use std::fmt::{Display, Formatter, Result};

use verbs::{
    CqModerationCaps, DeviceAttr, DeviceAttrEx, GidEntry, LinkLayer, OdpTransportCaps, PacketPacingCaps,
    PortAttr, RssCaps, TmCaps, TransportType, TsoCaps,
};

use super::names::{self, Bits, GidForm};
use crate::ctext::Ntop;

/// A device's text: the part that is always printed and, with `verbose`, the rest.
#[derive(Clone, Copy, Debug)]
pub struct DeviceText<'a> {
    /// The device's name.
    pub name: &'a str,
    /// The transport of the device.
    pub transport: TransportType,
    /// The board's name in sysfs, if there is one.
    pub board_id: Option<&'a str>,
    /// The device's attributes.
    pub attr: &'a DeviceAttrEx,
    /// Whether to print all attributes.
    pub verbose: bool,
    /// The number of completion vectors.
    pub num_comp_vectors: u32,
}

impl Display for DeviceText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let attr = &self.attr.orig_attr;
        writeln!(f, "hca_id:\t{}", self.name)?;
        writeln!(f, "\ttransport:\t\t\t{} ({})", transport(self.transport), self.transport.0)?;
        if !attr.fw_ver.is_empty() {
            writeln!(f, "\tfw_ver:\t\t\t\t{}", attr.fw_ver)?;
        }
        writeln!(f, "\tnode_guid:\t\t\t{}", attr.node_guid)?;
        writeln!(f, "\tsys_image_guid:\t\t\t{}", attr.sys_image_guid)?;
        writeln!(f, "\tvendor_id:\t\t\t0x{:04x}", attr.vendor_id)?;
        writeln!(f, "\tvendor_part_id:\t\t\t{}", attr.vendor_part_id as i32)?;
        writeln!(f, "\thw_ver:\t\t\t\t0x{:X}", attr.hw_ver)?;
        if let Some(board_id) = self.board_id {
            writeln!(f, "\tboard_id:\t\t\t{board_id}")?;
        }
        writeln!(f, "\tphys_port_cnt:\t\t\t{}", attr.phys_port_cnt)?;
        if self.verbose {
            limits(f, attr)?;
            extended(f, self.attr)?;
            writeln!(f, "\tnum_comp_vectors:\t\t{}", self.num_comp_vectors as i32)?;
        }
        Ok(())
    }
}

/// Returns the name of a transport.
fn transport(transport: TransportType) -> &'static str {
    transport.name().unwrap_or("invalid transport")
}

/// Prints the oldest part of the output. As in C, numbers are `int`, which some drivers' values
/// overflow.
fn limits(f: &mut Formatter<'_>, attr: &DeviceAttr) -> Result {
    let cap_flags = attr.device_cap_flags.bits() as u32;
    writeln!(f, "\tmax_mr_size:\t\t\t0x{:x}", attr.max_mr_size)?;
    writeln!(f, "\tpage_size_cap:\t\t\t0x{:x}", attr.page_size_cap)?;
    for (name, value) in attr.limits() {
        match name {
            "max_map_per_fmr" if attr.max_fmr == 0 => {}
            "max_srq_wr" | "max_srq_sge" if attr.max_srq == 0 => {}
            _ => writeln!(f, "\t{name}:{}{}", tabs(name), value as i32)?,
        }
        match name {
            "max_qp_wr" => {
                writeln!(f, "\tdevice_cap_flags:\t\t0x{cap_flags:08x}")?;
                flags(f, cap_flags.into(), names::DEVICE_CAP_FLAGS)?;
            }
            "max_ee_init_rd_atom" => {
                let scope = attr.atomic_cap;
                writeln!(f, "\tatomic_cap:\t\t\t{} ({})", names::atomic_cap(scope), scope.0)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the tabs between a name and the column of values.
fn tabs(name: &str) -> &'static str {
    const VALUES: usize = 32;
    let free = VALUES.saturating_sub(name.len() + ":".len());
    &"\t\t\t\t"[..free.div_ceil(8)]
}

/// Prints the attributes added by later rdma-core versions.
fn extended(f: &mut Formatter<'_>, attr: &DeviceAttrEx) -> Result {
    writeln!(f, "\tgeneral_odp_caps:")?;
    flags(f, attr.odp_caps.general_caps.bits(), names::ODP_GENERAL)?;
    odp_transport(f, "rc", attr.odp_caps.rc_odp_caps)?;
    odp_transport(f, "uc", attr.odp_caps.uc_odp_caps)?;
    odp_transport(f, "ud", attr.odp_caps.ud_odp_caps)?;
    odp_transport(f, "xrc", attr.xrc_odp_caps)?;
    match attr.completion_timestamp_mask {
        0 => writeln!(f, "\tcompletion_timestamp_mask not supported")?,
        mask => writeln!(f, "\tcompletion timestamp_mask:\t\t\t0x{mask:016x}")?,
    }
    match attr.hca_core_clock {
        0 => writeln!(f, "\tcore clock not supported")?,
        clock => writeln!(f, "\thca_core_clock:\t\t\t{clock}kHZ")?,
    }
    let raw_packet_caps = attr.raw_packet_caps.bits();
    if raw_packet_caps != 0 {
        writeln!(f, "\traw packet caps:")?;
        for name in names::split(raw_packet_caps.into(), names::RAW_PACKET).0 {
            writeln!(f, "{INDENT}{name}")?;
        }
    }
    let cap_flags_ex = attr.device_cap_flags_ex.bits();
    writeln!(f, "\tdevice_cap_flags_ex:\t\t0x{cap_flags_ex:X}")?;
    flags(f, cap_flags_ex & UPPER_HALF, names::DEVICE_CAP_FLAGS_EX)?;
    tso(f, &attr.tso_caps)?;
    rss(f, &attr.rss_caps)?;
    writeln!(f, "\tmax_wq_type_rq:\t\t\t{}", attr.max_wq_type_rq)?;
    packet_pacing(f, &attr.packet_pacing_caps)?;
    tag_matching(f, &attr.tm_caps)?;
    cq_moderation(f, &attr.cq_mod_caps)?;
    match attr.max_dm_size {
        0 => Ok(()),
        size => writeln!(f, "\tmaximum available device memory:\t{size}Bytes\n"),
    }
}

/// Prints the bits of a mask, one per line, then the bits without a name.
fn flags(f: &mut Formatter<'_>, mask: u64, bits: &Bits) -> Result {
    let (names, unknown) = names::split(mask, bits);
    for name in names {
        writeln!(f, "{INDENT}{name}")?;
    }
    if unknown == 0 { Ok(()) } else { writeln!(f, "{INDENT}Unknown flags: 0x{unknown:X}") }
}

fn odp_transport(f: &mut Formatter<'_>, name: &str, caps: OdpTransportCaps) -> Result {
    writeln!(f, "\t{name}_odp_caps:")?;
    match caps.bits() {
        0 => writeln!(f, "{INDENT}NO SUPPORT"),
        caps => flags(f, caps.into(), names::ODP_TRANSPORT),
    }
}

fn tso(f: &mut Formatter<'_>, caps: &TsoCaps) -> Result {
    writeln!(f, "\ttso_caps:")?;
    writeln!(f, "\t\tmax_tso:\t\t\t{}", caps.max_tso as i32)?;
    supported_qp(f, caps.max_tso, caps.supported_qpts, names::RAW_PACKET_AND_UD)
}

fn rss(f: &mut Formatter<'_>, caps: &RssCaps) -> Result {
    writeln!(f, "\trss_caps:")?;
    writeln!(f, "\t\tmax_rwq_indirection_tables:\t\t\t{}", caps.max_rwq_indirection_tables)?;
    writeln!(f, "\t\tmax_rwq_indirection_table_size:\t\t\t{}", caps.max_rwq_indirection_table_size)?;
    writeln!(f, "\t\trx_hash_function:\t\t\t\t0x{:x}", caps.rx_hash_function)?;
    writeln!(f, "\t\trx_hash_fields_mask:\t\t\t\t0x{:X}", caps.rx_hash_fields_mask)?;
    supported_qp(f, caps.supported_qpts, caps.supported_qpts, names::RAW_PACKET_AND_UD)
}

fn packet_pacing(f: &mut Formatter<'_>, caps: &PacketPacingCaps) -> Result {
    writeln!(f, "\tpacket_pacing_caps:")?;
    writeln!(f, "\t\tqp_rate_limit_min:\t{}kbps", caps.qp_rate_limit_min)?;
    writeln!(f, "\t\tqp_rate_limit_max:\t{}kbps", caps.qp_rate_limit_max)?;
    supported_qp(f, caps.qp_rate_limit_max, caps.supported_qpts, names::RAW_PACKET_UD_AND_RC)
}

/// Prints the types of queue pairs that support a feature. Prints nothing if the device lacks the
/// feature.
fn supported_qp(f: &mut Formatter<'_>, amount: u32, types: u32, bits: &Bits) -> Result {
    if amount == 0 {
        return Ok(());
    }
    writeln!(f, "\t\tsupported_qp:")?;
    flags(f, types.into(), bits)
}

fn tag_matching(f: &mut Formatter<'_>, caps: &TmCaps) -> Result {
    if caps.max_num_tags == 0 {
        return writeln!(f, "\ttag matching not supported");
    }
    writeln!(f, "\tmax_rndv_hdr_size:\t\t{}", caps.max_rndv_hdr_size)?;
    writeln!(f, "\tmax_num_tags:\t\t\t{}", caps.max_num_tags)?;
    writeln!(f, "\tmax_ops:\t\t\t{}", caps.max_ops)?;
    writeln!(f, "\tmax_sge:\t\t\t{}", caps.max_sge)?;
    writeln!(f, "\tflags:")?;
    for name in names::split(caps.flags.bits().into(), names::TM).0 {
        writeln!(f, "{INDENT}{name}")?;
    }
    Ok(())
}

fn cq_moderation(f: &mut Formatter<'_>, caps: &CqModerationCaps) -> Result {
    if caps.max_cq_count == 0 || caps.max_cq_period == 0 {
        return Ok(());
    }
    writeln!(f, "\n\tcq moderation caps:")?;
    writeln!(f, "\t\tmax_cq_count:\t{}", caps.max_cq_count)?;
    writeln!(f, "\t\tmax_cq_period:\t{} us\n", caps.max_cq_period)
}

/// A port's text: the part that is always printed and, with `verbose`, the rest.
#[derive(Clone, Copy, Debug)]
pub struct PortText<'a> {
    /// The port's number, from 1.
    pub port_num: u8,
    /// The port's attributes.
    pub attr: &'a PortAttr,
    /// Additional values, if all attributes are printed.
    pub verbose: Option<PortDetails>,
}

/// Values of a port beyond [`PortAttr`].
#[derive(Clone, Copy, Debug)]
pub struct PortDetails {
    /// The transport of the port's device.
    pub transport: TransportType,
    /// The rate of all lanes together, in units of 100 Mbit/s, if the device reports it.
    pub effective_speed: Option<u64>,
}

impl Display for PortText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let attr = self.attr;
        writeln!(f, "\t\tport:\t{}", self.port_num)?;
        writeln!(f, "\t\t\tstate:\t\t\t{} ({})", names::port_state(attr.state), attr.state.0)?;
        writeln!(f, "\t\t\tmax_mtu:\t\t{} ({})", names::mtu(attr.max_mtu), attr.max_mtu.0)?;
        writeln!(f, "\t\t\tactive_mtu:\t\t{} ({})", names::mtu(attr.active_mtu), attr.active_mtu.0)?;
        writeln!(f, "\t\t\tsm_lid:\t\t\t{}", attr.sm_lid)?;
        writeln!(f, "\t\t\tport_lid:\t\t{}", attr.lid)?;
        writeln!(f, "\t\t\tport_lmc:\t\t0x{:02x}", attr.lmc)?;
        writeln!(f, "\t\t\tlink_layer:\t\t{}", names::link_layer(attr.link_layer))?;
        match &self.verbose {
            Some(details) => port_details(f, attr, details),
            None => Ok(()),
        }
    }
}

fn port_details(f: &mut Formatter<'_>, attr: &PortAttr, details: &PortDetails) -> Result {
    writeln!(f, "\t\t\tmax_msg_sz:\t\t0x{:x}", attr.max_msg_sz)?;
    writeln!(f, "\t\t\tport_cap_flags:\t\t0x{:08x}", attr.port_cap_flags.bits())?;
    writeln!(f, "\t\t\tport_cap_flags2:\t0x{:04x}", attr.port_cap_flags2.bits())?;
    writeln!(f, "\t\t\tmax_vl_num:\t\t{} ({})", names::vl(attr.max_vl_num), attr.max_vl_num)?;
    writeln!(f, "\t\t\tbad_pkey_cntr:\t\t0x{:x}", attr.bad_pkey_cntr)?;
    writeln!(f, "\t\t\tqkey_viol_cntr:\t\t0x{:x}", attr.qkey_viol_cntr)?;
    writeln!(f, "\t\t\tsm_sl:\t\t\t{}", attr.sm_sl)?;
    writeln!(f, "\t\t\tpkey_tbl_len:\t\t{}", attr.pkey_tbl_len)?;
    writeln!(f, "\t\t\tgid_tbl_len:\t\t{}", attr.gid_tbl_len as i32)?;
    writeln!(f, "\t\t\tsubnet_timeout:\t\t{}", attr.subnet_timeout)?;
    writeln!(f, "\t\t\tinit_type_reply:\t{}", attr.init_type_reply)?;
    writeln!(f, "\t\t\tactive_width:\t\t{}X ({})", names::width(attr.active_width.0), attr.active_width.0)?;
    let speed = attr.speed().0;
    writeln!(f, "\t\t\tactive_speed:\t\t{} ({})", names::speed(speed), speed as i32)?;
    if let Some(hundreds) = details.effective_speed {
        writeln!(f, "\t\t\teffective_speed:\t{:.1} Gbps", hundreds as f64 / 10.0)?;
    }
    if details.transport == TransportType::IB {
        writeln!(f, "\t\t\tphys_state:\t\t{} ({})", names::phys_state(attr.phys_state), attr.phys_state)?;
    }
    Ok(())
}

/// An entry of a port's GID table. An entry that rdma-core omits prints nothing.
#[derive(Clone, Copy, Debug)]
pub struct GidText<'a> {
    /// The entry of the GID table.
    pub entry: &'a GidEntry,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
}

impl Display for GidText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let entry = self.entry;
        let Some((form, name)) = gid_form(entry) else { return Ok(()) };
        write!(f, "\t\t\tGID[{:3}]:\t\t", entry.gid_index)?;
        match form {
            GidForm::Groups => write!(f, "{:#}", entry.gid)?,
            GidForm::Ipv6 => write!(f, "{}", Ntop(entry.gid.0))?,
        }
        if self.link_layer == LinkLayer::ETHERNET {
            write!(f, ", {name}")?;
        }
        writeln!(f)
    }
}

/// Returns how to print an entry. `None` if half of it is empty or its type is unknown.
pub fn gid_form(entry: &GidEntry) -> Option<(GidForm, &'static str)> {
    if entry.gid.interface_id() == 0 { None } else { names::gid_form(entry.gid_type) }
}

/// The indentation of a flag's name.
const INDENT: &str = "\t\t\t\t\t";

const UPPER_HALF: u64 = 0xffff_ffff_0000_0000;
