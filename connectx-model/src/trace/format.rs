//! Formats trace lines: one function per kind of line, with field names from the layout tables.
//!
//! | line | contents |
//! |---|---|
//! | `command` | a command: name, status, input fields as `in.`, the created object as `out` |
//! | `record` | a doorbell record, as read by the device |
//! | `store` | a store to a UAR page |
//! | `wqe` | a send: its segments |
//! | `receive` | a receive: its scatter list |
//! | `cqe`, `eqe` | an entry written by the device |
//! | `complaint` | a broken rule |
//! | `mark` | a mark set by the user |
//!
//! Fields whose value is 0 are omitted. Values contain no spaces or are quoted.

use std::fmt::Write as _;

use crate::complaint::Rule;
use crate::layout::iseg::{command_in, command_out};
use crate::layout::{Part, Table, cq, cqe, dword, eq, eqe, eth, mkey, qp, qword, srq, steering, wqe};

/// All kinds of lines.
pub const KINDS: &[&str] =
    &["command", "record", "store", "wqe", "receive", "cqe", "eqe", "complaint", "mark"];

/// Formats a command with its input and output.
pub fn command(name: &str, table: &Table, input: &[u8], output: &[u8]) -> String {
    let mut line = format!("command name={name} opcode={:#x}", command_in::OPCODE.get(input));
    let _ = write!(
        line,
        " status={:#x} syndrome={:#x}",
        command_out::STATUS.get(output),
        command_out::SYNDROME.get(output)
    );
    describe(&mut line, "in.", table, input);
    if let Some(list @ 1..) = input.len().checked_sub(table.size) {
        let _ = write!(line, " in.list={list:#x}");
    }
    // Commands that create an object return the object's number in the third dword.
    if (name.starts_with("CREATE_") || name.starts_with("ALLOC_")) && command_out::STATUS.get(output) == 0 {
        let _ = write!(line, " out={:#x}", dword(output, 8));
    }
    line
}

/// The queue that a doorbell record belongs to, and the record's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// A queue pair's send queue.
    Send,
    /// A queue pair's receive queue.
    Receive,
    /// A shared receive queue.
    Shared,
    /// The consumer index of a completion queue.
    Completion,
    /// The arm word of a completion queue.
    Arm,
}

impl Queue {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Send => ("sq", "qpn"),
            Self::Receive => ("rq", "qpn"),
            Self::Shared => ("srq", "srqn"),
            Self::Completion => ("cq", "cqn"),
            Self::Arm => ("arm", "cqn"),
        }
    }
}

/// Formats a word of a doorbell record.
pub fn record(queue: Queue, number: u32, value: u32) -> String {
    let (queue, key) = queue.words();
    format!("record queue={queue} {key}={number:#x} value={value:#x}")
}

/// Formats a store to a UAR page, with the meaning of the stored bytes.
pub fn store(uar: u32, offset: u64, bytes: &[u8]) -> String {
    let mut line = format!("store uar={uar:#x} offset={offset:#x} size={:#x}", bytes.len());
    match (offset, bytes.len()) {
        (0x20, 8) => {
            let (arm, cqn) = (dword(bytes, 0), dword(bytes, 4));
            let (sequence, command, index) = (arm >> 28, arm >> 24 & 0xf, arm & 0xff_ffff);
            let _ =
                write!(line, " cqn={cqn:#x} sequence={sequence:#x} command={command:#x} index={index:#x}");
        }
        (0x40 | 0x48, 4) => {
            let value = dword(bytes, 0);
            let _ = write!(line, " eqn={:#x} index={:#x}", value >> 24, value & 0xff_ffff);
        }
        // The first 8 bytes of a work request, stored at the start of a BlueFlame register's half.
        // Halves start at multiples of 256 bytes.
        (0x800.., 8..) if offset.is_multiple_of(0x100) => {
            let _ = write!(
                line,
                " index={:#x} opcode={:#x}",
                wqe::ctrl::WQE_INDEX.get(bytes),
                wqe::ctrl::OPCODE.get(bytes)
            );
            let _ = write!(line, " qpn={:#x} ds={:#x}", wqe::ctrl::QPN.get(bytes), wqe::ctrl::DS.get(bytes));
        }
        _ => {}
    }
    let _ = write!(line, " bytes={}", hex(bytes));
    line
}

