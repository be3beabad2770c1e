//! [`Capabilities`]: the capabilities that the function offers, and the driver's choices.
//!
//! Each capability group has maximum values and current values. A driver queries both and sets the
//! current values. A field not named in this file is 0, which means that the capability is not
//! offered.
//!
//! Invariant: a current value never exceeds its maximum.

use std::ops::RangeInclusive;

use roce::engine::Stall;

use crate::complaint::Rule;
use crate::config::{Config, FREQUENCY_KHZ, MEMIC_SIZE, MEMIC_START};
use crate::layout::caps::{
    atomic_caps, cmd_hca_cap as general, device_mem_cap as device_memory, odp_cap as odp,
    per_protocol_networking_offload_caps as ethernet, qos_cap, roce_cap,
};
use crate::layout::flow_caps::flow_table_nic_cap as flow;
use crate::layout::{Field, Part, Table};
use crate::memic;
use crate::port::PortKind;
use crate::refusal::{Refusal, Status};
use crate::state::qp::Service;

/// Maximum number of queue pairs, log2.
pub(crate) const LOG_MAX_QP: u32 = 14;
/// Maximum number of completion queues, log2.
pub(crate) const LOG_MAX_CQ: u32 = 14;
/// Maximum number of memory keys, log2.
pub(crate) const LOG_MAX_MKEY: u32 = 18;
/// Maximum number of protection domains, log2.
pub(crate) const LOG_MAX_PD: u32 = 14;
/// Maximum number of multicast groups, log2.
pub(crate) const LOG_MAX_MCG: u32 = 13;
/// Maximum number of members in a multicast group.
pub(crate) const MAX_QP_MCG: u32 = 240;
/// Maximum number of shared receive queues, log2.
pub(crate) const LOG_MAX_SRQ: u32 = 13;
/// Maximum number of indexes in a matching list, log2.
pub(crate) const LOG_TAG_MATCHING_LIST: u32 = 7;
/// Maximum number of event queues.
pub(crate) const MAX_EQS: u32 = 16;
/// Maximum number of Ethernet send queues, log2.
pub(crate) const LOG_MAX_SQ: u32 = 10;
/// Maximum number of Ethernet receive queues, log2.
pub(crate) const LOG_MAX_RQ: u32 = 10;
/// Size of an entry in an Ethernet queue, in bytes, log2. The smallest entry holds one receive
/// element, the largest the longest work request.
pub(crate) const LOG_STRIDE: RangeInclusive<u32> = 4..=10;
/// Maximum number of entries in an Ethernet queue, log2: the 16-bit counters must distinguish a
/// full ring from an empty one.
pub(crate) const LOG_MAX_WQ: u32 = 15;
/// Maximum number of transport interface sends (TIS), log2.
pub(crate) const LOG_MAX_TIS: u32 = 10;
/// Maximum number of transport interface receives (TIR), log2.
pub(crate) const LOG_MAX_TIR: u32 = 10;
/// Maximum number of receive queue tables, log2.
pub(crate) const LOG_MAX_RQT: u32 = 10;
/// Maximum number of entries in a receive queue table, log2.
pub(crate) const LOG_MAX_RQT_SIZE: u32 = 8;
/// Maximum number of entries in a flow table, log2.
pub(crate) const LOG_MAX_TABLE_SIZE: u64 = 20;
/// Maximum number of destinations per flow table entry, log2.
pub(crate) const LOG_MAX_DESTINATION: u64 = 8;
/// Highest level of a flow table.
pub(crate) const MAX_LEVEL: u64 = 128;
/// Range of rates for a send queue, in kbit/s, as on a ConnectX-5 with 100 Gbit/s.
pub(crate) const PACING_RATES: RangeInclusive<u32> = 1..=100_000_000;
/// Number of entries in the rate table; entry 0 stands for no limit.
pub(crate) const PACING_TABLE: u32 = 128;
/// Maximum number of completions in a compressed block: three arrays of 8 mini entries, and 6 in a
/// fourth.
const MAX_COMPRESSED: u32 = 30;
/// Size of one capability group, in bytes.
const GROUP_SIZE: usize = 0x1000;

/// The capability groups, each with its maximum and its current values.
#[derive(Debug)]
pub struct Capabilities {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    number: u32,
    table: &'static Table,
    /// Fields that the driver may set; all other fields are fixed.
    chosen: &'static [Field],
    most: Vec<u8>,
    now: Vec<u8>,
}

