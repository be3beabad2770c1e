//! The model's command line options and program.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::super::job::{Device, Port};
use crate::cargo;

/// Options for the model.
#[derive(clap::Args, Clone, Default, PartialEq, Eq, Debug)]
#[command(next_help_heading = "With --device mlx5")]
pub(crate) struct Options {
    /// Port type of the functions [default: ib]
    #[arg(long, value_enum)]
    pub(crate) port: Option<Port>,

    /// Number of functions, which are connected to each other [default: 1]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) functions: Option<u8>,

    /// Script of faults that the model injects
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,

    /// File for the trace of commands, work requests and completions
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Result of the run if the guest breaks the device's rules [default: fail]
    #[arg(long, value_enum)]
    pub(crate) complaints: Option<Complaints>,

    /// The model's program [default: build it]
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) model: Option<PathBuf>,
}

/// Values of `--complaints`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Complaints {
    /// The run fails, even if the command succeeds
    #[default]
    Fail,
    /// The complaints are only shown, for commands that break rules on purpose
    Allow,
}

impl Options {
    /// Returns the port type.
    pub(crate) fn port(&self) -> Port {
        self.port.unwrap_or_default()
    }

    /// Returns the number of functions.
    pub(crate) fn functions(&self) -> u8 {
        self.functions.unwrap_or(1)
    }

    /// Returns whether the run fails if rules are broken.
    pub(crate) fn is_strict(&self) -> bool {
        self.complaints.unwrap_or_default() == Complaints::Fail
    }

    /// Rejects options that have no effect, or that would fail only after the guest has started.
    pub(crate) fn check(&self, device: Device) -> Result<()> {
        ensure!(
            device == Device::Mlx5 || *self == Options::default(),
            "--port, --functions, --faults, --trace and --complaints are for --device mlx5 only"
        );
        if let Some(script) = &self.faults {
            File::open(script).with_context(|| format!("--faults {}", script.display()))?;
        }
        Ok(())
    }

    /// Returns the model's program and builds it if the command line names none.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        match &self.model {
            Some(program) => Ok(std::path::absolute(program)?),
            None => Ok(build()?.join("connectx-model")),
        }
    }
}

/// Builds the model and returns the directory that contains it.
pub(crate) fn build() -> Result<PathBuf> {
    let package = ["--package", "connectx-model", "--bin", "connectx-model"];
    cargo::build(&[&["--quiet", "--profile", cargo::GUEST_PROFILE], &package[..]].concat())
}

#[test]
fn options_of_the_model_are_refused_for_other_devices_and_a_missing_script_for_any() {
    assert!(Options::default().check(Device::Rxe).is_ok());
    let given = Options { functions: Some(2), ..Options::default() };
    assert!(given.check(Device::None).unwrap_err().to_string().contains("--functions"));
    assert!(given.check(Device::Mlx5).is_ok());
    let missing = Options { faults: Some("/surely/not/there".into()), ..Options::default() };
    assert!(missing.check(Device::Mlx5).unwrap_err().to_string().contains("/surely/not/there"));
}