/// The kind of segment between a send's control segment and its other segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// No such segment.
    None,
    /// The address vector of a datagram send.
    Datagram,
    /// The number of an XRC shared receive queue.
    Xrc,
    /// The Ethernet segment with its inline headers.
    Ethernet,
}

/// Formats a work request of a send queue. `bytes` are its DS × 16 bytes.
pub fn wqe(qpn: u32, address: Address, bytes: &[u8]) -> String {
    use wqe::ctrl;
    let mut line = format!("wqe qpn={qpn:#x} index={:#x}", ctrl::WQE_INDEX.get(bytes));
    let opcode = ctrl::OPCODE.get32(bytes);
    let _ = write!(line, " name={}", opcode_name(opcode));
    describe(&mut line, "ctrl.", &ctrl::TABLE, bytes);
    let mut rest = bytes.get(ctrl::SIZE..).unwrap_or_default();
    let mut take = |len: usize| {
        let (head, tail) = rest.split_at(len.min(rest.len()));
        rest = tail;
        head
    };
    match address {
        Address::None => {}
        Address::Ethernet => {
            let head = take(wqe::eth::SIZE);
            describe(&mut line, "eth.", &wqe::eth::TABLE, head);
            let inlined = wqe::eth::INLINE_HEADER_SIZE.get(head) as usize;
            if !wqe::eth::INSERT_VLAN.is_set(head)
                && let len @ 1.. = inlined.saturating_sub(2)
            {
                // The segment itself contains the first two bytes of the header; bytes after the
                // header are stale.
                let header = take(len.next_multiple_of(16));
                let _ = write!(line, " header={}", hex(header.get(..len).unwrap_or(header)));
            }
        }
        Address::Datagram => describe(&mut line, "av.", &wqe::datagram::TABLE, take(wqe::datagram::SIZE)),
        Address::Xrc => describe(&mut line, "xrc.", &wqe::xrc::TABLE, take(wqe::xrc::SIZE)),
    }
    match opcode {
        WRITE | WRITE_IMM | READ | COMPARE_SWAP | FETCH_ADD => {
            describe(&mut line, "raddr.", &wqe::remote_address::TABLE, take(wqe::remote_address::SIZE));
        }
        UMR => {
            describe(&mut line, "umr.", &wqe::umr_ctrl::TABLE, take(wqe::umr_ctrl::SIZE));
            let context = take(mkey::mkc::SIZE);
            describe(&mut line, "mkey.", &mkey::mkc::TABLE, context);
            let list = take(usize::MAX);
            if mkey::mkc::ACCESS_MODE_1_0.get(context) == ACCESS_MODE_KLM {
                for (place, klm) in list.chunks_exact(wqe::klm::SIZE).enumerate() {
                    describe(&mut line, &format!("klm{place}."), &wqe::klm::TABLE, klm);
                }
            } else {
                // The list's page addresses, or the address of a list that is not inline.
                let _ = write!(line, " list_bytes={:#x} address={}", list.len(), hex(list));
            }
        }
        TAG_MATCHING => {
            let segment = take(wqe::tag_matching::SIZE);
            describe(&mut line, "tm.", &wqe::tag_matching::TABLE, segment);
        }
        // A work request in an Ethernet queue has its header before its data.
        TSO if address == Address::Ethernet => {}
        TSO | NOP => {
            let _ = write!(line, " rest={}", hex(take(usize::MAX)));
        }
        _ => {}
    }
    match opcode {
        COMPARE_SWAP => describe(&mut line, "atomic.", &wqe::atomic::TABLE, take(wqe::atomic::SIZE)),
        FETCH_ADD => {
            // The second operand is stale, because the driver does not write it.
            let operands = take(wqe::atomic::SIZE);
            let _ =
                write!(line, " atomic.add={:#x} atomic.stale={:#x}", qword(operands, 0), qword(operands, 8));
        }
        _ => {}
    }
    data(&mut line, rest);
    let _ = write!(line, " bytes={}", hex(bytes));
    line
}

