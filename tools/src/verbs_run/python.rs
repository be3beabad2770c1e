//! [`packages`]: the folders of Python packages that a command may import.
//!
//! Python is not queried, because a shell or `mpirun` may start it later. The folders are instead
//! found by their paths:
//!
//! - `lib/python3*/site-packages` and `dist-packages`, also with `lib64`, in the prefix of the
//!   command, of its interpreter (`#!`), of paths among its arguments, and of `python3` in `PATH`;
//! - the same in the prefix that a virtual environment comes from (`home` in `pyvenv.cfg`), in
//!   `VIRTUAL_ENV` and `CONDA_PREFIX`, and in `PYTHONUSERBASE` or `~/.local`;
//! - the elements of `PYTHONPATH`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A command's environment.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    variables: Vec<(OsString, OsString)>,
}

impl Surroundings {
    /// Returns the environment of this process.
    pub fn of_process() -> Self {
        Self { variables: std::env::vars_os().collect() }
    }

    /// Returns the variable if it is set and not empty.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(variable, _)| variable == name);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// Returns the file that a command name refers to.
    pub fn program(&self, name: &OsStr) -> Option<PathBuf> {
        if name.as_bytes().contains(&b'/') {
            return Some(name.into()).filter(|path: &PathBuf| is_program(path));
        }
        let folders = std::env::split_paths(self.variable("PATH")?);
        folders.map(|folder| folder.join(name)).find(|path| is_program(path))
    }
}

/// Returns the existing package folders without duplicates.
pub fn packages(command: &[OsString], around: &Surroundings) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    programs.extend(command.first().and_then(|name| around.program(name)));
    let paths = command.iter().skip(1).filter(|argument| argument.as_bytes().contains(&b'/'));
    programs.extend(paths.filter_map(|path| around.program(path)));
    programs.extend(around.program(OsStr::new("python3")));
    let interpreters: Vec<_> = programs.iter().filter_map(|program| interpreter(program, around)).collect();
    programs.extend(interpreters);

    let mut found = Found::default();
    for program in &programs {
        // In a virtual environment, the program is a link to another Python.
        let real = program.canonicalize().ok();
        for bin in [Some(&**program), real.as_deref()].into_iter().flatten().filter_map(Path::parent) {
            found.of_bin(bin);
        }
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        around.variable(name).into_iter().for_each(|prefix| found.of_environment(Path::new(prefix)));
    }
    let user = around.variable("PYTHONUSERBASE").map(PathBuf::from);
    let user = user.or_else(|| Some(Path::new(around.variable("HOME")?).join(".local")));
    user.into_iter().for_each(|base| found.of_prefix(&base));
    let path = around.variable("PYTHONPATH").into_iter().flat_map(std::env::split_paths);
    path.for_each(|folder| found.add(&folder));
    found.folders
}

#[derive(Default)]
struct Found {
    folders: Vec<PathBuf>,
}

impl Found {
    /// Adds the package folders of the Python installation whose programs are in `bin`. In a
    /// virtual environment, also adds the package folders of the base installation.
    fn of_bin(&mut self, bin: &Path) {
        let prefix = bin.parent().unwrap_or(bin);
        self.of_environment(prefix);
        // Debian's Python searches both folders.
        if prefix == Path::new("/usr") {
            self.of_prefix(Path::new("/usr/local"));
        }
        // The programs of pyenv are scripts that start one of its Python versions.
        if bin.file_name() == Some(OsStr::new("shims")) {
            let versions = prefix.join("versions").read_dir().into_iter().flatten().flatten();
            versions.for_each(|version| self.of_prefix(&version.path()));
        }
    }

    fn of_environment(&mut self, prefix: &Path) {
        self.of_prefix(prefix);
        let settings = fs::read_to_string(prefix.join("pyvenv.cfg")).unwrap_or_default();
        let home = settings.lines().filter_map(|line| line.split_once('='));
        let home = home.filter(|(name, _)| name.trim() == "home").map(|(_, home)| PathBuf::from(home.trim()));
        home.for_each(|bin| bin.parent().into_iter().for_each(|prefix| self.of_prefix(prefix)));
    }

    fn of_prefix(&mut self, prefix: &Path) {
        for entry in ["lib", "lib64"].iter().flat_map(|lib| prefix.join(lib).read_dir()).flatten().flatten() {
            if entry.file_name().as_bytes().starts_with(b"python3") {
                for name in ["site-packages", "dist-packages"] {
                    self.add(&entry.path().join(name));
                }
            }
        }
    }

