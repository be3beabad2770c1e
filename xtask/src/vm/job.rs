//! The job of a guest as a file: the command with its bytes preserved, and the device that must
//! exist when it starts. The host writes it, and process 1 of the guest reads it.
//!
//! The format is a list of records `KEY LENGTH\nBYTES\n`: arguments may hold any byte except NUL,
//! and no library is needed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use super::connectx::Port;

/// One command for one guest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Job {
    /// Program and arguments.
    pub(crate) argv: Vec<OsString>,
    /// The command's whole environment, as `NAME=VALUE`.
    pub(crate) env: Vec<OsString>,
    /// The directory in which the command starts.
    pub(crate) cwd: PathBuf,
    /// The host's directory that becomes /lib/modules.
    pub(crate) modules: PathBuf,
    /// The device that must exist when the command starts.
    pub(crate) device: Device,
    /// RLIMIT_MEMLOCK in KiB; `None` for no limit.
    pub(crate) memlock_kib: Option<u64>,
    /// Whether the command's stdin is the host's.
    pub(crate) interactive: bool,
}

/// The RDMA device of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Device {
    #[default]
    None,
    /// rxe0, which process 1 creates.
    Rxe,
    /// Functions of the ConnectX model; process 1 loads their driver.
    Mlx5 { port: Port, functions: u8 },
}

impl Job {
    /// Returns the file's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut record = |key: &str, value: &OsStr| {
            out.extend_from_slice(format!("{key} {}\n", value.len()).as_bytes());
            out.extend_from_slice(value.as_bytes());
            out.push(b'\n');
        };
        for arg in &self.argv {
            record("arg", arg);
        }
        for variable in &self.env {
            record("env", variable);
        }
        record("cwd", self.cwd.as_os_str());
        record("modules", self.modules.as_os_str());
        match self.device {
            Device::None => {}
            Device::Rxe => record("rxe", OsStr::new("")),
            Device::Mlx5 { port, functions } => {
                record("mlx5", OsStr::new(&format!("{} {functions}", port.name())));
            }
        }
        if let Some(kib) = self.memlock_kib {
            record("memlock", OsStr::new(&kib.to_string()));
        }
        if self.interactive {
            record("interactive", OsStr::new(""));
        }
        out
    }

    /// Reads the file's bytes.
    ///
    /// # Errors
    /// The bytes are cut off or not of this format.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Job> {
        let mut job = Job::default();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|b| *b == b'\n').context("a record's header is cut off")?;
            let header = std::str::from_utf8(&bytes[..end])?;
            let (key, length) = header.split_once(' ').with_context(|| format!("no length in {header:?}"))?;
            let length: usize = length.parse().with_context(|| format!("no length in {header:?}"))?;
            let rest = &bytes[end + 1..];
            ensure!(rest.len() > length && rest[length] == b'\n', "record {key:?} is cut off");
            let value = OsString::from_vec(rest[..length].to_vec());
            bytes = &rest[length + 1..];
            match key {
                "arg" => job.argv.push(value),
                "env" => job.env.push(value),
                "cwd" => job.cwd = value.into(),
                "modules" => job.modules = value.into(),
                "rxe" => job.device = Device::Rxe,
                "mlx5" => job.device = decode_mlx5(&value.to_string_lossy())?,
                "memlock" => job.memlock_kib = Some(value.to_string_lossy().parse()?),
                "interactive" => job.interactive = true,
                _ => bail!("unknown record {key:?}"),
            }
        }
        ensure!(!job.argv.is_empty(), "no command");
        Ok(job)
    }
}

/// Reads `ib 1` or `roce 2`.
fn decode_mlx5(value: &str) -> Result<Device> {
    let (port, functions) = value.split_once(' ').with_context(|| format!("no functions in {value:?}"))?;
    let port = match port {
        "ib" => Port::Ib,
        "roce" => Port::Roce,
        _ => bail!("unknown port {port:?}"),
    };
    Ok(Device::Mlx5 { port, functions: functions.parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            argv: ["sh", "-c", "echo 'a  b' \"$x\"\n", "", "arg 3\n", "\u{fc}"].map(OsString::from).into(),
            env: vec!["A=b c".into(), "EMPTY=".into()],
            cwd: "/some where/with\nnewline".into(),
            modules: "/cache/modules".into(),
            device: Device::Rxe,
            memlock_kib: Some(64),
            interactive: true,
        }
    }

    #[test]
    fn arguments_with_spaces_quotes_newlines_and_odd_bytes_survive() {
        let mut job = job();
        job.argv.push(OsString::from_vec(vec![0xff, 0x01, b'\n', b' ']));
        assert_eq!(Job::decode(&job.encode()).unwrap(), job);
    }

    #[test]
    fn every_device_survives() {
        let mlx5 = |port, functions| Device::Mlx5 { port, functions };
        for device in [Device::None, Device::Rxe, mlx5(Port::Ib, 1), mlx5(Port::Roce, 2)] {
            let job = Job { device, ..job() };
            assert_eq!(Job::decode(&job.encode()).unwrap().device, device);
        }
        assert!(decode_mlx5("token-ring 1").is_err());
        assert!(decode_mlx5("ib").is_err());
    }

    #[test]
    fn a_job_cut_off_anywhere_is_an_error_or_lacks_whole_records_only() {
        let bytes = job().encode();
        for end in 0..bytes.len() {
            if let Ok(shorter) = Job::decode(&bytes[..end]) {
                assert!(bytes.starts_with(&shorter.encode()) || end > 0, "cut at {end}");
                assert_eq!(bytes[end - 1], b'\n', "cut at {end} inside a record was accepted");
            }
        }
    }

    #[test]
    fn unknown_records_are_refused() {
        assert!(Job::decode(b"arg 1\nx\nfuture 0\n\n").unwrap_err().to_string().contains("future"));
    }
}
