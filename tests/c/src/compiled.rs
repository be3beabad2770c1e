//! C programs and libraries that the suites use. The host compiles them in advance, because its
//! compiler is faster; otherwise the first case that needs one compiles it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use verbs_harness::runner::{CaseResult, Stop, skip};
use verbs_harness::{process, tools};

/// The time limit for a compilation.
pub const COMPILE: Duration = Duration::from_secs(300);

/// A program, or a library that programs preload.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name of the compiled binary.
    pub name: &'static str,
    /// The C source text.
    pub source: &'static str,
    /// Linker options for the binary.
    pub options: &'static [&'static str],
}

/// A folder beside the suites' programs.
const FOLDER: &str = "c-programs";

/// Compiles the programs for the suites of `guest` on the host and reports every failure.
#[must_use]
pub fn main(guest: &str, programs: &[Program]) -> ExitCode {
    match compile_all(programs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Skipped(why) | Stop::Failed(why)) => {
            eprintln!("{guest}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles programs into [`FOLDER`], except those already compiled from the same source.
fn compile_all(programs: &[Program]) -> CaseResult {
    let folder = &tools::bin_dir()?.join(FOLDER);
    fs::create_dir_all(folder)?;
    for program in programs {
        if program.is_in(folder).is_none() {
            program.compile(folder)?;
        }
    }
    Ok(())
}

/// Returns a compiled program: from the host, from an earlier case, or compiled now.
///
/// # Errors
/// Fails if the compiler is missing or fails.
pub fn compiled(program: &Program) -> CaseResult<PathBuf> {
    let own = Path::new("/tmp");
    match program.is_in(&tools::bin_dir()?.join(FOLDER)).or_else(|| program.is_in(own)) {
        Some(binary) => Ok(binary),
        None => program.compile(own),
    }
}

impl Program {
    /// Returns the program's binary in a folder, if it was compiled from the same source.
    fn is_in(&self, folder: &Path) -> Option<PathBuf> {
        let binary = folder.join(self.name);
        let same = fs::read(binary.with_extension("c")).is_ok_and(|text| text == self.source.as_bytes());
        (same && binary.exists()).then_some(binary)
    }

    /// Compiles the program into a folder.
    fn compile(&self, folder: &Path) -> CaseResult<PathBuf> {
        let headers = Path::new("/usr/include/infiniband/verbs.h");
        if !Path::new("/usr/bin/cc").exists() || !headers.exists() {
            return skip("a C compiler or the headers are not installed (packages gcc, libibverbs-dev)");
        }
        let binary = folder.join(self.name);
        let source = binary.with_extension("c");
        // Removed before its source changes, so that a failing compiler leaves no binary from an
        // older source.
        match fs::remove_file(&binary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::write(&source, self.source)?;
        let unfinished = binary.with_extension("new");
        let mut cc = Command::new("/usr/bin/cc");
        cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        cc.arg(&unfinished).arg(&source).args(self.options);
        match process::run(&mut cc, COMPILE)? {
            Ok(ended) if ended.status.success() => {}
            Ok(ended) | Err(ended) => return Err(Stop::Failed(format!("cc: {}", ended.stderr))),
        }
        fs::rename(&unfinished, &binary)?;
        Ok(binary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_of_another_source_is_not_taken() {
        let folder = tempfile();
        let program = Program { name: "p", source: "int main(void) { return 0; }\n", options: &[] };
        assert_eq!(program.is_in(&folder), None);
        fs::write(folder.join("p"), "").unwrap();
        assert_eq!(program.is_in(&folder), None, "there is no source");
        fs::write(folder.join("p.c"), program.source).unwrap();
        assert_eq!(program.is_in(&folder), Some(folder.join("p")));
        fs::write(folder.join("p.c"), "int main(void) { return 1; }\n").unwrap();
        assert_eq!(program.is_in(&folder), None, "its source is another one");
        fs::remove_dir_all(folder).unwrap();
    }

    fn tempfile() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("verbs-tests.compiled.{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