/// Formats a receive; `list` is its scatter list.
pub fn receive(queue: Queue, number: u32, index: u32, list: &[u8]) -> String {
    let (queue, key) = queue.words();
    let mut line = format!("receive queue={queue} {key}={number:#x} index={index:#x}");
    for (place, element) in list.chunks(wqe::data::SIZE).enumerate() {
        describe(&mut line, &format!("data{place}."), &wqe::data::TABLE, element);
        if wqe::data::LKEY.get(element) == TERMINATOR && wqe::data::BYTE_COUNT.get(element) == 0 {
            // Bytes after the terminator are stale.
            break;
        }
    }
    line
}

/// Formats a completion. `entry` is the last 64 bytes of its queue entry; `payload` is the length
/// of its payload.
pub fn cqe(cqn: u32, index: u32, entry: &[u8], payload: usize) -> String {
    let mut line = format!("cqe cqn={cqn:#x} index={index:#x}");
    match cqe::cqe::OPCODE.get(entry) {
        13 | 14 => describe(&mut line, "", &cqe::error_cqe::TABLE, entry),
        _ if cqe::tm_cqe::APP.is_set(entry) => {
            describe(&mut line, "", &cqe::cqe::TABLE, entry);
            describe(&mut line, "tm.", &cqe::tm_cqe::TABLE, entry);
        }
        _ => describe(&mut line, "", &cqe::cqe::TABLE, entry),
    }
    if payload > 0 {
        let _ = write!(line, " payload={payload:#x}");
    }
    line
}

/// Formats a completion of a compressed block as if it were uncompressed, with its index in the
/// block and the block's number of completions.
pub fn compressed(cqn: u32, index: u32, entry: &[u8], place: usize, count: u32) -> String {
    cqe(cqn, index, entry, 0) + &format!(" block_place={place:#x} block_size={count:#x}")
}

/// Formats an event.
pub fn eqe(eqn: u32, index: u32, entry: &[u8]) -> String {
    let kind = eqe::eqe::EVENT_TYPE.get(entry);
    let mut line = format!("eqe eqn={eqn:#x} index={index:#x} type={kind:#x}");
    let _ = write!(line, " subtype={:#x}", eqe::eqe::EVENT_SUB_TYPE.get(entry));
    let table = match kind {
        0x00 => &eqe::completion::TABLE,
        0x01..=0x03 | 0x05 | 0x07 | 0x10..=0x14 => &eqe::qp_srq::TABLE,
        0x04 => &eqe::cq_error::TABLE,
        0x09 => &eqe::port::TABLE,
        0x0a => &eqe::command::TABLE,
        0x0b => &eqe::page_request::TABLE,
        0x0c if eqe::eqe::EVENT_SUB_TYPE.get(entry) == 0 => &eqe::wqe_page_fault::TABLE,
        0x0c => &eqe::rdma_page_fault::TABLE,
        _ => return line,
    };
    describe(&mut line, "", table, eqe::eqe::EVENT_DATA.bytes(entry));
    line
}

/// Formats a complaint.
pub fn complaint(rule: Rule, what: &str) -> String {
    format!("complaint rule={rule:?} what={what:?}")
}

/// Formats a mark. A mark starts a section of the trace.
pub fn mark(text: &str) -> String {
    format!("mark text={text:?}")
}

const NOP: u32 = 0x00;
const WRITE: u32 = 0x08;
const WRITE_IMM: u32 = 0x09;
const TSO: u32 = 0x0e;
const READ: u32 = 0x10;
const COMPARE_SWAP: u32 = 0x11;
const FETCH_ADD: u32 = 0x12;
const UMR: u32 = 0x25;
const TAG_MATCHING: u32 = 0x28;

fn opcode_name(opcode: u32) -> &'static str {
    match opcode {
        NOP => "NOP",
        0x01 => "SEND_INVAL",
        WRITE => "RDMA_WRITE",
        WRITE_IMM => "RDMA_WRITE_IMM",
        0x0a => "SEND",
        0x0b => "SEND_IMM",
        TSO => "TSO",
        READ => "RDMA_READ",
        COMPARE_SWAP => "ATOMIC_CS",
        FETCH_ADD => "ATOMIC_FA",
        UMR => "UMR",
        TAG_MATCHING => "TAG_MATCHING",
        _ => "unknown",
    }
}

