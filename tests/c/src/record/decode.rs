//! Decodes a call into a command with named fields.
//!
//! | call | name | fields |
//! |---|---|---|
//! | ioctl | the method, such as `QP_CREATE` | attributes, each with its flags and its length |
//! | ioctl INVOKE_WRITE, `write()` | the command, such as `write REG_MR` | its struct's fields |
//! | `mmap()` | `mmap`, with the command in the offset | offset, length, rights and flags |
//!
//! The fields of driver structs have the prefix `driver.`. An output appears as its length, without
//! its bytes. Numbers that later commands refer to are in [`Command::replies`].

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_COMMAND_MASK, IB_USER_VERBS_CMD_FLAG_EXTENDED, IbUverbsCmdHdr, IbUverbsExCmdHdr,
};
use uverbs_abi::mlx5_abi::Mlx5IbMmapCmd;

use super::schema::{self, Method, WriteCommand};
use super::{Ioctl, Map, RawAttr, Write};

/// A command with named fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The command's name.
    pub name: String,
    /// The errno of a failed command.
    pub errno: Option<i64>,
    /// The fields sent.
    pub fields: Vec<(String, Value)>,
    /// Numbers returned by the kernel: handles, files, keys, offsets.
    pub replies: Vec<(String, u64)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number other than a handle.
    Number(u64),
    /// The number of an object or a file.
    Handle(u64),
    /// The content of a field whose layout is unknown.
    Bytes(Vec<u8>),
}

impl Command {
    fn new(name: impl Into<String>, result: i64) -> Self {
        let errno = (-4095..0).contains(&result).then_some(-result);
        Self { name: name.into(), errno, ..Self::default() }
    }

    fn field(&mut self, name: impl Into<String>, value: Value) {
        self.fields.push((name.into(), value));
    }

    fn number(&mut self, name: impl Into<String>, number: impl Into<u64>) {
        self.field(name, Value::Number(number.into()));
    }

    /// Adds the fields of a struct and returns the bytes after it. For a truncated struct, adds the
    /// complete fields.
    fn structure<'a>(&mut self, prefix: &str, of: &str, bytes: &'a [u8]) -> &'a [u8] {
        for (name, value) in fields_of(of, bytes) {
            self.field(format!("{prefix}{name}"), value);
        }
        let size = schema::type_of(of).map_or(0, |one| one.size);
        bytes.get(size..).unwrap_or_default()
    }
}

/// Decodes an ioctl.
pub fn ioctl(ioctl: &Ioctl) -> Command {
    let (object, method) = (ioctl.header.object_id, ioctl.header.method_id);
    let mut command = if (object, method) == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
        invoke_write(ioctl)
    } else if let Some(method) = schema::find_method(object, method) {
        method_call(ioctl, method)
    } else {
        let mut command = Command::new(format!("{object:#x}.{method:#x}"), ioctl.result);
        for attr in &ioctl.attrs {
            let name = format!("{:#x}", attr.head.attr_id);
            attribute(&mut command, &name, attr, Value::Bytes(payload(attr)));
        }
        command
    };
    command.number("driver_id", ioctl.header.driver_id);
    command
}

