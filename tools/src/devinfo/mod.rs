//! `ibv_devinfo`: the capabilities of RDMA devices and the state of their ports.
//!
//! | file | content |
//! |---|---|
//! | [`text`] | values as rdma-core's text |
//! | [`json`] | the same values as JSON |
//! | [`names`] | names of values and bits |
//!
//! The C program reads a port's GID table entry by entry, with several files for each entry. This
//! program requests the whole device's table from the kernel in one call.
//!
//! # References
//! `ibv_devinfo(1)`

pub mod json;
pub mod names;
pub mod text;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json as object};
use verbs::{Context, Device, DeviceAttrEx, DeviceList, GidEntry};

use crate::console::{Console, complain_of_missing, complain_of_no_devices, list_devices};
use crate::ctext::strtol;
use crate::devices::skipped_json;
use crate::getopt::{Getopt, Long, Spec};
use text::{DeviceText, GidText, PortDetails, PortText};

/// Runs the program with its command line and returns the exit status.
pub fn main(mut args: impl Iterator<Item = OsString>) -> u8 {
    let program = args.next().unwrap_or_else(|| "ibv_devinfo".into());
    let mut console = Console::new(program.clone());
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let getopt = Getopt::new(SPEC, program, args.collect(), posixly_correct);
    match command(getopt, &mut console) {
        Ok(Command::List { as_json }) => list_names(as_json, &mut console),
        Ok(Command::Show(options)) => show(&options, &mut console),
        Err(status) => status,
    }
}

const SPEC: Spec = Spec::new(
    "d:i:lv",
    &[
        Long::value("ib-dev", b'd'),
        Long::value("ib-port", b'i'),
        Long::flag("list", b'l'),
        Long::flag("verbose", b'v'),
        Long::extension("json", JSON),
    ],
);

/// The internal letter of `--json`, which has no short option.
const JSON: u8 = 0;

/// The command-line options.
#[derive(Debug)]
enum Command {
    List { as_json: bool },
    Show(Options),
}

#[derive(Debug, Default)]
struct Options {
    /// The device to show; `None` for all devices.
    device: Option<OsString>,
    /// The port to show; 0 for all ports.
    port: u8,
    verbose: bool,
    as_json: bool,
}

/// Parses the command line. The error is the exit status, and the failure has been reported.
fn command(mut getopt: Getopt, console: &mut Console) -> Result<Command, u8> {
    let mut options = Options::default();
    while let Some(option) = getopt.next() {
        let option = option.map_err(|misuse| {
            console.misuse(&misuse);
            console.say(Usage(&console.program().display().to_string()));
            FAILED
        })?;
        match option.val {
            b'd' => options.device = Some(option.arg),
            b'i' => {
                let port = strtol(option.arg.as_bytes()) as i32;
                if port <= 0 {
                    console.say(Usage(&console.program().display().to_string()));
                    return Err(1);
                }
                // As in C, the port number is truncated to a byte.
                options.port = port as u8;
            }
            b'v' => options.verbose = true,
            JSON => options.as_json = true,
            // The rest of the command line has no effect, valid or not, except for our extension,
            // which may appear anywhere.
            _ => {
                let mut rest = std::iter::from_fn(|| getopt.next());
                let as_json = options.as_json || rest.any(|option| option.is_ok_and(|o| o.val == JSON));
                return Ok(Command::List { as_json });
            }
        }
    }
    Ok(Command::Show(options))
}

/// The usage text.
struct Usage<'a>(&'a str);

impl fmt::Display for Usage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Usage: {}             print the ca attributes\n\
             \n\
             Options:\n\
             \x20 -d, --ib-dev=<dev>     use IB device <dev> (default all devices)\n\
             \x20 -i, --ib-port=<port>   use port <port> of IB device (default all ports)\n\
             \x20 -l, --list             print only the IB devices names\n\
             \x20 -v, --verbose          print all the attributes of the IB device(s)\n",
            self.0
        )
    }
}

fn list_names(as_json: bool, console: &mut Console) -> u8 {
    let Some(list) = list_devices(console) else { return FAILED };
    if as_json {
        let names: Vec<&str> = list.iter().map(Device::name).collect();
        let listing = object!({ "devices": names, "skipped": skipped_json(&list) });
        console.say(format_args!("{listing:#}\n"));
        return 0;
    }
    let plural = if list.len() == 1 { "" } else { "s" };
    console.say(format_args!("{} HCA{plural} found:\n", list.len()));
    for device in &list {
        console.say(format_args!("\t{}\n", device.name()));
    }
    console.say("\n");
    complain_of_missing(console, &list);
    0
}

fn show(options: &Options, console: &mut Console) -> u8 {
    let Some(list) = list_devices(console) else { return FAILED };
    let chosen = match choose(&list, options, console) {
        Ok(chosen) => chosen,
        Err(status) => return status,
    };
    let mut status = 0;
    let mut shown = Vec::new();
    for device in &chosen {
        match look(device, options, console) {
            Ok(value) => shown.extend(value),
            Err(failed) => status |= failed,
        }
    }
    if options.as_json {
        let listing = object!({ "devices": shown, "skipped": skipped_json(&list) });
        console.say(format_args!("{listing:#}\n"));
    }
    status
}

