//! Flow steering: CREATE, MODIFY, DESTROY and QUERY of flow tables, groups, entries and counters;
//! setting the root tables.
//!
//! The data path is in [`state::steering`](crate::state::steering).

use crate::bus::Bus;
use crate::caps::{LOG_MAX_DESTINATION, LOG_MAX_TABLE_SIZE, MAX_LEVEL};
use crate::checks::{bad, busy, missing, none_of, not_offered, reserved};
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::steering::{dest_format_struct, flow_context};
use crate::layout::{Field, dword, steering as layout};
use crate::refusal::{Refusal, Status};
use crate::state::eth::Ethernet;
use crate::state::steering::{
    Destination, FlowEntry, FlowGroup, FlowTable, MATCH_SIZE, MAX_PARTS, MAX_TABLES, RECEIVE,
};

/// Maximum number of counters per flow entry, as reported by QUERY_HCA_CAP.
const MAX_COUNTERS: usize = 1;
/// The numbers of the table kinds: received and sent frames, received and sent RDMA.
const KINDS: [u64; 4] = [RECEIVE as u64, 1, 7, 8];
/// Miss actions, for a frame that matches no entry: the default action, or a jump to another table.
const MISS_DEFAULT: u64 = 0;
const MISS_FORWARD: u64 = 1;
/// Bit that selects the field changed by MODIFY_FLOW_TABLE: the miss action.
const MODIFY_MISS: u64 = 1;
/// The SET_FLOW_TABLE_ROOT operation that leaves no root table.
const DISCONNECT: u64 = 1;
/// The action bits of a flow entry.
const ALLOW: u32 = 1;
const DROP: u32 = 2;
const FORWARD: u32 = 4;
const COUNT: u32 = 8;
/// The kinds of destinations of a flow entry.
const TO_TABLE: u32 = 1;
const TO_TIR: u32 = 2;
/// Bits that select the fields changed by SET_FLOW_TABLE_ENTRY in an existing entry: action, tag,
/// destinations, counters.
const CHANGES: u64 = 0xf;

/// Returns the flow table with this id and kind.
fn table(eth: &mut Ethernet, kind: u64, id: u32) -> Result<&mut FlowTable, Refusal> {
    let table = eth.steering.tables.get_mut(&id).filter(|table| u64::from(table.kind) == kind);
    table.ok_or_else(|| missing(format!("flow table {id:#x} of kind {kind}")))
}

/// Returns the flow table to which a frame goes after a miss; `None` for the default action.
fn miss(eth: &Ethernet, kind: u64, level: u8, action: u64, id: u32) -> Result<Option<u32>, Refusal> {
    match action {
        MISS_DEFAULT => Ok(None),
        MISS_FORWARD => {
            let next = eth.steering.tables.get(&id).filter(|next| u64::from(next.kind) == kind);
            let next = next.ok_or_else(|| missing(format!("flow table {id:#x} of kind {kind}")))?;
            if next.level <= level {
                return Err(bad(format!("a miss leads from level {level} to {}", next.level)));
            }
            Ok(Some(id))
        }
        other => Err(bad(format!("miss action {other}"))),
    }
}

/// Rejects references to tables of other functions: the model has no switch.
fn own(fields: &[Field], input: &[u8]) -> Result<(), Refusal> {
    none_of(fields, input)
}

pub(super) fn create_table<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use layout::create_flow_table_in as fields;
    own(
        &[fields::OTHER_VPORT, fields::OTHER_ESWITCH, fields::VPORT_NUMBER, fields::ESWITCH_OWNER_VHCA_ID],
        input,
    )?;
    none_of(
        &[
            fields::REFORMAT_EN,
            fields::DECAP_EN,
            fields::SW_OWNER,
            fields::TERMINATION_TABLE,
            fields::RTC_VALID,
            fields::LAG_MASTER_NEXT_TABLE_ID,
        ],
        input,
    )?;
    let eth = &mut function.core.eth;
    let kind = fields::TABLE_TYPE.get(input);
    if !KINDS.contains(&kind) {
        return Err(not_offered(format!("flow tables of kind {kind}")));
    }
    let (level, log_size) = (fields::LEVEL.get(input), fields::LOG_SIZE.get(input));
    if level > MAX_LEVEL || log_size > LOG_MAX_TABLE_SIZE {
        return Err(bad(format!("2^{log_size} entries at level {level}")));
    }
    let action = fields::TABLE_MISS_ACTION.get(input);
    let miss = miss(eth, kind, level as u8, action, fields::TABLE_MISS_ID.get32(input))?;
    let id = if eth.steering.tables.len() < MAX_TABLES { eth.number() } else { None };
    let id = id.ok_or(Refusal::fair(Status::NoResources))?;
    let table = FlowTable {
        kind: kind as u8,
        level: level as u8,
        log_size: log_size as u8,
        miss,
        groups: Default::default(),
        entries: Default::default(),
    };
    eth.steering.tables.insert(id, table);
    layout::create_flow_table_out::TABLE_ID.set(output, id);
    Ok(())
}