fn method_call(ioctl: &Ioctl, method: &Method) -> Command {
    let mut command = Command::new(method.name(), ioctl.result);
    // Receive side scaling uses a separate driver struct.
    let has = |name: &str| ioctl.attrs.iter().any(|one| method.attr(one.head.attr_id) == Some(name));
    let driver =
        if has("UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE") { "mlx5_ib_create_qp_rss" } else { method.driver };
    for attr in &ioctl.attrs {
        let Some(name) = method.attr(attr.head.attr_id) else {
            attribute(&mut command, &format!("{:#x}", attr.head.attr_id), attr, Value::Bytes(payload(attr)));
            continue;
        };
        let short = schema::stripped(name);
        if name == "UVERBS_ATTR_UHW_IN" {
            driver_input(&mut command, driver, attr);
        } else if schema::is_output(name) {
            room(&mut command, short, attr);
            if let (Some(number), None) = (number(&attr.output), command.errno) {
                command.replies.push((short.to_owned(), number));
            }
        } else if attr.head.len == 0 {
            // A new object has no number before the call, so the attribute may contain anything.
            let is_new = attr.head.attr_id & 0xfff == 0
                && ["CREATE", "ALLOC", "REG"].iter().any(|word| method.name().contains(word));
            attribute(
                &mut command,
                short,
                attr,
                if is_new { Value::Number(0) } else { Value::Handle(attr.head.data) },
            );
            if is_new && command.errno.is_none() {
                command.replies.push((short.to_owned(), attr.after.data));
            }
        } else if let Some(of) = schema::struct_of(name) {
            flags(&mut command, short, attr);
            command.structure(&format!("{short}."), of, &payload(attr));
        } else if name == "UVERBS_ATTR_ADVISE_MR_SGE_LIST" {
            flags(&mut command, short, attr);
            for (place, element) in payload(attr).chunks(16).enumerate() {
                command.structure(&format!("{short}.{place}."), "ib_uverbs_sge", element);
            }
        } else {
            let payload = payload(attr);
            let value = number(&payload).map_or(Value::Bytes(payload), Value::Number);
            attribute(&mut command, short, attr, value);
        }
    }
    command
}

/// Decodes a write command wrapped in an ioctl.
fn invoke_write(ioctl: &Ioctl) -> Command {
    let find = |id| ioctl.attrs.iter().find(|attr| attr.head.attr_id == id);
    let code = find(UVERBS_ATTR_WRITE_CMD).map_or(0, |attr| attr.head.data as u32);
    let is_extended = code & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
    let found = schema::find_command(code & IB_USER_VERBS_CMD_COMMAND_MASK, is_extended);
    let mut command = Command::new(write_name("write", found, code), ioctl.result);
    let is_done = command.errno.is_none();
    for attr in &ioctl.attrs {
        match attr.head.attr_id {
            UVERBS_ATTR_WRITE_CMD => flags(&mut command, "WRITE_CMD", attr),
            UVERBS_ATTR_CORE_IN => {
                flags(&mut command, "CORE_IN", attr);
                command.number("CORE_IN.len", attr.head.len);
                core_input(&mut command, found, &payload(attr));
            }
            UVERBS_ATTR_CORE_OUT => {
                room(&mut command, "CORE_OUT", attr);
                if let (Some(found), true) = (found, is_done) {
                    for (name, value) in fields_of(found.reply, &attr.output) {
                        if let Value::Number(number) = value {
                            command.replies.push((name, number));
                        }
                    }
                }
            }
            UVERBS_ATTR_UHW_IN => driver_input(&mut command, found.map_or("", |found| found.driver), attr),
            UVERBS_ATTR_UHW_OUT => room(&mut command, "UHW_OUT", attr),
            id => attribute(&mut command, &format!("{id:#x}"), attr, Value::Bytes(payload(attr))),
        }
    }
    command
}

/// Decodes a `write()`. Ignores the reply, which the kernel writes to an address in the struct.
pub fn write(write: &Write) -> Command {
    let is_extended = write.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
    let found = schema::find_command(write.command & IB_USER_VERBS_CMD_COMMAND_MASK, is_extended);
    let mut command = Command::new(write_name("write()", found, write.command), write.result);
    let header = size_of::<IbUverbsCmdHdr>() + if is_extended { size_of::<IbUverbsExCmdHdr>() } else { 0 };
    command.number("len", write.bytes.len() as u64);
    core_input(&mut command, found, write.bytes.get(header..).unwrap_or_default());
    command
}

/// Decodes a mapping. Bits 8 to 15 of the page number are a command, unless the kernel returned the
/// offset.
pub fn map(map: &Map) -> Command {
    let mut command = Command::new("mmap", map.result);
    let kind = Mlx5IbMmapCmd(((map.offset >> 20) & 0xff) as u8);
    if let Some(name) = kind.name() {
        command.name = format!("mmap {}", name.trim_start_matches("MLX5_IB_MMAP_"));
    }
    command.number("offset", map.offset);
    command.number("length", map.length);
    command.number("protection", map.protection);
    command.number("flags", map.flags);
    command
}