/// Returns the requested devices, or the exit status after reporting that there are none.
fn choose(list: &DeviceList, options: &Options, console: &mut Console) -> Result<Vec<Device>, u8> {
    let Some(name) = &options.device else {
        if list.is_empty() {
            complain_of_no_devices(console, list);
            return Err(FAILED);
        }
        complain_of_missing(console, list);
        return Ok(list.iter().cloned().collect());
    };
    match list.find(&name.to_string_lossy()) {
        Ok(device) => Ok(vec![device]),
        Err(error) => {
            console.complain(format_args!("IB device '{}' wasn't found", name.display()));
            console.reason(error);
            Err(FAILED)
        }
    }
}

/// Prints a device, or returns it as JSON. The error is the exit status, and the failure has been
/// reported.
fn look(device: &Device, options: &Options, console: &mut Console) -> Result<Option<Value>, u8> {
    let fail = |console: &mut Console, line: fmt::Arguments<'_>, reason: &dyn fmt::Display, status| {
        console.complain(line);
        console.reason(reason);
        status
    };
    let context =
        device.open().map_err(|error| fail(console, format_args!("Failed to open device"), &error, 1))?;
    let attr = context
        .query_device_ex()
        .map_err(|error| fail(console, format_args!("Failed to query device props"), &error, 2))?;
    let phys_port_cnt = attr.orig_attr.phys_port_cnt;
    if options.port > phys_port_cnt {
        let reason = format!("{} has ports 1 to {phys_port_cnt}, and no {}", device.name(), options.port);
        return Err(fail(console, format_args!("Invalid port requested for device"), &reason, 4));
    }
    let mut view = View { as_json: options.as_json, json: None, ports: Vec::new() };
    view.device(&device_text(device, &context, &attr, options, board_id(device).as_deref()), console);
    let mut gids = None;
    for port_num in (1..=phys_port_cnt).filter(|port| options.port == 0 || options.port == *port) {
        let port = context.query_port(port_num).map_err(|error| {
            let status = error.errno.raw() as u8;
            fail(console, format_args!("Failed to query port {port_num} props"), &error, status)
        })?;
        let details = PortDetails { transport: device.transport_type(), effective_speed: None };
        let text = PortText { port_num, attr: &port, verbose: options.verbose.then_some(details) };
        view.port(&text, console);
        if options.verbose {
            let table = match &mut gids {
                Some(table) => table,
                none => none.insert(context.gid_table().map_err(|error| {
                    let line = format_args!("Failed to query gid to port {port_num}, index 0");
                    fail(console, line, &error, FAILED)
                })?),
            };
            view.gids(table, &text, console);
        }
        view.end_of_port(console);
    }
    let closed = context
        .close()
        .map_err(|failed| fail(console, format_args!("Failed to close device"), &failed.error, 3));
    closed.map(|()| view.into_json())
}

fn device_text<'a>(
    device: &'a Device,
    context: &Context,
    attr: &'a DeviceAttrEx,
    options: &Options,
    board_id: Option<&'a str>,
) -> DeviceText<'a> {
    DeviceText {
        name: device.name(),
        transport: device.transport_type(),
        board_id,
        attr,
        verbose: options.verbose,
        num_comp_vectors: context.num_comp_vectors(),
    }
}

/// Returns the board's name from sysfs, without the line break. A device without a kernel driver is
/// not in sysfs and has no board name.
fn board_id(device: &Device) -> Option<String> {
    let directory = device.info().ibdev_path();
    if directory.as_os_str().is_empty() {
        return None;
    }
    let bytes = fs::read(directory.join("board_id")).ok()?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    (!line.is_empty()).then(|| String::from_utf8_lossy(line).into_owned())
}

/// A device being shown. It is printed piece by piece as text, or collected as JSON.
#[derive(Debug)]
struct View {
    as_json: bool,
    json: Option<serde_json::Map<String, Value>>,
    ports: Vec<Value>,
}

impl View {
    fn device(&mut self, device: &DeviceText<'_>, console: &mut Console) {
        if self.as_json {
            self.json = Some(json::device(device));
        } else {
            console.say(device);
        }
    }

    fn port(&mut self, port: &PortText<'_>, console: &mut Console) {
        if self.as_json {
            self.ports.push(json::port(port).into());
        } else {
            console.say(port);
        }
    }

    /// Shows the GIDs of the previously shown port.
    fn gids(&mut self, table: &[GidEntry], port: &PortText<'_>, console: &mut Console) {
        let of_port = table.iter().filter(|entry| entry.port_num == u32::from(port.port_num));
        if self.as_json {
            if let Some(last) = self.ports.last_mut() {
                last["gids"] = of_port.filter_map(json::gid).collect();
            }
        } else {
            of_port.for_each(|entry| console.say(GidText { entry, link_layer: port.attr.link_layer }));
        }
    }

    fn end_of_port(&self, console: &mut Console) {
        if !self.as_json {
            console.say("\n");
        }
    }

    fn into_json(self) -> Option<Value> {
        let mut device = self.json?;
        device.insert("ports".into(), self.ports.into());
        Some(device.into())
    }
}

/// The exit status for a return value of -1.
const FAILED: u8 = 255;

#[cfg(test)]
mod tests;