/// The key of the element that ends a scatter list.
const TERMINATOR: u64 = 0x100;

/// Appends the data segments, which are pointers to memory or inline data.
fn data(line: &mut String, mut rest: &[u8]) {
    let mut place = 0;
    while rest.len() >= 4 {
        let len = if wqe::inline::IS_INLINE.is_set(rest) {
            let count = wqe::inline::BYTE_COUNT.get(rest) as usize;
            let bytes = rest.get(4..).map(|bytes| &bytes[..count.min(bytes.len())]).unwrap_or_default();
            let _ = write!(line, " inline{place}.byte_count={count:#x} inline{place}.data={}", hex(bytes));
            (4 + count).next_multiple_of(16)
        } else {
            describe(line, &format!("data{place}."), &wqe::data::TABLE, rest);
            wqe::data::SIZE
        };
        rest = rest.get(len..).unwrap_or_default();
        place += 1;
    }
}

/// The access mode of a memory key that consists of pieces of other keys.
const ACCESS_MODE_KLM: u64 = 2;

/// Appends every nonzero field of a table and of the tables of its parts.
fn describe(line: &mut String, prefix: &str, table: &Table, bytes: &[u8]) {
    for field in table.fields {
        let value = field.get(bytes);
        if value != 0 {
            let _ = write!(line, " {prefix}{}={value:#x}", field.name.to_ascii_lowercase());
        }
    }
    for part in table.parts {
        let inside = part.bytes(bytes);
        match part_table(table, part) {
            Some(table) => describe(line, &format!("{prefix}{}.", part_name(part)), table, inside),
            None if inside.iter().any(|byte| *byte != 0) => {
                let _ = write!(line, " {prefix}{}={}", part_name(part), hex(inside));
            }
            None => {}
        }
    }
}

fn part_name(part: &Part) -> String {
    part.name.to_ascii_lowercase()
}

