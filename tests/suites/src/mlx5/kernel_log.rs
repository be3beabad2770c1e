//! [`KernelLog`]: the kernel messages during a case.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

/// The kernel's log from a given moment on.
pub(super) struct KernelLog {
    /// `None` if the log is not readable, so it has no lines.
    log: Option<File>,
}

impl KernelLog {
    /// Opens the log for messages from now on.
    pub(super) fn from_now() -> Self {
        let open = || {
            let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
            log.seek(SeekFrom::End(0))?;
            Ok::<_, std::io::Error>(log)
        };
        Self { log: open().ok() }
    }

    /// Returns the messages since the log was opened.
    pub(super) fn lines(self) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(mut log) = self.log else { return lines };
        // A read returns one record; this buffer is larger than the longest record.
        let mut record = vec![0; 16 << 10];
        loop {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(length) => lines.extend(line(&String::from_utf8_lossy(&record[..length]))),
                // Unread records were overwritten. The next read returns the oldest record that
                // remains.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        lines
    }
}

/// Parses a record such as `6,339,5140900,-;mlx5_core 0000:00:10.0: ...`. Property lines may
/// follow.
pub fn line(record: &str) -> Option<String> {
    let (_, text) = record.split_once(';')?;
    text.lines().next().map(str::to_owned)
}