pub(super) fn modify_table<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_flow_table_in as fields;
    own(
        &[fields::OTHER_VPORT, fields::OTHER_ESWITCH, fields::VPORT_NUMBER, fields::ESWITCH_OWNER_VHCA_ID],
        input,
    )?;
    let eth = &mut function.core.eth;
    let (kind, id) = (fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input));
    let level = table(eth, kind, id)?.level;
    let changes = fields::MODIFY_FIELD_SELECT.get(input);
    if changes != MODIFY_MISS {
        return Err(not_offered(format!("a change of fields {changes:#x}")));
    }
    let action = fields::TABLE_MISS_ACTION.get(input);
    let miss = miss(eth, kind, level, action, fields::TABLE_MISS_ID.get32(input))?;
    table(eth, kind, id)?.miss = miss;
    Ok(())
}

pub(super) fn destroy_table<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::destroy_flow_table_in as fields;
    let eth = &mut function.core.eth;
    let (kind, id) = (fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input));
    let table = table(eth, kind, id)?;
    if !table.groups.is_empty() || !table.entries.is_empty() {
        return Err(busy(format!("flow table {id:#x} has groups")));
    }
    if eth.steering.leads_to_table(id) {
        return Err(busy(format!("flow table {id:#x} is in use by a miss or an entry")));
    }
    // Drivers destroy the last table without first removing it as the root.
    eth.steering.roots.retain(|_, root| *root != id);
    eth.steering.tables.remove(&id);
    eth.free_number(id);
    Ok(())
}

pub(super) fn query_table<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use layout::query_flow_table_in as fields;
    use layout::query_flow_table_out as out;
    let eth = &mut function.core.eth;
    let table = table(eth, fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input))?;
    out::LEVEL.set(output, table.level);
    out::LOG_SIZE.set(output, table.log_size);
    out::TABLE_MISS_ACTION.set(output, if table.miss.is_some() { MISS_FORWARD } else { MISS_DEFAULT });
    out::TABLE_MISS_ID.set(output, table.miss.unwrap_or(0));
    Ok(())
}

pub(super) fn set_root<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::set_flow_table_root_in as fields;
    own(
        &[
            fields::OTHER_VPORT,
            fields::OTHER_ESWITCH,
            fields::VPORT_NUMBER,
            fields::TABLE_OF_OTHER_VPORT,
            fields::UNDERLAY_QPN,
            fields::TABLE_ESWITCH_OWNER_VHCA_ID_VALID,
        ],
        input,
    )?;
    let eth = &mut function.core.eth;
    let (kind, id) = (fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input));
    if fields::OP_MOD.get(input) == DISCONNECT {
        eth.steering.roots.remove(&(kind as u8));
        return Ok(());
    }
    let kind = table(eth, kind, id)?.kind;
    eth.steering.roots.insert(kind, id);
    Ok(())
}

/// Checks that the limit on the parts of all tables permits a group or an entry with `parts` parts
/// in place of one with `had` parts. Updates the total.
fn room(eth: &mut Ethernet, had: usize, parts: usize) -> Result<(), Refusal> {
    let parts = eth.steering.parts.saturating_sub(had) + parts;
    if parts > MAX_PARTS {
        return Err(Refusal::fair(Status::NoResources));
    }
    eth.steering.parts = parts;
    Ok(())
}