fn write_name(way: &str, found: Option<&WriteCommand>, code: u32) -> String {
    let name = found.map(|found| {
        found.name.trim_start_matches("IB_USER_VERBS_").replacen("EX_CMD_", "EX_", 1).replacen("CMD_", "", 1)
    });
    format!("{way} {}", name.unwrap_or_else(|| format!("{code:#x}")))
}

/// Adds the fields of a write command's struct and of the data after it.
fn core_input(command: &mut Command, found: Option<&WriteCommand>, bytes: &[u8]) {
    let Some(found) = found else {
        return command.field("input", Value::Bytes(bytes.to_vec()));
    };
    let mut rest = command.structure("", found.input, bytes);
    match found.input {
        "ib_uverbs_create_flow" => {
            // Flow specs. Each starts with its type (32 bits) and its length (16 bits).
            for place in 0.. {
                let Some((&[a, b, c, d, low, high, ..], _)) = rest.split_first_chunk::<8>() else { break };
                let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([low, high]));
                let Some((spec, next)) = rest.split_at_checked(usize::from(size).max(8)) else { break };
                command.number(format!("spec.{place}.type"), kind);
                command.number(format!("spec.{place}.size"), size);
                match (kind, spec.get(8..12).and_then(number)) {
                    // Actions that refer to an object.
                    (0x1002 | 0x1003, Some(handle)) => {
                        command.field(format!("spec.{place}.handle"), Value::Handle(handle));
                    }
                    _ => command.field(format!("spec.{place}"), Value::Bytes(spec[8..].to_vec())),
                }
                rest = next;
            }
        }
        "ib_uverbs_ex_create_rwq_ind_table" => {
            for (place, handle) in rest.chunks_exact(4).enumerate() {
                let handle = number(handle).unwrap_or_default();
                // An odd number of handles is followed by padding.
                command.field(format!("wq_handle.{place}"), Value::Handle(handle));
            }
            rest = &[];
        }
        _ => {}
    }
    if !rest.is_empty() {
        command.field("rest", Value::Bytes(rest.to_vec()));
    }
}

fn driver_input(command: &mut Command, of: &str, attr: &RawAttr) {
    flags(command, "UHW_IN", attr);
    command.number("UHW_IN.len", attr.head.len);
    let bytes = payload(attr);
    let mut rest = command.structure("driver.", of, &bytes);
    if of == "mlx5_ib_create_flow" {
        for (place, element) in rest.chunks(16).enumerate() {
            command.structure(&format!("driver.data.{place}."), "mlx5_ib_flow_counters_data", element);
        }
        rest = &[];
    }
    if !rest.is_empty() {
        command.field("driver.rest", Value::Bytes(rest.to_vec()));
    }
}

fn attribute(command: &mut Command, name: &str, attr: &RawAttr, value: Value) {
    command.field(name, value);
    flags(command, name, attr);
    command.number(format!("{name}.len"), attr.head.len);
}

/// Adds an attribute that the kernel fills in.
fn room(command: &mut Command, name: &str, attr: &RawAttr) {
    flags(command, name, attr);
    command.number(format!("{name}.len"), attr.head.len);
}

fn flags(command: &mut Command, name: &str, attr: &RawAttr) {
    command.number(format!("{name}.flags"), attr.head.flags);
}

/// Returns an attribute's input, inline or in memory.
fn payload(attr: &RawAttr) -> Vec<u8> {
    match usize::from(attr.head.len) {
        len @ ..=8 => attr.head.data.to_ne_bytes()[..len].to_vec(),
        _ => attr.input.clone(),
    }
}