    /// Adds a folder if it exists. `lib64` is often a link to `lib`.
    fn add(&mut self, folder: &Path) {
        if let Ok(folder) = folder.canonicalize()
            && folder.is_dir()
            && !self.folders.contains(&folder)
        {
            self.folders.push(folder);
        }
    }
}

/// Returns the interpreter of a script: the program after `#!`, or after `/usr/bin/env` on that
/// line.
fn interpreter(script: &Path, around: &Surroundings) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(File::open(script).ok()?.take(LONGEST_LINE)).read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.map(OsStr::from_bytes);
    let program = words.next()?;
    if Path::new(program).file_name() != Some(OsStr::new("env")) {
        return around.program(program);
    }
    // The name may follow options such as -S and assignments.
    let is_name = |word: &&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
    around.program(words.find(is_name)?)
}

/// Returns whether any user may execute a file.
fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
}

/// The maximum number of bytes that the kernel reads from a script's first line.
const LONGEST_LINE: u64 = 256;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Uses an environment with a base Python, a virtual environment with a script, and a user's
    /// packages.
    #[test]
    fn packages_of_an_environment_are_found_from_a_script_in_it() {
        let root = std::env::temp_dir().join(format!("verbs-run-python-{}", std::process::id()));
        let sites = [
            "base/lib/python3.11/site-packages",
            "venv/lib/python3.11/site-packages",
            "home/.local/lib/python3.12/site-packages",
            "on the path",
            "pyenv/versions/3.12.1/lib/python3.12/site-packages",
        ];
        sites.iter().for_each(|site| fs::create_dir_all(root.join(site)).unwrap());
        for folder in ["base/bin", "venv/bin", "bin", "pyenv/shims"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let program = |path: &str, text: &str| {
            fs::write(root.join(path), text).unwrap();
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("base/bin/python3", "");
        symlink(root.join("base/bin/python3"), root.join("venv/bin/python3")).unwrap();
        symlink("lib", root.join("venv/lib64")).unwrap();
        fs::write(
            root.join("venv/pyvenv.cfg"),
            format!("home = {}\nversion = 3.11\n", root.join("base/bin").display()),
        )
        .unwrap();
        program("bin/tool", &format!("#!{}/venv/bin/python3 -s\n", root.display()));
        program("bin/by-name", "#!/usr/bin/env -S A=1 python3 -s\n");

        let around = |variables: &[(&str, &str)]| Surroundings {
            variables: variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        };
        let found = |command: &[&str], around: &Surroundings| -> Vec<String> {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            let mut found: Vec<_> = packages(&command, around)
                .iter()
                .filter_map(|folder| folder.strip_prefix(root.canonicalize().unwrap()).ok())
                .map(|folder| folder.to_str().unwrap().to_owned())
                .collect();
            found.sort();
            found
        };
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let environment = [sites[0], sites[1]].map(str::to_owned);
        assert_eq!(found(&[&at("bin/tool")], &around(&[])), environment);
        assert_eq!(found(&["tool", "x"], &around(&[("PATH", &at("bin"))])), environment);
        assert_eq!(found(&["mpirun", "-n", "2", &at("venv/bin/python3")], &around(&[])), environment);
        assert_eq!(found(&["sh"], &around(&[("VIRTUAL_ENV", &at("venv"))])), environment);
        let path = format!("{}:{}", at("bin"), at("venv/bin"));
        assert_eq!(found(&["by-name"], &around(&[("PATH", &path)])), environment);
        assert_eq!(found(&["sh"], &around(&[("HOME", &at("home"))])), [sites[2]]);
        program("pyenv/shims/python3", "#!/usr/bin/env bash\n");
        assert_eq!(found(&["python3"], &around(&[("PATH", &at("pyenv/shims"))])), [sites[4]]);
        let other =
            [("HOME", &*at("home")), ("PYTHONUSERBASE", &at("x")), ("PYTHONPATH", &at("on the path"))];
        assert_eq!(found(&["sh"], &around(&other)), [sites[3]]);
        assert!(found(&["no such command"], &around(&[])).is_empty());
        fs::remove_dir_all(&root).unwrap();
    }
}
