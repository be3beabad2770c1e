//! [`CounterFiles`]: a device's counters as files, in the format of sysfs.
//!
//! While packets arrive or leave, the worker writes the files once a second. It writes the final
//! counts when the device is closed. An exiting process does so too ([`exit`]), because a program
//! may run for less than a second.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use roce::engine::Time;

use crate::device::exit;
use crate::io::Counters;

/// The files and their last written contents.
#[derive(Debug)]
pub(crate) struct CounterFiles {
    files: Vec<(PathBuf, Value)>,
    written: Counters,
    at: Time,
    /// Whether other processes add their counts to the same files.
    is_shared: bool,
}

/// The minimum time between writes of changed counters, in nanoseconds.
pub(crate) const INTERVAL: u64 = 1_000_000_000;

impl CounterFiles {
    /// Creates the files of a new device: the standard files of every port, and the files specific
    /// to soft devices.
    pub(crate) fn create(port: &Path, kind: &Path) -> io::Result<Self> {
        for (folder, counters) in [(port, PORT), (kind, KIND)] {
            for (name, _) in counters {
                create(&folder.join(name), 0)?;
            }
        }
        // The file contains milliseconds.
        create(&kind.join("lifespan"), INTERVAL / 1_000_000)?;
        Ok(Self { is_shared: false, ..Self::shared(port, kind) })
    }

    /// Uses existing files, which several processes share. Each process adds its counts to them.
    pub(crate) fn shared(port: &Path, kind: &Path) -> Self {
        let named = |folder: &Path, &(name, value): &Named| (folder.join(name), value);
        let files =
            PORT.iter().map(|of| named(port, of)).chain(KIND.iter().map(|of| named(kind, of))).collect();
        Self { files, written: Counters::default(), at: Time(0), is_shared: true }
    }

    /// Writes the counters if they have changed and [`INTERVAL`] has passed since the last write.
    /// If a later write is needed, returns its time.
    pub(crate) fn update(&mut self, now: Time, counters: impl Fn() -> Counters) -> Option<Time> {
        let counters = counters();
        if counters == self.written {
            return None;
        }
        let due = Time(self.at.0 + INTERVAL);
        if now < due {
            return Some(due);
        }
        // The process that holds the lock may be stopped, for example by a debugger.
        let is_written = self.write(&counters);
        self.at = now;
        (!is_written).then_some(Time(now.0 + INTERVAL))
    }

    /// Writes changed counters for the last time, to files that remain after the process exits.
    /// Returns `false` while another process has the lock. Allocates nothing.
    pub(crate) fn finish(&mut self, counters: &Counters) -> bool {
        !self.is_shared || *counters == self.written || self.write(counters)
    }

    /// Writes the counters and returns `true`, or `false` while another process has the lock.
    fn write(&mut self, counters: &Counters) -> bool {
        let lock = self.is_shared.then(|| lock(&self.files[0].0));
        match lock {
            Some(Ok(None)) => return false,
            // This user may not write the files.
            Some(Err(_)) => {}
            None | Some(Ok(Some(_))) => {
                for (path, value) in &self.files {
                    let (new, old) = (value(counters), value(&self.written));
                    if new != old {
                        // The device works without its files.
                        let _ =
                            if self.is_shared { add(path, new.wrapping_sub(old)) } else { write(path, new) };
                    }
                }
            }
        }
        self.written = *counters;
        true
    }
}

fn create(path: &Path, number: u64) -> io::Result<()> {
    fs::write(path, format!("{number}\n"))?;
    exit::remove(path);
    Ok(())
}

/// Writes a number with at least as many digits as the previous one. The file is never empty.
fn write(path: &Path, number: u64) -> io::Result<()> {
    write_at_start(&OpenOptions::new().write(true).open(path)?, number)
}

fn write_at_start(file: &File, number: u64) -> io::Result<()> {
    let mut text = [0; DIGITS];
    let mut rest = &mut text[..];
    writeln!(rest, "{number}")?;
    let len = DIGITS - rest.len();
    file.write_all_at(&text[..len], 0)
}

/// Locks files shared by several processes. Returns `None` while another process has the lock.
fn lock(first: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().write(true).open(first)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Adds `more` to the number in a file.
fn add(path: &Path, more: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut text = [0; DIGITS];
    let len = file.read_at(&mut text, 0)?;
    let number = core::str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse().ok());
    write_at_start(&file, u64::wrapping_add(number.ok_or(ErrorKind::InvalidData)?, more))
}

/// The length of the longest number, including the newline, in bytes.
const DIGITS: usize = 21;

