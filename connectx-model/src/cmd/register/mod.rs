//! ACCESS_REG: reads and writes registers of the port and the device, by register number.
//!
//! Invariant: access to an unknown register is rejected. Drivers probe some registers that not all
//! devices have, and use alternatives if the access fails.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::register::*;
use crate::layout::{Table, put};
use crate::port::{Counters, IB_MTU, MAX_FRAME, Port, PortKind};
use crate::refusal::{Refusal, Status};

const PMTU: u32 = 0x5003;
const PTYS: u32 = 0x5004;
const PAOS: u32 = 0x5006;
const PPCNT: u32 = 0x5008;
const PLIB: u32 = 0x500a;
const PVLC: u32 = 0x500f;
const NODE_DESCRIPTION: u32 = 0x6001;
const HOST_ENDIANNESS: u32 = 0x7004;

/// Operation on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write,
    Read,
}

pub(super) fn access_register<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let access = if access_register_in::OP_MOD.is_set(input) { Access::Read } else { Access::Write };
    let number = access_register_in::REGISTER_ID.get32(input);
    let given = input.get(access_register_in::REGISTER_DATA..).unwrap_or_default();
    let Some(register) = REGISTERS.iter().find(|register| register.number == number) else {
        return Err(Refusal::fair(Status::BadParam));
    };
    let len = register.size;
    if given.len() < len || output.len() < access_register_out::REGISTER_DATA + len {
        let what = format!("register {number:#x} has {len} bytes");
        return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
    }
    // A kernel's definition of a register may be longer than this device's; the kernel then sets
    // the rest to zero.
    if given[len..].iter().any(|byte| *byte != 0) {
        let what = format!("register {number:#x} has {len} bytes, nonzero bytes follow");
        return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
    }
    if let Some((offset, bits)) = register.table.and_then(|table| table.reserved(given)) {
        let what = format!("register {number:#x}, bits {bits:#x} of dword {offset:#x}");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
    }
    if let Some(table) = register.table {
        // All port registers hold the port number at the same offset.
        let port = ptys_reg::LOCAL_PORT.get(given);
        if port > 1 {
            let what = format!("{} of port {port}", table.name);
            return Err(Refusal::broken(Status::BadIndex, Rule::CommandParameter, what));
        }
    }
    let data = &mut output[access_register_out::REGISTER_DATA..][..len];
    data.copy_from_slice(&given[..len]);
    let core = &mut function.core;
    match (number, access) {
        (PMTU, _) => {
            if access == Access::Write && core.port.kind == PortKind::Roce {
                core.port.set_longest_frame(pmtu_reg::ADMIN_MTU.get32(given));
            }
            mtu(&core.port, data);
        }
        (PTYS, _) => speed(&core.port, data),
        (PAOS, Access::Write) => {
            core.set_port_enabled(paos_reg::ADMIN_STATUS.get(given) == PORT_UP);
            status(&core.port, data);
        }
        (PAOS, Access::Read) => status(&core.port, data),
        (PPCNT, _) => {
            count(&core.port, data);
            if ppcnt_reg::CLR.is_set(given) {
                core.port.counters = Counters::default();
            }
        }
        (PLIB, _) => plib_reg::IB_PORT.set(data, 1u32),
        (PVLC, _) => {
            // The code for virtual lanes 0 to 3.
            pvlc_reg::VL_HW_CAP.set(data, 4u32);
            pvlc_reg::VL_OPERATIONAL.set(data, 4u32);
        }
        (NODE_DESCRIPTION, Access::Read) => data.copy_from_slice(&core.port.node_description),
        (NODE_DESCRIPTION, Access::Write) => core.port.node_description.copy_from_slice(data),
        (HOST_ENDIANNESS, Access::Write) => core.port.host_endianness = data[0],
        (HOST_ENDIANNESS, Access::Read) => data[0] = core.port.host_endianness,
        _ => return Err(Refusal::fair(Status::BadParam)),
    }
    Ok(())
}

/// A register: its number, length and table.
struct Register {
    number: u32,
    size: usize,
    table: Option<&'static Table>,
}

static REGISTERS: [Register; 8] = [
    Register { number: PMTU, size: pmtu_reg::SIZE, table: Some(&pmtu_reg::TABLE) },
    Register { number: PTYS, size: ptys_reg::SIZE, table: Some(&ptys_reg::TABLE) },
    Register { number: PAOS, size: paos_reg::SIZE, table: Some(&paos_reg::TABLE) },
    Register { number: PPCNT, size: ppcnt_reg::SIZE, table: Some(&ppcnt_reg::TABLE) },
    Register { number: PLIB, size: plib_reg::SIZE, table: Some(&plib_reg::TABLE) },
    Register { number: PVLC, size: pvlc_reg::SIZE, table: Some(&pvlc_reg::TABLE) },
    Register { number: NODE_DESCRIPTION, size: 64, table: None },
    Register { number: HOST_ENDIANNESS, size: 16, table: None },
];