/// Returns the table of a part, if the part's type is known.
fn part_table(table: &Table, part: &Part) -> Option<&'static Table> {
    let object = |word: &str| table.name.split('_').any(|part| part == word);
    Some(match part.name {
        "QPC" => &qp::qpc::TABLE,
        "PRIMARY_ADDRESS_PATH" | "SECONDARY_ADDRESS_PATH" => &qp::ads::TABLE,
        "CQ_CONTEXT" => &cq::cqc::TABLE,
        "EQ_CONTEXT_ENTRY" => &eq::eqc::TABLE,
        "MEMORY_KEY_MKEY_ENTRY" => &mkey::mkc::TABLE,
        "SRQ_CONTEXT_ENTRY" => &srq::srqc::TABLE,
        "XRC_SRQ_CONTEXT_ENTRY" => &srq::xrc_srqc::TABLE,
        "WQ" => &srq::wq::TABLE,
        "XRQ_CONTEXT" => &srq::xrqc::TABLE,
        "RQT_CONTEXT" => &eth::rqtc::TABLE,
        "FLOW_CONTEXT" => &steering::flow_context::TABLE,
        "CTX" if object("rmp") => &srq::rmpc::TABLE,
        "CTX" if object("sq") => &eth::sqc::TABLE,
        "CTX" if object("rq") => &eth::rqc::TABLE,
        "CTX" if object("rqt") => &eth::rqtc::TABLE,
        "CTX" if object("tis") => &eth::tisc::TABLE,
        "CTX" if object("tir") => &eth::tirc::TABLE,
        _ => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(fields: &[(&crate::layout::Field, u64)], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (field, value) in fields {
            field.set(&mut bytes, *value);
        }
        bytes
    }

    #[test]
    fn a_command_is_traced_with_its_context_and_its_object() {
        let mut input = segment(&[(&command_in::OPCODE, 0x500)], qp::create_qp_in::SIZE + 16);
        qp::qpc::PD.set(qp::create_qp_in::QPC.bytes_mut(&mut input), 7u32);
        qp::ads::RLID
            .set(qp::qpc::PRIMARY_ADDRESS_PATH.bytes_mut(qp::create_qp_in::QPC.bytes_mut(&mut input)), 3u32);
        let mut output = [0; 16];
        output[11] = 0x42;
        let line = command("CREATE_QP", &qp::create_qp_in::TABLE, &input, &output);
        assert_eq!(
            line,
            "command name=CREATE_QP opcode=0x500 status=0x0 syndrome=0x0 in.opcode=0x500 in.qpc.pd=0x7 \
             in.qpc.primary_address_path.rlid=0x3 in.list=0x10 out=0x42"
        );
        output[0] = 6;
        assert!(!command("CREATE_QP", &qp::create_qp_in::TABLE, &input, &output).contains("out="));
    }

    #[test]
    fn stores_are_traced_with_their_meaning() {
        let doorbell = [0x00, 0x00, 0x05, 0x0a, 0x00, 0x00, 0x47, 0x03];
        assert_eq!(
            store(0x21, 0x900, &doorbell),
            "store uar=0x21 offset=0x900 size=0x8 index=0x5 opcode=0xa qpn=0x47 ds=0x3 bytes=0000050a00004703"
        );
        assert_eq!(
            store(0x21, 0x908, &doorbell),
            "store uar=0x21 offset=0x908 size=0x8 bytes=0000050a00004703"
        );
        assert_eq!(
            store(2, 0x20, &[0x31, 0, 0, 9, 0, 0, 0, 4]),
            "store uar=0x2 offset=0x20 size=0x8 cqn=0x4 sequence=0x3 command=0x1 index=0x9 bytes=3100000900000004"
        );
        assert_eq!(
            store(2, 0x40, &[3, 0, 0, 9]),
            "store uar=0x2 offset=0x40 size=0x4 eqn=0x3 index=0x9 bytes=03000009"
        );
    }

    #[test]
    fn a_send_is_traced_segment_by_segment() {
        use wqe::{ctrl, data, datagram, remote_address};
        let control = |opcode: u64, ds: u64| {
            segment(&[(&ctrl::OPCODE, opcode), (&ctrl::WQE_INDEX, 9), (&ctrl::QPN, 7), (&ctrl::DS, ds)], 16)
        };
        let pointer = segment(&[(&data::BYTE_COUNT, 5), (&data::LKEY, 0x700), (&data::ADDRESS, 0x1000)], 16);
        let raddr = segment(&[(&remote_address::VA, 0x2000), (&remote_address::RKEY, 0x800)], 16);
        let write = wqe(7, Address::None, &[control(8, 3), raddr.clone(), pointer.clone()].concat());
        assert!(
            write.starts_with(
                "wqe qpn=0x7 index=0x9 name=RDMA_WRITE ctrl.wqe_index=0x9 ctrl.opcode=0x8 ctrl.qpn=0x7 \
                 ctrl.ds=0x3 raddr.va=0x2000 raddr.rkey=0x800 data0.byte_count=0x5 data0.lkey=0x700 \
                 data0.address=0x1000 bytes="
            ),
            "{write}"
        );
        let address = segment(&[(&datagram::Q_KEY, 0x11), (&datagram::DQPN, 3)], 48);
        let mut inline = vec![0x80, 0, 0, 2, 0xaa, 0xbb];
        inline.resize(16, 0xee);
        let send = wqe(7, Address::Datagram, &[control(10, 6), address, inline, pointer].concat());
        assert!(
            send.contains("av.q_key=0x11 av.dqpn=0x3 inline0.byte_count=0x2 inline0.data=aabb data1."),
            "{send}"
        );
        let operands = [&5u64.to_be_bytes()[..], &77u64.to_be_bytes()].concat();
        let add = wqe(7, Address::None, &[control(0x12, 4), raddr.clone(), operands.clone()].concat());
        assert!(add.contains("atomic.add=0x5 atomic.stale=0x4d"), "{add}");
        let swap = wqe(7, Address::None, &[control(0x11, 4), raddr, operands].concat());
        assert!(swap.contains("atomic.swap_add=0x5 atomic.compare=0x4d"), "{swap}");
    }

    #[test]
    fn a_frame_is_traced_with_its_header_and_its_data() {
        use wqe::{ctrl, data, eth};
        let control =
            |opcode: u64, ds: u64| segment(&[(&ctrl::OPCODE, opcode), (&ctrl::QPN, 7), (&ctrl::DS, ds)], 16);
        let pointer = segment(&[(&data::BYTE_COUNT, 5), (&data::LKEY, 0x700), (&data::ADDRESS, 0x1000)], 16);
        let mut ethernet = segment(&[(&eth::INLINE_HEADER_SIZE, 6), (&eth::MSS, 100)], 16);
        ethernet[14..].copy_from_slice(&[0xa1, 0xa2]);
        let rest = [&[0xa3, 0xa4, 0xa5, 0xa6][..], &[0xee; 12]].concat();
        for opcode in [0x0a, 0x0e] {
            let bytes = [control(opcode, 4), ethernet.clone(), rest.clone(), pointer.clone()].concat();
            let line = wqe(7, Address::Ethernet, &bytes);
            let expected = "eth.mss=0x64 eth.inline_header_size=0x6 eth.inline_header_start=a1a2 header=a3a4a5a6 \
                            data0.byte_count=0x5 data0.lkey=0x700 data0.address=0x1000 bytes=";
            assert!(line.contains(expected), "{line}");
        }
        let none = [control(0x0a, 3), segment(&[], 16), pointer].concat();
        assert!(!wqe(7, Address::Ethernet, &none).contains("header"));
    }

    #[test]
    fn an_entry_of_a_flow_table_is_traced_field_by_field() {
        let mut input = vec![0; steering::set_fte_in::SIZE + 8];
        let context = steering::set_fte_in::FLOW_CONTEXT.bytes_mut(&mut input);
        steering::flow_context::GROUP_ID.set(context, 5u32);
        steering::flow_context::ACTION.set(context, 4u32);
        let line = command("SET_FLOW_TABLE_ENTRY", &steering::set_fte_in::TABLE, &input, &[0; 16]);
        assert!(
            line.contains("in.flow_context.group_id=0x5 in.flow_context.action=0x4 in.list=0x8"),
            "{line}"
        );
    }

    #[test]
    fn arbitrary_bytes_of_a_guest_can_be_traced() {
        for len in 0..80 {
            for byte in [0, 0x12, 0x25, 0x80, 0xff] {
                let bytes = vec![byte; len];
                for address in [Address::None, Address::Datagram, Address::Xrc] {
                    assert!(wqe(1, address, &bytes).starts_with("wqe "));
                }
                receive(Queue::Shared, 1, 2, &bytes);
                cqe(1, 2, &bytes, 3);
                eqe(1, 2, &bytes);
                store(1, 0x800, &bytes);
                command("CREATE_QP", &qp::create_qp_in::TABLE, &bytes, &bytes);
            }
        }
    }

    #[test]
    fn a_scatter_list_ends_with_its_terminator() {
        let pointer = segment(&[(&wqe::data::BYTE_COUNT, 5), (&wqe::data::LKEY, 0x700)], 16);
        let end = segment(&[(&wqe::data::LKEY, 0x100)], 16);
        let line = receive(Queue::Receive, 7, 1, &[pointer.clone(), end, pointer].concat());
        assert_eq!(
            line,
            "receive queue=rq qpn=0x7 index=0x1 data0.byte_count=0x5 data0.lkey=0x700 data1.lkey=0x100"
        );
    }

    #[test]
    fn completions_and_events_are_traced_by_kind() {
        let mut entry =
            segment(&[(&cqe::cqe::OPCODE, 2), (&cqe::cqe::QPN, 7), (&cqe::cqe::BYTE_CNT, 64)], 64);
        assert_eq!(
            cqe(3, 1, &entry, 64),
            "cqe cqn=0x3 index=0x1 byte_cnt=0x40 qpn=0x7 opcode=0x2 payload=0x40"
        );
        cqe::cqe::OPCODE.set(&mut entry, 13u32);
        cqe::error_cqe::SYNDROME.set(&mut entry, 0x15u32);
        assert!(cqe(3, 1, &entry, 0).contains(" syndrome=0x15 "));
        let mut event = segment(&[(&eqe::eqe::EVENT_TYPE, 4), (&eqe::eqe::OWNER, 1)], 64);
        eqe::cq_error::CQN.set(eqe::eqe::EVENT_DATA.bytes_mut(&mut event), 9u32);
        assert_eq!(eqe(2, 0, &event), "eqe eqn=0x2 index=0x0 type=0x4 subtype=0x0 cqn=0x9");
    }
}