type Named = (&'static str, Value);

/// A function that returns the value for a counter file.
type Value = fn(&Counters) -> u64;

/// The standard counters of every port, for packets through UDP and through memory. Lengths are in
/// 4-byte words.
const PORT: &[Named] = &[
    ("port_xmit_data", |of| (of.sent_bytes + of.shm_sent_bytes) / 4),
    ("port_rcv_data", |of| (of.received_bytes + of.shm_received_bytes) / 4),
    ("port_xmit_packets", |of| of.sent + of.shm_sent),
    ("port_rcv_packets", |of| of.received + of.shm_received),
    ("port_xmit_discards", |of| {
        of.unreachable + of.too_long + of.forbidden + of.no_buffer + of.not_sent + of.shm_dropped
    }),
    ("port_rcv_errors", |of| of.bad_icrc + of.malformed),
    ("port_xmit_wait", |of| of.blocked),
    ("symbol_error", |_| 0),
    ("link_error_recovery", |_| 0),
    ("link_downed", |_| 0),
    ("port_rcv_remote_physical_errors", |_| 0),
    ("port_rcv_switch_relay_errors", |_| 0),
    ("port_xmit_constraint_errors", |_| 0),
    ("port_rcv_constraint_errors", |_| 0),
    ("local_link_integrity_errors", |_| 0),
    ("excessive_buffer_overrun_errors", |_| 0),
    ("VL15_dropped", |_| 0),
];

/// The counters specific to soft devices.
const KIND: &[Named] = &[
    ("sent_pkts", |of| of.sent),
    ("rcvd_pkts", |of| of.received),
    ("shm_sent_pkts", |of| of.shm_sent),
    ("shm_rcvd_pkts", |of| of.shm_received),
    ("bad_icrc", |of| of.bad_icrc),
    ("malformed", |of| of.malformed),
    ("send_blocked", |of| of.blocked),
    ("unreachable", |of| of.unreachable),
    ("unknown_slot", |of| of.unknown_slot),
    ("unexpected_port", |of| of.unexpected_port),
    ("datagrams_dropped", |of| of.datagrams_dropped),
    ("datagrams_no_receive", |of| of.datagrams_no_receive),
    ("datagrams_wrong_qkey", |of| of.datagrams_wrong_qkey),
    ("datagrams_unknown_qpn", |of| of.datagrams_unknown_qpn),
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_are_written_when_they_have_changed_and_a_second_has_passed() {
        let folder = std::env::temp_dir().join(format!("counters-{}", std::process::id()));
        let [port, kind] = ["counters", "hw_counters"].map(|name| folder.join(name));
        for path in [&port, &kind] {
            fs::create_dir_all(path).unwrap();
        }
        let mut files = CounterFiles::create(&port, &kind).unwrap();
        let read = |name: &str| fs::read_to_string(port.join(name)).unwrap();
        let counters = |sent| move || Counters { sent, sent_bytes: 40 * sent, ..Counters::default() };
        assert_eq!((read("port_xmit_packets"), read("link_downed")), ("0\n".into(), "0\n".into()));
        let second = INTERVAL;
        assert_eq!(files.update(Time(second), counters(0)), None, "nothing has changed");
        assert_eq!(files.update(Time(second), counters(9)), None);
        assert_eq!((read("port_xmit_packets"), read("port_xmit_data")), ("9\n".into(), "90\n".into()));
        assert_eq!(files.update(Time(second + 1), counters(100)), Some(Time(2 * second)));
        assert_eq!(read("port_xmit_packets"), "9\n");
        assert_eq!(files.update(Time(2 * second), counters(100)), None);
        assert_eq!(read("port_xmit_packets"), "100\n");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_process_that_ends_within_a_second_adds_its_packets() {
        let folder = std::env::temp_dir().join(format!("last-counters-{}", std::process::id()));
        let [port, kind] = ["counters", "hw_counters"].map(|name| folder.join(name));
        for path in [&port, &kind] {
            fs::create_dir_all(path).unwrap();
        }
        let mut own = CounterFiles::create(&port, &kind).unwrap();
        let mut shared = CounterFiles::shared(&port, &kind);
        let counters = |sent| Counters { sent, ..Counters::default() };
        let read = || fs::read_to_string(port.join("port_xmit_packets")).unwrap();
        assert_eq!(shared.update(Time(INTERVAL), || counters(9)), None);
        assert_eq!(shared.update(Time(INTERVAL + 1), || counters(20)), Some(Time(2 * INTERVAL)));
        assert_eq!(read(), "9\n");
        let held = lock(&port.join("port_xmit_data")).unwrap().unwrap();
        assert!(!shared.finish(&counters(20)) && read() == "9\n", "another process writes them");
        drop(held);
        assert!(shared.finish(&counters(20)) && read() == "20\n");
        assert!(shared.finish(&counters(20)) && read() == "20\n", "once");
        fs::write(port.join("port_xmit_packets"), format!("{}\n", u64::MAX)).unwrap();
        assert!(shared.finish(&counters(22)) && read().starts_with("1\n"), "they wrap");
        assert!(own.finish(&counters(5)) && read().starts_with("1\n"), "files of the process go with it");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn processes_add_their_packets_to_files_that_they_share() {
        let folder = std::env::temp_dir().join(format!("shared-counters-{}", std::process::id()));
        let [port, kind] = ["counters", "hw_counters"].map(|name| folder.join(name));
        for path in [&port, &kind] {
            fs::create_dir_all(path).unwrap();
        }
        CounterFiles::create(&port, &kind).unwrap();
        let [mut one, mut other] = [(); 2].map(|()| CounterFiles::shared(&port, &kind));
        let counters = |sent| move || Counters { sent, ..Counters::default() };
        let read = || fs::read_to_string(port.join("port_xmit_packets")).unwrap();
        assert_eq!(one.update(Time(INTERVAL), counters(9)), None);
        assert_eq!(other.update(Time(INTERVAL), counters(5)), None);
        assert_eq!(one.update(Time(2 * INTERVAL), counters(10)), None);
        assert_eq!(read(), "15\n");
        let held = lock(&port.join("port_xmit_data")).unwrap().unwrap();
        let later = Some(Time(4 * INTERVAL));
        assert_eq!(other.update(Time(3 * INTERVAL), counters(7)), later, "the other process is stopped");
        drop(held);
        assert_eq!(other.update(Time(4 * INTERVAL), counters(7)), None);
        assert_eq!(read(), "17\n");
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(one.update(Time(5 * INTERVAL), counters(11)), None, "files that are gone are left alone");
        fs::remove_dir_all(&folder).unwrap();
    }
}
