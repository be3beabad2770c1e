//! C programs, Python's tests and a Rust program over C bindings, using `libibverbs.so.1` on soft
//! devices: no kernel module, no root, no VM.
//!
//! `cargo test -p libibverbs-c --test programs [-- WORD...]` runs the cases whose names contain a
//! word (with `--exact`: equal a word), or all cases if no word is given. `cargo xtask c-abi` links
//! the libraries first, unless `VERBS_C_ABI_DIR` names a directory that has them. If a case's
//! program is not installed, the case is skipped and names the package.
//!
//! | module | programs |
//! |---|---|
//! | [`ibverbs_utils`] | rdma-core's tools and ping-pongs |
//! | [`perftest`] | bandwidth and latency of every operation |
//! | [`pyverbs`] | rdma-core's tests for Python, compared with `pyverbs-soft.txt` |
//! | [`librdmacm`] | rdmacm-utils and other programs that connect by address, without a kernel |
//! | [`own`] | the programs in `tests/c`: plain, under valgrind and under AddressSanitizer |
//! | [`set_user_id`] | one of these programs with root's rights, run by another user |
//! | [`symbols`] | all installed programs: the loader finds their symbols |
//! | [`bindings`] | a Rust program that links the library |
//! | [`ucx`] | UCX over verbs |

mod bindings;
mod ibverbs_utils;
mod library;
mod librdmacm;
mod own;
mod perftest;
mod pyverbs;
mod set_user_id;
mod symbols;
mod ucx;

use std::process::ExitCode;

use verbs_harness::runner::{self, Options, Stop};

use self::library::Preload;

fn main() -> ExitCode {
    let mut options = Options::default();
    let (mut words, mut is_exact) = (Vec::new(), false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--exact" => is_exact = true,
            "--case" => options.case = args.next(),
            // These options of the standard test harness take a value.
            "--skip" | "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
            _ if arg.starts_with('-') => {}
            _ => words.push(arg),
        }
    }
    let suites = [
        ibverbs_utils::cases(),
        perftest::cases(),
        librdmacm::cases(),
        own::cases(),
        set_user_id::cases(),
        symbols::cases(),
        bindings::cases(),
        ucx::cases(),
        pyverbs::cases(),
    ];
    let mut cases: Vec<_> = suites.into_iter().flatten().collect();
    let is_meant = |name: &str, word: &String| if is_exact { name == word } else { name.contains(word) };
    cases.retain(|case| words.is_empty() || words.iter().any(|word| is_meant(&case.name, word)));
    if !options.list && !cases.is_empty() {
        match library::build() {
            Ok(directory) => options.env.push((library::VARIABLE.to_owned(), directory)),
            Err(why) => {
                eprintln!("cargo xtask c-abi: {why}");
                return ExitCode::FAILURE;
            }
        }
        for library in Preload::ALL {
            if let Err(Stop::Failed(why)) = library.compile() {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
    options.at_once = runner::processors();
    runner::main(&options, &cases)
}