/// The numbers of the groups.
const GENERAL: u32 = 0;
const ETHERNET: u32 = 1;
const ODP: u32 = 2;
const ATOMIC: u32 = 3;
const ROCE: u32 = 4;
const FLOW_TABLE: u32 = 7;
const QOS: u32 = 0xc;
const DEVICE_MEMORY: u32 = 0xf;

/// Fields of the general group that a driver may set.
const CHOSEN: &[Field] = &[
    general::LOG_MAX_QP,
    general::PKEY_TABLE_SIZE,
    general::CMDIF_CHECKSUM,
    general::UAR_4K,
    general::LOG_UAR_PAGE_SZ,
    general::LOG_MAX_CURRENT_UC_LIST,
];

/// Fields of the paging group that a driver may set: all those that Linux sets.
const CHOSEN_OF_PAGING: &[Field] = &[
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_SRQ_RECEIVE,
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SEND,
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_WRITE,
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_READ,
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_ATOMIC,
    odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SRQ_RECEIVE,
];

/// The only field of the atomic group that a driver may set: the byte order of the operands.
const CHOSEN_OF_ATOMICS: &[Field] = &[atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE];

/// On-demand paging, which a driver may restrict. Reliable connections and XRC support paging in
/// all operations, datagrams only in sends. Paging outside queue pairs is not offered.
const PAGED: &[(Field, u32)] = &[
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_SEND, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_RECEIVE, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_WRITE, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_READ, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_ATOMIC, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_SRQ_RECEIVE, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_UD_ODP_CAPS_SEND, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SEND, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_WRITE, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_READ, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_ATOMIC, 1),
    (odp::TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SRQ_RECEIVE, 1),
];

/// Maximum number of entries in the list of an indirect memory key, which refers to other keys,
/// log2.
pub(crate) const LOG_MAX_KLM_LIST: u32 = 16;

/// The general capabilities of every function.
const COMMON: &[(Field, u32)] = &[
    (general::LOG_MAX_QP, LOG_MAX_QP),
    (general::LOG_MAX_QP_SZ, 15),
    (general::LOG_MAX_CQ, LOG_MAX_CQ),
    (general::LOG_MAX_CQ_SZ, 22),
    (general::LOG_MAX_SRQ, LOG_MAX_SRQ),
    (general::LOG_MAX_SRQ_SZ, 15),
    (general::LOG_MAX_RMP, LOG_MAX_SRQ),
    (general::LOG_MAX_EQ, 7),
    (general::LOG_MAX_EQ_SZ, 22),
    (general::MAX_NUM_EQS, MAX_EQS),
    (general::LOG_MAX_MKEY, LOG_MAX_MKEY),
    (general::LOG_MAX_KLM_LIST_SIZE, LOG_MAX_KLM_LIST),
    (general::LOG_MAX_PD, LOG_MAX_PD),
    (general::LOG_MAX_XRCD, LOG_MAX_PD),
    (general::LOG_MAX_TRANSPORT_DOMAIN, LOG_MAX_PD),
    (general::LOG_MAX_MCG, LOG_MAX_MCG),
    (general::MAX_QP_MCG, MAX_QP_MCG),
    (general::LOG_MAX_MSG, 30),
    (general::LOG_MAX_RA_REQ_QP, 4),
    (general::LOG_MAX_RA_RES_QP, 4),
    (general::LOG_PG_SZ, 12),
    (general::MAX_WQE_SZ_SQ, 1024),
    (general::MAX_WQE_SZ_RQ, 512),
    (general::LOG_MAX_SQ, LOG_MAX_SQ),
    (general::MAX_QP_CNT, 255),
    (general::OUT_OF_SEQ_CNT, 1),
    (general::VPORT_COUNTERS, 1),
    (general::LOCAL_CA_ACK_DELAY, 16),
    (general::NUM_PORTS, 1),
    (general::RC, 1),
    (general::UC, 1),
    (general::UD, 1),
    (general::XRC, 1),
    (general::ATOMIC, 1),
    (general::IMAICL, 1),
    (general::CQE_VERSION, 1),
    (general::CQ_RESIZE, 1),
    (general::CQ_MODERATION, 1),
    (general::CQ_OI, 1),
    (general::CQE_COMPRESSION, 1),
    (general::CQE_COMPRESSION_128, 1),
    (general::MINI_CQE_RESP_STRIDE_INDEX, 1),
    (general::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED),
    // In microseconds; the model does not follow this value, see `cq::block`.
    (general::CQE_COMPRESSION_TIMEOUT, 16),
    (general::CD, 1),
    (general::QKV, 1),
    (general::PKV, 1),
    (general::BLOCK_LB_MC, 1),
    (general::PG, 1),
    (general::NULL_MKEY, 1),
    (general::DUMP_FILL_MKEY, 1),
    (general::FIXED_BUFFER_SIZE, 1),
    (general::UMR_EXTENDED_TRANSLATION_OFFSET, 1),
    // A window refers to memory keys; these refer to no other keys.
    (general::MAX_INDIRECTION, 1),
    (general::BF, 1),
    (general::LOG_BF_REG_SIZE, 9),
    (general::UAR_4K, 1),
    // The size of the registers and UAR pages, in MiB, log2. Device memory follows in the BAR.
    (general::UAR_SZ, 5),
    (general::NUM_OF_UARS_PER_PAGE, 1),
    (general::DEVICE_FREQUENCY_KHZ, FREQUENCY_KHZ),
    (general::DEVICE_FREQUENCY_MHZ, FREQUENCY_KHZ / 1000),
    (general::DRIVER_VERSION, 1),
    (general::DEVICE_MEMORY, 1),
    (general::ECE_SUPPORT, 1),
];