pub(super) fn create_group<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use layout::create_flow_group_in as fields;
    own(
        &[fields::OTHER_VPORT, fields::OTHER_ESWITCH, fields::VPORT_NUMBER, fields::ESWITCH_OWNER_VHCA_ID],
        input,
    )?;
    none_of(&[fields::GROUP_TYPE, fields::MATCH_DEFINER_ID], input)?;
    let eth = &mut function.core.eth;
    let (kind, id) = (fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input));
    let (first, last) = (fields::START_FLOW_INDEX.get32(input), fields::END_FLOW_INDEX.get32(input));
    let of = table(eth, kind, id)?;
    if first > last || u64::from(last) >= 1 << of.log_size {
        return Err(bad(format!("a group from {first} to {last} in a table of 2^{} entries", of.log_size)));
    }
    if of.groups.values().any(|group| first <= group.last && group.first <= last) {
        return Err(bad(format!("a group from {first} to {last}, which overlaps another")));
    }
    room(eth, 0, 1)?;
    let Some(number) = eth.number() else {
        room(eth, 1, 0)?;
        return Err(Refusal::fair(Status::NoResources));
    };
    let enabled = fields::MATCH_CRITERIA_ENABLE.get(input) as u8;
    let group = FlowGroup::new(first, last, enabled, &match_bytes(fields::MATCH_CRITERIA.bytes(input)));
    table(eth, kind, id)?.groups.insert(number, group);
    layout::create_flow_group_out::GROUP_ID.set(output, number);
    Ok(())
}

fn match_bytes(bytes: &[u8]) -> Box<[u8; MATCH_SIZE]> {
    let mut all = Box::new([0; MATCH_SIZE]);
    if bytes.len() == MATCH_SIZE {
        all.copy_from_slice(bytes);
    }
    all
}

pub(super) fn destroy_group<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::destroy_flow_group_in as fields;
    let eth = &mut function.core.eth;
    let table = table(eth, fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input))?;
    let number = fields::GROUP_ID.get32(input);
    if !table.groups.contains_key(&number) {
        return Err(missing(format!("flow group {number:#x}")));
    }
    if table.entries.values().any(|entry| entry.group == number) {
        return Err(busy(format!("flow group {number:#x} has entries")));
    }
    table.groups.remove(&number);
    room(eth, 1, 0)?;
    eth.free_number(number);
    Ok(())
}

pub(super) fn set_entry<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::set_fte_in as fields;
    own(
        &[fields::OTHER_VPORT, fields::OTHER_ESWITCH, fields::VPORT_NUMBER, fields::ESWITCH_OWNER_VHCA_ID],
        input,
    )?;
    none_of(&[fields::IGNORE_FLOW_LEVEL], input)?;
    let eth = &mut function.core.eth;
    let (kind, id) = (fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input));
    let index = fields::FLOW_INDEX.get32(input);
    let changes = fields::OP_MOD.get(input) == 1;
    if fields::MODIFY_ENABLE_MASK.get(input) & !CHANGES != 0 {
        return Err(bad("an unknown change"));
    }
    let level = table(eth, kind, id)?.level;
    let entry = entry(eth, kind, level, input)?;
    let of = table(eth, kind, id)?;
    let group = of.groups.get(&entry.group);
    let group = group.ok_or_else(|| missing(format!("flow group {:#x}", entry.group)))?;
    if !(group.first..=group.last).contains(&index) {
        return Err(bad(format!("entry {index} in a group from {} to {}", group.first, group.last)));
    }
    let had = of.entries.get(&index).map(FlowEntry::parts);
    match (had, changes) {
        (Some(_), false) => return Err(busy(format!("entry {index} exists"))),
        (None, true) => return Err(missing(format!("entry {index}"))),
        _ => room(eth, had.unwrap_or(0), entry.parts())?,
    }
    table(eth, kind, id)?.entries.insert(index, entry);
    Ok(())
}

/// Decodes an entry from a command's input. Checks that its destinations and counters exist.
fn entry(eth: &Ethernet, kind: u64, level: u8, input: &[u8]) -> Result<FlowEntry, Refusal> {
    let context = layout::set_fte_in::FLOW_CONTEXT.bytes(input);
    let list = input.get(layout::set_fte_in::TABLE.size..).unwrap_or_default();
    reserved(&flow_context::TABLE, context)?;
    none_of(
        &[
            flow_context::EXTENDED_DESTINATION,
            flow_context::UPLINK_HAIRPIN_EN,
            flow_context::ENCRYPT_DECRYPT_TYPE,
            flow_context::PACKET_REFORMAT_ID,
            flow_context::MODIFY_HEADER_ID,
        ],
        context,
    )?;
    let action = flow_context::ACTION.get32(context);
    if action & !(ALLOW | DROP | FORWARD | COUNT) != 0 {
        return Err(not_offered(format!("actions {action:#x}")));
    }
    let destinations = flow_context::DESTINATION_LIST_SIZE.get(context) as usize;
    let counters = flow_context::FLOW_COUNTER_LIST_SIZE.get(context) as usize;
    if destinations > 1 << LOG_MAX_DESTINATION || counters > MAX_COUNTERS {
        return Err(bad(format!("{destinations} destinations and {counters} counters")));
    }
    // The driver's list may have unused space after its entries.
    if destinations + counters > list.len() / dest_format_struct::SIZE {
        return Err(bad(format!(
            "{destinations} destinations and {counters} counters in {} bytes",
            list.len()
        )));
    }
    let (_, unused) = list.split_at((destinations + counters) * dest_format_struct::SIZE);
    if unused.iter().any(|byte| *byte != 0) {
        let what = format!("nonzero bytes after {destinations} destinations and {counters} counters");
        return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
    }
    let mut places = list.chunks_exact(dest_format_struct::SIZE);
    let destinations = places.by_ref().take(destinations);
    let destinations =
        destinations.map(|place| destination(eth, kind, level, place)).collect::<Result<_, _>>()?;
    let counters: Vec<u32> = places.take(counters).map(|place| dword(place, 0)).collect();
    if let Some(counter) = counters.iter().find(|counter| !eth.steering.counters.contains_key(counter)) {
        return Err(missing(format!("flow counter {counter:#x}")));
    }
    Ok(FlowEntry {
        group: flow_context::GROUP_ID.get32(context),
        value: match_bytes(flow_context::MATCH_VALUE.bytes(context)),
        tag: flow_context::FLOW_TAG.get32(context),
        drop: action & DROP != 0,
        destinations,
        counters,
    })
}

