//! The guests in the fixed list and in the parts of `--whole`, which `guests.toml` describes, and
//! the guests that a command line names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Guest;
use crate::arch::{Arch, name_of};
use crate::test::Args;
use crate::test::part::Part;
use crate::vm::Device;
use crate::vm::connectx::Port;
use crate::vm::kernel::{self, Choice};

/// The tables in `guests.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Lists {
    cases: BTreeMap<String, Cases>,
    every_commit: Vec<Entry>,
    /// The guests by part name.
    whole: BTreeMap<String, Vec<Entry>>,
}

/// Cases, with the reason for leaving them out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    #[serde(default)]
    why: String,
    names: Vec<String>,
}

/// A guest. Its fields are named like the options.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    arch: Option<String>,
    kernel: String,
    device: String,
    port: Option<String>,
    note: String,
    options: Vec<String>,
    env: Option<String>,
    only: Vec<String>,
    without: Vec<String>,
}

static LISTS: LazyLock<Lists> =
    LazyLock::new(|| toml::from_str(include_str!("guests.toml")).expect("lists that their test has read"));

/// Returns the guests for every commit.
pub(in crate::test) fn fixed() -> Vec<Guest> {
    LISTS.every_commit.iter().map(Entry::guest).collect()
}

/// Returns the guests in a part.
pub(in crate::test) fn of_part(part: Part) -> Vec<Guest> {
    LISTS.whole.get(&name_of(part)).into_iter().flatten().map(Entry::guest).collect()
}

impl Entry {
    fn guest(&'static self) -> Guest {
        fn value<T: clap::ValueEnum>(name: &str) -> T {
            T::from_str(name, false).expect("a value of the option")
        }
        let cases = |list: &String| &LISTS.cases[list];
        let skip = self.without.iter().map(cases);
        Guest {
            arch: value(self.arch.as_deref().unwrap_or("x86_64")),
            kernel: self.kernel.parse().expect("a kernel of the list"),
            device: value(&self.device),
            port: value(self.port.as_deref().unwrap_or("ib")),
            note: &self.note,
            options: &self.options,
            env: self.env.as_deref(),
            skip: skip.flat_map(|list| list.names.iter().map(|name| (&**name, &*list.why))).collect(),
            suites: self.only.iter().flat_map(|list| cases(list).names.clone()).collect(),
        }
    }
}

/// Returns the guests for a command line that names a kernel, a device, a port or a suite.
pub(in crate::test) fn chosen(args: &Args) -> Option<Vec<Guest>> {
    let is_chosen =
        !args.kernel.is_empty() || args.device.is_some() || args.port.is_some() || !args.suites.is_empty();
    if !is_chosen {
        return None;
    }
    let port_alone = args.port.is_some().then_some(Device::Mlx5);
    let device = args.device.or(port_alone).unwrap_or(Device::Rxe);
    let ports = match (device, args.port) {
        (Device::Mlx5, None) => vec![Port::Ib, Port::Roce],
        (_, port) => vec![port.unwrap_or_default()],
    };
    let default = kernel::DEFAULT.parse().into_iter().collect();
    let kernels: Vec<Choice> = if args.kernel.is_empty() { default } else { args.kernel.clone() };
    let guest = |kernel: &Choice, port| Guest {
        arch: if kernel.is_for_aarch64_alone() { Arch::Aarch64 } else { Arch::X86_64 },
        suites: args.suites.clone(),
        ..Guest::new(kernel.clone(), device, port)
    };
    Some(kernels.iter().flat_map(|kernel| ports.iter().map(move |port| guest(kernel, *port))).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Parser, ValueEnum as _};

    use super::*;
    use crate::aarch64;
    use crate::vm::kernel::SERIES;

    fn parts() -> Vec<Guest> {
        Part::value_variants().iter().copied().flat_map(of_part).collect()
    }

    #[test]
    fn the_parts_run_what_the_fixed_list_leaves_out_and_every_kernel_is_in_both() {
        let (fixed, parts) = (fixed(), parts());
        for guest in &fixed {
            for (case, _) in &guest.skip {
                let runs = |other: &&Guest| {
                    let is_left_out = other.skip.iter().any(|(part, _)| case.starts_with(part));
                    let is_in =
                        other.suites.is_empty() || other.suites.iter().any(|suite| case.starts_with(suite));
                    is_in && !is_left_out && other.options.is_empty()
                };
                let same = |other: &&Guest| other.arch == guest.arch && other.device == guest.device;
                assert!(parts.iter().filter(same).any(|other| runs(&other)), "no part runs {case}");
            }
        }
        for series in &SERIES {
            let is_on = |guest: &Guest| guest.kernel == Choice::Series(series);
            assert!(fixed.iter().any(is_on) && parts.iter().any(is_on), "{}", series.name);
        }
        let labels: BTreeSet<_> = parts.iter().map(Guest::label).collect();
        assert_eq!(labels.len(), parts.len(), "{labels:?}");
    }

    #[test]
    fn a_chosen_kernel_device_port_or_suite_makes_the_guests() {
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let labels = |line: &str| -> Option<Vec<String>> {
            let words = ["test"].into_iter().chain(line.split_whitespace());
            Some(chosen(&Cli::parse_from(words).args)?.iter().map(Guest::label).collect())
        };
        assert_eq!(labels(""), None);
        for (line, expected) in [
            ("some-suite", &["6.1 rxe"] as &[&str]),
            ("--kernel 5.10 --kernel 6.12", &["5.10 rxe", "6.12 rxe"]),
            ("--kernel 7.2-16k some-suite", &["7.2-16k aarch64 rxe"]),
            ("--device mlx5 --kernel 7.2", &["7.2 mlx5 ib", "7.2 mlx5 roce"]),
            ("--port roce some-suite", &["6.1 mlx5 roce"]),
            ("--device none", &["6.1"]),
        ] {
            assert_eq!(
                labels(line).as_deref(),
                Some(expected.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>().as_slice()),
                "{line}"
            );
        }
    }

    /// A guest rejects an unknown suite, but an unknown case name would leave out nothing.
    #[test]
    fn the_case_that_is_left_out_on_aarch64_exists() {
        let [case] = &LISTS.cases["long-emulated"].names[..] else { panic!("one case") };
        assert!(aarch64::tests::has_conformance_case(case), "no case is called {case}");
    }
}