/// Additional general capabilities on an InfiniBand port: port data through commands instead of
/// MADs, 8 GIDs, 128 partition keys.
const IB: &[(Field, u32)] = &[
    (general::PORT_TYPE, 0),
    (general::IB_VIRT, 1),
    (general::GID_TABLE_SIZE, 0),
    (general::PKEY_TABLE_SIZE, 0),
    // libmlx5 connects the command queue pair over an InfiniBand path, which a RoCE port rejects.
    (general::TAG_MATCHING, 1),
    (general::RNDV_OFFLOAD_RC, 1),
    (general::LOG_TAG_MATCHING_LIST_SZ, LOG_TAG_MATCHING_LIST),
    (general::LOG_MAX_XRQ, LOG_MAX_SRQ),
];

/// Additional general capabilities on a RoCE port.
const ROCE_PORT: &[(Field, u32)] = &[
    (general::PORT_TYPE, 1),
    (general::ROCE, 1),
    (general::ETH_VIRT, 1),
    (general::ETH_NET_OFFLOADS, 1),
    (general::NIC_FLOW_TABLE, 1),
    (general::QOS, 1),
    (general::LOG_MAX_TIR, LOG_MAX_TIR),
    (general::LOG_MAX_TIS, LOG_MAX_TIS),
    (general::LOG_MAX_TIS_PER_SQ, 3),
    (general::LOG_MAX_RQ, LOG_MAX_RQ),
    (general::LOG_MAX_RQT, LOG_MAX_RQT),
    (general::LOG_MAX_RQT_SIZE, LOG_MAX_RQT_SIZE),
    (general::LOG_MAX_CURRENT_UC_LIST, 7),
    (general::LOG_MAX_CURRENT_MC_LIST, 7),
    (general::LOG_MAX_VLAN_LIST, 7),
    (general::LOG_MAX_L2_TABLE, 7),
    (general::MAX_TC, 8),
    (general::DISABLE_LOCAL_LB_UC, 1),
    (general::DISABLE_LOCAL_LB_MC, 1),
    (general::LOG_MAX_WQ_SZ, LOG_MAX_WQ),
    (general::LOG_MAX_STRIDE_SZ_RQ, *LOG_STRIDE.end()),
    (general::LOG_MIN_STRIDE_SZ_RQ, *LOG_STRIDE.start()),
    (general::LOG_MAX_STRIDE_SZ_SQ, 6),
    (general::LOG_MIN_STRIDE_SZ_SQ, 6),
];

const ETHERNET_OFFLOADS: &[(Field, u32)] = &[
    (ethernet::CSUM_CAP, 1),
    (ethernet::VLAN_CAP, 1),
    (ethernet::WQE_VLAN_INSERT, 1),
    (ethernet::MAX_LSO_CAP, 16),
    (ethernet::RSS_IND_TBL_CAP, LOG_MAX_RQT_SIZE),
    (ethernet::SELF_LB_EN_MODIFIABLE, 1),
    // The vport context selects the inline mode.
    (ethernet::WQE_INLINE_MODE, 1),
];