fn destination(eth: &Ethernet, kind: u64, level: u8, place: &[u8]) -> Result<Destination, Refusal> {
    let id = dest_format_struct::DESTINATION_ID.get32(place);
    match dest_format_struct::DESTINATION_TYPE.get32(place) {
        TO_TABLE => {
            let next = eth.steering.tables.get(&id).filter(|next| u64::from(next.kind) == kind);
            let next = next.ok_or_else(|| missing(format!("flow table {id:#x} of kind {kind}")))?;
            if next.level <= level {
                return Err(bad(format!("an entry leads from level {level} to {}", next.level)));
            }
            Ok(Destination::Table(id))
        }
        TO_TIR if !eth.tirs.contains_key(&id) => Err(missing(format!("TIR {id:#x}"))),
        TO_TIR => Ok(Destination::Tir(id)),
        other => Err(not_offered(format!("destinations of kind {other}"))),
    }
}

pub(super) fn delete_entry<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::delete_fte_in as fields;
    let eth = &mut function.core.eth;
    let table = table(eth, fields::TABLE_TYPE.get(input), fields::TABLE_ID.get32(input))?;
    let index = fields::FLOW_INDEX.get32(input);
    let gone = table.entries.remove(&index).ok_or_else(|| missing(format!("entry {index}")))?;
    room(eth, gone.parts(), 0)
}

pub(super) fn alloc_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use layout::alloc_flow_counter_in as fields;
    none_of(&[fields::FLOW_COUNTER_BULK, fields::FLOW_COUNTER_BULK_LOG_SIZE], input)?;
    let eth = &mut function.core.eth;
    let number = if eth.steering.counters.len() < MAX_TABLES { eth.number() } else { None };
    let number = number.ok_or(Refusal::fair(Status::NoResources))?;
    eth.steering.counters.insert(number, (0, 0));
    layout::alloc_flow_counter_out::FLOW_COUNTER_ID.set(output, number);
    Ok(())
}

pub(super) fn dealloc_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let eth = &mut function.core.eth;
    let number = layout::dealloc_flow_counter_in::FLOW_COUNTER_ID.get32(input);
    let mut entries = eth.steering.tables.values().flat_map(|table| table.entries.values());
    if entries.any(|entry| entry.counters.contains(&number)) {
        return Err(busy(format!("flow counter {number:#x} is in use by an entry")));
    }
    eth.steering.counters.remove(&number).ok_or_else(|| missing(format!("flow counter {number:#x}")))?;
    eth.free_number(number);
    Ok(())
}

pub(super) fn query_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use layout::query_flow_counter_in as fields;
    let eth = &mut function.core.eth;
    let number = fields::FLOW_COUNTER_ID.get32(input);
    if fields::NUM_OF_COUNTERS.get(input) > 1 {
        return Err(not_offered("a query of several counters"));
    }
    let counted = eth.steering.counters.get_mut(&number);
    let counted = counted.ok_or_else(|| missing(format!("flow counter {number:#x}")))?;
    let place = layout::query_flow_counter_out::FLOW_STATISTICS;
    crate::layout::put(output, place, &counted.0.to_be_bytes());
    crate::layout::put(output, place + 8, &counted.1.to_be_bytes());
    if fields::CLEAR.is_set(input) {
        *counted = (0, 0);
    }
    Ok(())
}