/// Administrative states in the PAOS register.
const PORT_UP: u64 = 1;
const PORT_DOWN: u64 = 2;

fn mtu(port: &Port, data: &mut [u8]) {
    let (most, now) = match port.kind {
        PortKind::Ib => (IB_MTU, IB_MTU),
        PortKind::Roce => (MAX_FRAME, port.longest_frame() as u32),
    };
    pmtu_reg::MAX_MTU.set(data, most);
    pmtu_reg::ADMIN_MTU.set(data, now);
    pmtu_reg::OPER_MTU.set(data, now);
}

fn status(port: &Port, data: &mut [u8]) {
    let code = |up| if up { PORT_UP } else { PORT_DOWN };
    paos_reg::ADMIN_STATUS.set(data, code(port.enabled));
    paos_reg::OPER_STATUS.set(data, code(port.up));
}

/// Ethernet protocol bits: 100 Gbit/s over copper, optics and backplane.
const ETHERNET_100G: u32 = 0x0070_0000;
/// Ethernet protocol bit: 100 Gbit/s over copper.
const ETHERNET_100G_CR4: u32 = 0x0010_0000;
/// InfiniBand protocol bits: all speeds up to EDR.
const IB_SPEEDS: u32 = 0x3f;
const IB_EDR: u32 = 0x20;
/// InfiniBand width bits: one, two and four lanes.
const IB_WIDTHS: u32 = 0x7;
const IB_4X: u32 = 0x4;

fn speed(port: &Port, data: &mut [u8]) {
    match port.kind {
        PortKind::Ib => {
            ptys_reg::IB_LINK_WIDTH_CAPABILITY.set(data, IB_WIDTHS);
            ptys_reg::IB_LINK_WIDTH_ADMIN.set(data, IB_WIDTHS);
            ptys_reg::IB_PROTO_CAPABILITY.set(data, IB_SPEEDS);
            ptys_reg::IB_PROTO_ADMIN.set(data, IB_SPEEDS);
            ptys_reg::IB_LINK_WIDTH_OPER.set(data, IB_4X);
            ptys_reg::IB_PROTO_OPER.set(data, IB_EDR);
        }
        PortKind::Roce => {
            ptys_reg::ETH_PROTO_CAPABILITY.set(data, ETHERNET_100G);
            ptys_reg::ETH_PROTO_ADMIN.set(data, ETHERNET_100G);
            ptys_reg::ETH_PROTO_OPER.set(data, if port.up { ETHERNET_100G_CR4 } else { 0 });
        }
    }
}

/// Numbers of the counter groups.
const GROUP_802_3: u32 = 0x00;
const GROUP_RFC2863: u32 = 0x01;
const GROUP_IB: u32 = 0x20;
const GROUP_IB_EXTENDED: u32 = 0x21;

/// Fills in the counters that the model maintains; all others are 0.
fn count(port: &Port, data: &mut [u8]) {
    use ppcnt_reg as reg;
    let counters = port.counters;
    let group = reg::GRP.get32(data);
    data[reg::A_FRAMES_TRANSMITTED_OK_HIGH.dword..].fill(0);
    let mut wide = |high: crate::layout::Field, value: u64| put(data, high.dword, &value.to_be_bytes());
    match group {
        GROUP_802_3 => {
            wide(reg::A_FRAMES_TRANSMITTED_OK_HIGH, counters.sent_packets);
            wide(reg::A_FRAMES_RECEIVED_OK_HIGH, counters.received_packets);
            wide(reg::A_OCTETS_TRANSMITTED_OK_HIGH, counters.sent_bytes);
            wide(reg::A_OCTETS_RECEIVED_OK_HIGH, counters.received_bytes);
        }
        GROUP_RFC2863 => {
            wide(reg::IF_IN_OCTETS_HIGH, counters.received_bytes);
            wide(reg::IF_OUT_OCTETS_HIGH, counters.sent_bytes);
        }
        // InfiniBand counts data in units of 4 bytes.
        GROUP_IB | GROUP_IB_EXTENDED => {
            wide(reg::PORT_XMIT_DATA_HIGH, counters.sent_bytes / 4);
            wide(reg::PORT_RCV_DATA_HIGH, counters.received_bytes / 4);
            wide(reg::PORT_XMIT_PKTS_HIGH, counters.sent_packets);
            wide(reg::PORT_RCV_PKTS_HIGH, counters.received_packets);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