/// Rate limits for send queues. Limits for other queues, groups and the port are not offered.
const PACING: &[(Field, u32)] = &[
    (qos_cap::PACKET_PACING, 1),
    (qos_cap::PACKET_PACING_BURST_BOUND, 1),
    (qos_cap::PACKET_PACING_TYPICAL_SIZE, 1),
    (qos_cap::PACKET_PACING_MAX_RATE, *PACING_RATES.end()),
    (qos_cap::PACKET_PACING_MIN_RATE, *PACING_RATES.start()),
    (qos_cap::PACKET_PACING_RATE_TABLE_SIZE, PACING_TABLE),
];

const ROCE_OFFERED: &[(Field, u32)] = &[
    // Bit mask: 1 GRH, 2 IPv4, 4 IPv6; together RoCE versions 1 and 2.
    (roce_cap::L3_TYPE, 7),
    (roce_cap::ROCE_VERSION, 5),
    (roce_cap::ROCE_ADDRESS_TABLE_SIZE, crate::port::ROCE_ADDRESSES as u32),
    (roce_cap::R_ROCE_DEST_UDP_PORT, 4791),
    (roce_cap::R_ROCE_MIN_SRC_UDP_PORT, crate::port::UDP_SOURCE_PORTS as u32),
    (roce_cap::R_ROCE_MAX_SRC_UDP_PORT, 65535),
];

const ATOMICS: &[(Field, u32)] = &[
    // The driver selects host byte order.
    (atomic_caps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1),
    (atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1),
    // Compare and swap (1), fetch and add (2), on 8-byte operands.
    (atomic_caps::ATOMIC_OPERATIONS, 3),
    (atomic_caps::ATOMIC_SIZE_QP, 8),
];

/// Device memory. Atomic and other operations in it (`memic_operations`) are not offered.
const MEMORY: &[(Field, u32)] = &[
    (device_memory::MEMIC, 1),
    (device_memory::LOG_MIN_MEMIC_ALLOC_SIZE, memic::LOG_UNIT),
    (device_memory::LOG_MAX_MEMIC_ADDR_ALIGNMENT, memic::LOG_MAX_ALIGNMENT),
    (device_memory::MEMIC_BAR_START_ADDR, MEMIC_START as u32),
    (device_memory::MEMIC_BAR_SIZE, MEMIC_SIZE as u32),
    (device_memory::MAX_MEMIC_SIZE, memic::MAX_AREA),
];

/// Capabilities of the flow tables for received frames. The flow tables for sent frames and for
/// RDMA have the same fields at other offsets.
const FLOW_TABLES: &[(Field, u32)] = &[
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_FT_SUPPORT, 1),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_FLOW_MODIFY_EN, 1),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_MODIFY_ROOT, 1),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_IDENTIFIED_MISS_TABLE_MODE, 1),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_FLOW_TABLE_MODIFY, 1),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_LOG_MAX_FT_SIZE, LOG_MAX_TABLE_SIZE as u32),
    // The driver of Linux 6.12 creates tables at level 66.
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_MAX_FT_LEVEL, MAX_LEVEL as u32),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_LOG_MAX_FT_NUM, 8),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_LOG_MAX_DESTINATION, LOG_MAX_DESTINATION as u32),
    (flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_LOG_MAX_FLOW, 20),
];

/// Offsets of the fields for received frames, received RDMA, sent frames and sent RDMA, in bytes.
const FLOW_TABLE_KINDS: [usize; 4] = [0, 0x40, 0xc0, 0x100];

/// The masks of header fields that flow rules for received frames can match. All fields are
/// offered.
const FLOW_FIELDS: [Part; 2] = [
    flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_FT_FIELD_SUPPORT,
    flow::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_FT_FIELD_BITMASK_SUPPORT,
];

