//! `ibv_asyncwatch`: prints the asynchronous events of a device until the device is removed.
//!
//! # References
//! `ibv_asyncwatch(1)`

use std::ffi::OsString;
use std::os::fd::AsRawFd as _;

use verbs::{AsyncEventType, Device, Element};

use crate::console::{Console, Failed, list_devices};
use crate::getopt::{Getopt, Long, Spec};

const SPEC: Spec = Spec::new("d:h", &[Long::value("ib-dev", b'd'), Long::flag("help", b'h')]);

/// Runs the program with its command line and returns the exit status.
pub fn main(mut args: impl Iterator<Item = OsString>) -> u8 {
    let program = args.next().unwrap_or_else(|| "ibv_asyncwatch".into());
    let mut console = Console::new(program.clone());
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let mut getopt = Getopt::new(SPEC, program, args.collect(), posixly_correct);
    let mut ib_dev = None;
    while let Some(option) = getopt.next() {
        match option {
            Ok(option) if option.val == b'd' => ib_dev = Some(option.arg),
            Ok(_) => {
                usage(&mut console);
                return 0;
            }
            Err(misuse) => {
                console.misuse(&misuse);
                usage(&mut console);
                return 1;
            }
        }
    }
    match choose(ib_dev, &mut console).and_then(|device| watch(&device, &mut console)) {
        Ok(()) => 0,
        Err(Failed) => 1,
    }
}

/// Returns the device with this name, or the first device if no name is given.
fn choose(ib_dev: Option<OsString>, console: &mut Console) -> Result<Device, Failed> {
    let list = list_devices(console).ok_or(Failed)?;
    let name = ib_dev.as_deref().unwrap_or_default().display();
    let found = match ib_dev {
        Some(_) => list.find(&name.to_string()),
        None => list.first(),
    };
    found.map_err(|error| {
        console.complain(format_args!("IB device {name} not found"));
        console.because(error)
    })
}

/// Prints events as they arrive. As in C, stops once no more can be read.
fn watch(device: &Device, console: &mut Console) -> Result<(), Failed> {
    let opened = device.open().and_then(|context| context.async_events());
    let events = opened.map_err(|error| {
        console.complain(format_args!("Couldn't get context for {}", device.name()));
        console.because(error)
    })?;
    console.say(format_args!("{}: async event FD {}\n", device.name(), events.as_raw_fd()));
    console.flush();
    loop {
        match events.wait(None) {
            Ok(Some(event)) => {
                console.say(line(event.event_type, &event.element));
                console.flush();
            }
            Ok(None) => {}
            Err(error) => return Err(console.because(error)),
        }
    }
}

/// Returns the output line for an event. The program creates no objects, so every event concerns a
/// port or the device. The device counts as port 0.
fn line(event_type: AsyncEventType, element: &Element) -> String {
    let port_num = match element {
        Element::Port(port_num) => *port_num,
        _ => 0,
    };
    format!("  event_type {} ({}), port {port_num}\n", name(event_type), event_type.0)
}

/// Returns the C name of an event type.
fn name(event_type: AsyncEventType) -> &'static str {
    match event_type {
        AsyncEventType::DEVICE_FATAL => "IBV_EVENT_DEVICE_FATAL",
        AsyncEventType::PORT_ACTIVE => "IBV_EVENT_PORT_ACTIVE",
        AsyncEventType::PORT_ERR => "IBV_EVENT_PORT_ERR",
        AsyncEventType::LID_CHANGE => "IBV_EVENT_LID_CHANGE",
        AsyncEventType::PKEY_CHANGE => "IBV_EVENT_PKEY_CHANGE",
        AsyncEventType::SM_CHANGE => "IBV_EVENT_SM_CHANGE",
        AsyncEventType::CLIENT_REREGISTER => "IBV_EVENT_CLIENT_REREGISTER",
        AsyncEventType::GID_CHANGE => "IBV_EVENT_GID_CHANGE",
        AsyncEventType::DEVICE_SPEED_CHANGE => "IBV_EVENT_DEVICE_SPEED_CHANGE",
        _ => "unexpected",
    }
}

fn usage(console: &mut Console) {
    let program = console.program().display().to_string();
    console.say(format_args!(
        "Usage:
  {program}            start an asyncwatch process

Options:
  -d, --ib-dev=<dev>     use IB device <dev> (default first device found)
  -h, --help             print a help text and exit
"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_print_as_c_prints_them() {
        assert_eq!(
            line(AsyncEventType::GID_CHANGE, &Element::Port(2)),
            "  event_type IBV_EVENT_GID_CHANGE (18), port 2\n"
        );
        assert_eq!(
            line(AsyncEventType::DEVICE_FATAL, &Element::Device),
            "  event_type IBV_EVENT_DEVICE_FATAL (8), port 0\n"
        );
        assert_eq!(line(AsyncEventType(99), &Element::Unknown(7)), "  event_type unexpected (99), port 0\n");
    }
}