/// Returns those fields of a struct that lie within `bytes`. The name of a nested field contains a
/// dot.
fn fields_of(of: &str, bytes: &[u8]) -> Vec<(String, Value)> {
    let mut fields = Vec::new();
    let mut next = 0;
    for field in schema::type_of(of).map_or(&[][..], |one| one.fields) {
        // A second name for the same bytes, or for a part of them, follows the first name.
        let is_again = field.offset < next;
        let Some(part) = bytes.get(field.offset..field.offset + field.size).filter(|_| !is_again) else {
            continue;
        };
        next = field.offset + field.size;
        let name = field.name.trim_start_matches("r#");
        if name.starts_with("_pad") {
            continue;
        }
        match schema::nested(of, name) {
            Some(inner) => {
                let inner = fields_of(inner, part).into_iter();
                fields.extend(inner.map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            None => {
                let value = number(part).map_or_else(|| Value::Bytes(part.to_vec()), Value::Number);
                fields.push((name.to_owned(), value));
            }
        }
    }
    fields
}

/// Returns 1, 2, 4 or 8 bytes as a number; `None` for another length.
fn number(bytes: &[u8]) -> Option<u64> {
    matches!(bytes.len(), 1 | 2 | 4 | 8).then(|| {
        let mut all = [0; 8];
        let (start, end) =
            if cfg!(target_endian = "little") { (0, bytes.len()) } else { (8 - bytes.len(), 8) };
        all[start..end].copy_from_slice(bytes);
        u64::from_ne_bytes(all)
    })
}

#[cfg(test)]
mod tests {
    use uverbs_abi::ib_user_verbs::{IbUverbsAllocPdResp, IbUverbsRegMr};
    use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr};
    use zerocopy::IntoBytes as _;

    use super::*;

    fn attr(attr_id: u16, len: u16, data: u64, input: &[u8], output: &[u8]) -> RawAttr {
        let head = IbUverbsAttr { attr_id, len, data, flags: 1, ..Default::default() };
        RawAttr { head, after: head, input: input.to_vec(), output: output.to_vec() }
    }

    fn call(object_id: u16, method_id: u16, attrs: Vec<RawAttr>) -> Ioctl {
        let header = IbUverbsIoctlHdr { object_id, method_id, driver_id: 6, ..Default::default() };
        Ioctl { at: 0, header, attrs, result: 0 }
    }

    fn get<'a>(command: &'a Command, name: &str) -> Option<&'a Value> {
        command.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    #[test]
    fn a_write_command_in_an_ioctl_has_the_fields_of_its_struct() {
        let request = IbUverbsRegMr { start: 0x1000, length: 64, pd_handle: 3, ..Default::default() };
        let input = request.as_bytes();
        let reply = [7_u32.to_ne_bytes(), 8_u32.to_ne_bytes(), 9_u32.to_ne_bytes()].concat();
        let command = ioctl(&call(
            0,
            0,
            vec![
                attr(0, input.len() as u16, 0x7000, input, input),
                attr(1, 12, 0x8000, &reply, &reply),
                attr(2, 8, 9, &[], &[]),
            ],
        ));
        assert_eq!(command.name, "write REG_MR");
        assert_eq!(get(&command, "start"), Some(&Value::Number(0x1000)));
        assert_eq!(get(&command, "pd_handle"), Some(&Value::Number(3)));
        assert_eq!(get(&command, "CORE_OUT.len"), Some(&Value::Number(12)));
        assert_eq!(get(&command, "driver_id"), Some(&Value::Number(6)));
        let replies = [("mr_handle", 7), ("lkey", 8), ("rkey", 9)].map(|(name, of)| (name.to_owned(), of));
        assert_eq!(command.replies, replies);
    }

    #[test]
    fn attributes_are_named_and_new_objects_are_replies() {
        let driver = [0_u8; 16];
        let mut handle = attr(0, 0, 0xffff, &[], &[]);
        handle.after.data = 5;
        let attrs = vec![
            handle,
            attr(1, 4, 60, &[], &[]),
            attr(3, 0, 11, &[], &[]),
            attr(6, 4, 0x9000, &[1; 4], &63_u32.to_ne_bytes()),
            attr(0x1000, 16, 0xa000, &driver, &driver),
        ];
        let command = ioctl(&call(3, 0, attrs));
        assert_eq!(command.name, "CQ_CREATE");
        assert_eq!(get(&command, "CREATE_CQ_CQE"), Some(&Value::Number(60)));
        assert_eq!(get(&command, "CREATE_CQ_COMP_CHANNEL"), Some(&Value::Handle(11)));
        assert_eq!(get(&command, "driver.db_addr"), Some(&Value::Number(0)));
        assert_eq!(get(&command, "driver.cqe_size"), None, "the input ends before it");
        let replies = [("CREATE_CQ_HANDLE", 5), ("CREATE_CQ_RESP_CQE", 63)];
        assert_eq!(command.replies, replies.map(|(name, of)| (name.to_owned(), of)));
    }

    #[test]
    fn methods_and_attributes_that_no_header_names_keep_their_numbers() {
        let command = ioctl(&call(77, 3, vec![attr(4, 2, 0x0102, &[], &[])]));
        assert_eq!(command.name, "0x4d.0x3");
        assert!(matches!(get(&command, "0x4"), Some(Value::Bytes(bytes)) if bytes.len() == 2));
        let command = ioctl(&call(3, 0, vec![attr(99, 2, 0x0102, &[], &[])]));
        assert!(get(&command, "0x63").is_some());
    }

    #[test]
    fn a_write_is_decoded_behind_its_headers_and_a_short_one_has_no_fields() {
        let mut bytes = vec![0; 8];
        bytes.extend(0x7000_u64.to_ne_bytes());
        let one = Write { command: 3, bytes, result: -13 };
        let command = write(&one);
        assert_eq!((&*command.name, command.errno), ("write() ALLOC_PD", Some(13)));
        assert_eq!(get(&command, "response"), Some(&Value::Number(0x7000)));
        let short = write(&Write { bytes: vec![0; 5], ..one });
        assert_eq!(get(&short, "response"), None);
        assert_eq!(size_of::<IbUverbsAllocPdResp>(), 4);
    }

    #[test]
    fn a_rule_has_its_specs_and_the_objects_that_they_name() {
        let spec = |kind: u32, body: &[u8]| {
            let size = 8 + body.len() as u16;
            [&kind.to_ne_bytes()[..], &size.to_ne_bytes(), &[0; 2], body].concat()
        };
        let count = spec(0x1003, &[9_u32.to_ne_bytes(), [0; 4]].concat());
        // The headers and the struct.
        let mut bytes = vec![0; 24 + 24];
        bytes.extend([spec(0x20, &[7; 32]), count, vec![1]].concat());
        let command = write(&Write { command: 50 | IB_USER_VERBS_CMD_FLAG_EXTENDED, bytes, result: 0 });
        assert_eq!(command.name, "write() EX_CREATE_FLOW");
        assert_eq!(get(&command, "spec.0.type"), Some(&Value::Number(0x20)));
        assert_eq!(get(&command, "spec.0"), Some(&Value::Bytes(vec![7; 32])));
        assert_eq!(get(&command, "spec.1.handle"), Some(&Value::Handle(9)));
        assert_eq!(get(&command, "rest"), Some(&Value::Bytes(vec![1])));
    }

    #[test]
    fn a_mappings_offset_has_a_command() {
        let offset = u64::from(Mlx5IbMmapCmd::MLX5_IB_MMAP_CORE_CLOCK.0) << 20;
        let command = map(&Map { length: 4096, protection: 1, flags: 1, offset, result: 0x7000_0000 });
        assert_eq!(command.errno, None);
        assert_eq!(command.name, "mmap CORE_CLOCK");
        let chosen = map(&Map { length: 4096, protection: 2, flags: 1, offset: 9 << 20, result: -22 });
        assert_eq!((&*chosen.name, chosen.errno), ("mmap", Some(22)));
        assert_eq!(get(&chosen, "offset"), Some(&Value::Number(9 << 20)));
    }
}