impl Capabilities {
    /// Returns the capabilities of a function with this configuration.
    pub fn new(config: &Config) -> Self {
        let mut first = Group::new(GENERAL, &general::TABLE, COMMON);
        first.chosen = CHOSEN;
        first.offer(general::VHCA_ID, config.index as u32);
        first.offer(general::SCTR_DATA_CQE, config.scatter_to_cqe.into());
        let mut atomics = Group::new(ATOMIC, &atomic_caps::TABLE, ATOMICS);
        atomics.chosen = CHOSEN_OF_ATOMICS;
        atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(&mut atomics.now, 0u32);
        let mut groups = vec![Group::new(ODP, &odp::TABLE, PAGED)];
        groups[0].chosen = CHOSEN_OF_PAGING;
        match config.port {
            PortKind::Ib => first.offer_all(IB),
            PortKind::Roce => {
                first.offer_all(ROCE_PORT);
                groups.push(Group::new(ETHERNET, &ethernet::TABLE, ETHERNET_OFFLOADS));
                groups.push(Group::new(ROCE, &roce_cap::TABLE, ROCE_OFFERED));
                groups.push(Group::new(QOS, &qos_cap::TABLE, PACING));
                groups.push(Group::flow_tables());
            }
        }
        groups.push(Group::new(DEVICE_MEMORY, &device_memory::TABLE, MEMORY));
        groups.push(atomics);
        groups.push(first);
        Self { groups }
    }

    /// Returns a capability group's current values if `now` is set, otherwise its maximum values;
    /// `None` if the group is not offered.
    pub(crate) fn query(&self, number: u32, now: bool) -> Option<&[u8]> {
        let group = self.group(number)?;
        Some(if now { &group.now } else { &group.most })
    }

    /// Returns the current value of a general capability.
    pub(crate) fn general(&self, field: Field) -> u32 {
        self.group(GENERAL).map_or(0, |group| field.get32(&group.now))
    }

    /// Returns whether a general capability is offered.
    pub(crate) fn offers(&self, field: Field) -> bool {
        self.general(field) != 0
    }

    /// Sets the current values of a capability group to the driver's choice.
    pub(crate) fn set(&mut self, number: u32, wanted: &[u8]) -> Result<(), Refusal> {
        let Some(group) = self.groups.iter_mut().find(|group| group.number == number) else {
            let what = format!("capability group {number:#x} is not offered");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandModifier, what));
        };
        if let Some((offset, bits)) = group.table.reserved(wanted) {
            let what = format!("capability bits {bits:#x} of dword {offset:#x}");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
        }
        for field in group.table.fields {
            let (asked, most) = (field.get(wanted), field.get(&group.most));
            if asked > most {
                let what = format!("{} is set to {asked}, the maximum is {most}", field.name);
                return Err(Refusal::broken(Status::BadParam, Rule::CommandCapability, what));
            }
        }
        for field in group.chosen {
            field.set(&mut group.now, field.get(wanted));
        }
        Ok(())
    }

    /// Returns whether queue pairs of this service may cause a page fault in the situation `stall`:
    /// when sending, when receiving into their own or a shared queue, or at a peer's request.
    pub(crate) fn pages_on_demand(&self, service: Service, stall: &Stall) -> bool {
        use odp::*;
        let Some(group) = self.group(ODP) else { return false };
        let field = match (service, stall) {
            (Service::Ud, Stall::Send { .. }) => TRANSPORT_PAGE_FAULT_SCHEME_CAP_UD_ODP_CAPS_SEND,
            (Service::Rc, Stall::Send { .. }) => TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_SEND,
            (Service::Rc, Stall::Receive { srq: None, .. }) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_RECEIVE
            }
            (Service::Rc, Stall::Receive { srq: Some(_), .. }) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_SRQ_RECEIVE
            }
            (Service::Rc, Stall::Remote { write: true, .. }) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_WRITE
            }
            (Service::Rc, _) => TRANSPORT_PAGE_FAULT_SCHEME_CAP_RC_ODP_CAPS_READ,
            (Service::XrcInitiator, Stall::Send { .. }) => TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SEND,
            (Service::XrcTarget, Stall::Receive { .. }) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_SRQ_RECEIVE
            }
            (Service::XrcTarget, Stall::Remote { write: true, .. }) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_WRITE
            }
            (Service::XrcInitiator | Service::XrcTarget, _) => {
                TRANSPORT_PAGE_FAULT_SCHEME_CAP_XRC_ODP_CAPS_READ
            }
            _ => return false,
        };
        field.is_set(&group.now)
    }

    fn group(&self, number: u32) -> Option<&Group> {
        self.groups.iter().find(|group| group.number == number)
    }
}

