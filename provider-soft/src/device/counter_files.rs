//! [`CounterFiles`]: the counters of a device as files, as sysfs has them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use roce::engine::Time;

use crate::device::exit;
use crate::io::Counters;

/// The files and their last written contents.
#[derive(Debug)]
pub(crate) struct CounterFiles {
    folders: [PathBuf; 2],
    written: Counters,
    at: Time,
    /// Whether other processes add their packets as well.
    is_shared: bool,
}

/// The nanoseconds after which changed counters are written again.
pub(crate) const INTERVAL: u64 = 1_000_000_000;

impl CounterFiles {
    /// Creates the files of a new device: the files of every port, and the files of the device's
    /// kind.
    pub(crate) fn create(port: &Path, kind: &Path) -> io::Result<Self> {
        for (folder, counters) in [(port, PORT), (kind, KIND)] {
            for (name, _) in counters {
                create(&folder.join(name), 0)?;
            }
        }
        // In milliseconds.
        create(&kind.join("lifespan"), INTERVAL / 1_000_000)?;
        Ok(Self { is_shared: false, ..Self::shared(port, kind) })
    }

    /// Uses the files of a device that several processes have. Each adds its packets.
    pub(crate) fn shared(port: &Path, kind: &Path) -> Self {
        let folders = [port, kind].map(Path::to_owned);
        Self { folders, written: Counters::default(), at: Time(0), is_shared: true }
    }

    /// Writes the counters if they have changed and some time has passed since the last write.
    /// Returns the time of the next write if they have changed since the last one.
    pub(crate) fn update(&mut self, now: Time, counters: impl Fn() -> Counters) -> Option<Time> {
        let counters = counters();
        if counters == self.written {
            return None;
        }
        let due = Time(self.at.0 + INTERVAL);
        if now < due {
            return Some(due);
        }
        let _lock = match self.is_shared.then(|| lock(&self.folders[0])) {
            None => None,
            Some(Ok(Some(lock))) => Some(lock),
            // A process that writes them is stopped, for example in a debugger.
            Some(Ok(None)) => return Some(Time(now.0 + INTERVAL)),
            // This user may not write them.
            Some(Err(_)) => {
                (self.written, self.at) = (counters, now);
                return None;
            }
        };
        for (folder, named) in self.folders.iter().zip([PORT, KIND]) {
            for (name, value) in named {
                let (new, old) = (value(&counters), value(&self.written));
                if new != old {
                    let path = folder.join(name);
                    // The device works without its files.
                    let _ =
                        if self.is_shared { add(&path, new.wrapping_sub(old)) } else { write(&path, new) };
                }
            }
        }
        (self.written, self.at) = (counters, now);
        None
    }
}

fn create(path: &Path, number: u64) -> io::Result<()> {
    fs::write(path, format!("{number}\n"))?;
    exit::remove(path);
    Ok(())
}

/// Writes a number, which has at least as many digits as the one before. The file is never empty.
fn write(path: &Path, number: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(format!("{number}\n").as_bytes(), 0)
}

/// Locks the files of several processes. Returns `None` while another process has the lock.
fn lock(port: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().write(true).open(port.join(PORT[0].0))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Adds to the number in a file.
fn add(path: &Path, more: u64) -> io::Result<()> {
    let number = fs::read_to_string(path)?;
    let number: u64 = number.trim().parse().map_err(|_| ErrorKind::InvalidData)?;
    write(path, number.wrapping_add(more))
}

type Named = (&'static str, fn(&Counters) -> u64);

/// The counters of every port. Lengths are in words of 4 bytes.
const PORT: &[Named] = &[
    ("port_xmit_data", |of| of.sent_bytes / 4),
    ("port_rcv_data", |of| of.received_bytes / 4),
    ("port_xmit_packets", |of| of.sent),
    ("port_rcv_packets", |of| of.received),
    ("port_xmit_discards", |of| of.unreachable + of.too_long + of.forbidden + of.no_buffer + of.not_sent),
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

/// The counters of soft devices.
const KIND: &[Named] = &[
    ("sent_pkts", |of| of.sent),
    ("rcvd_pkts", |of| of.received),
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
        let held = lock(&port).unwrap().unwrap();
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
