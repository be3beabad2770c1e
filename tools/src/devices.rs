//! `ibv_devices`: the names and node GUIDs of the RDMA devices.
//!
//! # References
//! `ibv_devices(1)`

use std::ffi::OsString;
use std::fmt;

use serde_json::{Value, json};
use verbs::{Device, DeviceList};

use crate::console::{Console, complain_of_missing, list_devices};

/// Runs the program with its command line and returns the exit status.
///
/// Like the C program, ignores all arguments, except our addition `--json`.
pub fn main(mut args: impl Iterator<Item = OsString>) -> u8 {
    let mut console = Console::new(args.next().unwrap_or_else(|| "ibv_devices".into()));
    let as_json = args.any(|arg| arg == "--json");
    let Some(list) = list_devices(&mut console) else { return 1 };
    if as_json {
        console.say(format_args!("{:#}\n", devices_json(&list)));
    } else {
        console.say(format_args!("    {:<16}\t   node GUID\n", "device"));
        console.say(format_args!("    {:<16}\t----------------\n", "------"));
        for device in &list {
            console.say(Row(device));
        }
        complain_of_missing(&mut console, &list);
    }
    0
}

/// The output line for a device.
struct Row<'a>(&'a Device);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    {:<16}\t{:016x}", self.0.name(), self.0.guid().0)
    }
}

/// Returns the found and the omitted devices, as JSON.
pub fn devices_json(list: &DeviceList) -> Value {
    let devices: Vec<Value> = list
        .iter()
        .map(|device| {
            json!({
                "name": device.name(),
                "node_guid": device.guid().to_string(),
                "node_type": device.node_type().to_string(),
                "transport": device.transport_type().to_string(),
                "provider": device.driver().name,
                "char_device": char_device(device),
            })
        })
        .collect();
    json!({ "devices": devices, "skipped": skipped_json(list) })
}

/// Returns the path of the device's file. `None` for a device without a kernel driver, such as a
/// soft device.
fn char_device(device: &Device) -> Option<String> {
    let path = device.info().cdev_path();
    (!path.as_os_str().is_empty()).then(|| path.to_string_lossy().into_owned())
}

/// Returns the omitted devices, with the reasons.
pub fn skipped_json(list: &DeviceList) -> Value {
    let one =
        |skipped: &verbs::Skipped| json!({ "name": skipped.name, "reason": skipped.reason.to_string() });
    list.skipped().iter().map(one).collect()
}