impl Group {
    fn new(number: u32, table: &'static Table, offered: &[(Field, u32)]) -> Self {
        let mut group =
            Self { number, table, chosen: &[], most: vec![0; GROUP_SIZE], now: vec![0; GROUP_SIZE] };
        group.offer_all(offered);
        group
    }

    fn flow_tables() -> Self {
        let mut group = Self::new(FLOW_TABLE, &flow::TABLE, &[]);
        for further in FLOW_TABLE_KINDS {
            for (field, value) in FLOW_TABLES {
                group.offer(Field { dword: field.dword + further, ..*field }, *value);
            }
        }
        for part in FLOW_FIELDS {
            part.bytes_mut(&mut group.most).fill(0xff);
            part.bytes_mut(&mut group.now).fill(0xff);
        }
        group
    }

    fn offer(&mut self, field: Field, value: u32) {
        field.set(&mut self.most, value);
        field.set(&mut self.now, value);
    }

    fn offer_all(&mut self, offered: &[(Field, u32)]) {
        for (field, value) in offered {
            self.offer(*field, *value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(port: PortKind) -> Capabilities {
        Capabilities::new(&Config { index: 0, port, scatter_to_cqe: true })
    }

    #[test]
    fn every_value_fits_its_field() {
        let lists =
            [COMMON, IB, ROCE_PORT, ETHERNET_OFFLOADS, PACING, ROCE_OFFERED, ATOMICS, MEMORY, FLOW_TABLES];
        for (field, value) in lists.into_iter().flatten() {
            assert!(u64::from(*value) <= field.max(), "{}", field.name);
        }
    }

    #[test]
    fn rows_of_the_other_flow_tables_are_where_they_are_taken_to_be() {
        let names = ["RECEIVE", "RECEIVE_RDMA", "TRANSMIT", "TRANSMIT_RDMA"];
        for (further, name) in FLOW_TABLE_KINDS.into_iter().zip(names) {
            for (field, _) in FLOW_TABLES {
                let there = field.name.replace("NIC_RECEIVE", &format!("NIC_{name}"));
                let found = flow::TABLE.fields.iter().find(|field| field.name == there).unwrap();
                assert_eq!((found.dword, found.high), (field.dword + further, field.high), "{there}");
            }
        }
    }

    #[test]
    fn an_ib_function_has_no_ethernet_and_a_roce_function_has() {
        assert!(offered(PortKind::Ib).query(ETHERNET, true).is_none());
        assert!(offered(PortKind::Roce).query(ROCE, false).is_some());
    }

    #[test]
    fn send_queues_of_a_roce_function_have_rates() {
        assert!(offered(PortKind::Ib).query(QOS, true).is_none());
        let caps = offered(PortKind::Roce);
        assert_eq!(caps.general(general::QOS), 1);
        let pacing = caps.query(QOS, true).unwrap();
        assert_eq!(qos_cap::PACKET_PACING.get(pacing), 1);
        assert_eq!(qos_cap::PACKET_PACING_UID.get(pacing), 0, "DevX is not offered");
    }

    #[test]
    fn the_byte_order_of_atomics_is_the_drivers_choice() {
        let mut caps = offered(PortKind::Ib);
        let before = caps.query(ATOMIC, true).unwrap().to_vec();
        assert_eq!(atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.get(&before), 0);
        // Drivers set this field and leave all others 0. That must not change fixed fields.
        let mut wanted = vec![0; GROUP_SIZE];
        atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(&mut wanted, 1u32);
        caps.set(ATOMIC, &wanted).unwrap();
        let after = caps.query(ATOMIC, true).unwrap();
        assert_eq!(atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.get(after), 1);
        assert_eq!(atomic_caps::ATOMIC_OPERATIONS.get(after), 3);
    }

    #[test]
    fn no_more_is_set_than_was_offered() {
        let mut caps = offered(PortKind::Ib);
        let mut wanted = caps.query(GENERAL, true).unwrap().to_vec();
        general::LOG_MAX_QP.set(&mut wanted, LOG_MAX_QP - 1);
        caps.set(GENERAL, &wanted).unwrap();
        assert_eq!(caps.general(general::LOG_MAX_QP), LOG_MAX_QP - 1);
        general::DCT.set(&mut wanted, 1u32);
        let refusal = caps.set(GENERAL, &wanted).unwrap_err();
        assert_eq!(refusal.complaint.unwrap().0, Rule::CommandCapability);
        assert_eq!(caps.general(general::DCT), 0);
    }
}
