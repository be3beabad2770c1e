//! Barriers in the built code: checks with `objdump` that this program's functions for ringing and
//! polling have the right instructions in the right order on every path.
//!
//! Each relevant instruction is a letter, and each path from the start of a function to its end is
//! a word. The paths follow all jumps. Calls are skipped, so a word covers only the function
//! itself.
//!
//! | letter | meaning | x86-64 | aarch64 |
//! |---|---|---|---|
//! | `T` | `to_device` | none | `dmb oshst` |
//! | `F` | `from_device` | none | `dmb oshld` |
//! | `W` | `mmio_wc_start`, `flush_wc` | `sfence` | `dsb st` |
//! | `R` | a doorbell record is stored | `bswap` and `mov` of 32 bits | `stlr` of 32 bits |
//! | `B` | a block is copied into a register | eight consecutive `movups` | `st1` of 64 bytes |
//! | `O` | the owner of a completion is read | a byte at 63 | the same |
//! | `U` | the user index of that completion is read | 32 bits at 32, same base | the same |
//! | `A` | an atomic read-modify-write | `lock` | `ld*l`, or a call of its outlined form |
//! | `s` | other stores, not to the stack | | |

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A function whose instructions are checked.
struct Site {
    name: &'static str,
    /// The function's symbol: the whole name, or part of a mangled name.
    symbol: &'static str,
    /// The word that at least one path must have, in aarch64 letters.
    full: &'static str,
    /// The words the other paths may have; `None` for a poller, which must not read anything [too
    /// early](TOO_EARLY).
    others: Option<&'static [&'static str]>,
}

const SITES: &[Site] = &[
    Site {
        name: "a send, its record, and the register",
        symbol: "mlx5_bench_inline_1_constant",
        full: "TRWBW",
        // For several blocks since the last doorbell, only the first 8 bytes of the last block are
        // stored.
        others: Some(&["", "TR", "TRWsW"]),
    },
    Site {
        name: "a send with one element, its record, and the register",
        symbol: "mlx5_bench_sge_1_constant",
        full: "TRWBW",
        others: Some(&["", "TR", "TRWsW"]),
    },
    Site {
        name: "several sends, their record, and the register",
        symbol: "9post_send",
        full: "TRWBW",
        others: Some(&["", "TR", "TRWsW"]),
    },
    Site {
        name: "a register that takes 8 bytes",
        symbol: "10ring_other",
        full: "WsW",
        others: Some(&["WBW"]),
    },
    Site { name: "a receive", symbol: "mlx5_bench_recv_1_static", full: "TR", others: Some(&[""]) },
    Site {
        name: "a shared receive",
        symbol: "mlx5_bench_srq_1_static",
        full: "AsTR",
        others: Some(&["", "TR"]),
    },
    Site { name: "a completion", symbol: "mlx5_bench_poll_1_static", full: "OFUR", others: None },
    Site { name: "completions in a row", symbol: "9poll_runs", full: "OFUR", others: None },
    Site { name: "a lent completion", symbol: "mlx5_bench_lend_1_static", full: "OFUR", others: None },
];

/// Checks each site and prints one line per site. Returns whether all sites are correct.
///
/// # Errors
/// Fails if the program cannot be disassembled or the architecture is not supported.
pub(crate) fn check() -> Result<bool, String> {
    let arch = Arch::of_program()?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let objdump = |arguments: &[&str]| -> Result<String, String> {
        let tool = arch.objdump();
        let output = Command::new(tool).args(arguments).arg(&program).output();
        let output = output.map_err(|error| format!("{tool} (package binutils): {error}"))?;
        if !output.status.success() {
            return Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let symbols = objdump(&["--syms"])?;
    let mut failed = 0;
    for site in SITES {
        let names = symbols.lines().filter(|line| line.contains(".text"));
        let mut names = names.filter_map(|line| line.split_whitespace().last());
        let verdict = match names.find(|name| name.contains(site.symbol)) {
            None => Err("the program has no such function".to_owned()),
            Some(name) => {
                let disassemble = format!("--disassemble={name}");
                let text = objdump(&["-d", "--no-show-raw-insn", "-Mintel", &disassemble])
                    .or_else(|_| objdump(&["-d", "--no-show-raw-insn", &disassemble]))?;
                site.verdict(arch, &instructions(&text))
            }
        };
        match verdict {
            Ok(()) => println!("ok sites.{}", site.name),
            Err(why) => {
                failed += 1;
                println!("FAIL sites.{}: {}: {why}", site.name, site.symbol);
            }
        }
    }
    println!("{} passed, {failed} failed, 0 skipped", SITES.len() - failed);
    Ok(failed == 0)
}

impl Site {
    fn verdict(&self, arch: Arch, code: &[Instruction]) -> Result<(), String> {
        // A poller stores into the program's completions at every step.
        let with_stores = self.others.is_some();
        let words: BTreeSet<String> =
            words(arch, code, with_stores).into_iter().map(|word| arch.without_fields(word)).collect();
        let full = arch.word(self.full);
        // For a poller, only the ends of the words are known.
        if !words.iter().any(|word| *word == full || self.others.is_none() && word.contains(&full)) {
            return Err(format!("no path has {full}, but {words:?}"));
        }
        let wrong = words.iter().find(|word| {
            **word != full
                && match self.others {
                    Some(others) => !others.iter().any(|other| arch.word(other) == **word),
                    None => word.starts_with(TOO_EARLY),
                }
        });
        wrong.map_or(Ok(()), |word| Err(format!("a path has {word}")))
    }
}

/// The beginning of the word for a path that reads a completion before its owner or the barrier.
const TOO_EARLY: &str = "U behind ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    fn of_program() -> Result<Self, String> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            other => Err(format!("the instructions of {other} are not known here")),
        }
    }

    /// Returns the name of the disassembler: the cross disassembler, if present, for a program that
    /// runs in an emulator.
    fn objdump(self) -> &'static str {
        const CROSS: &str = "aarch64-linux-gnu-objdump";
        let is_there = || Command::new(CROSS).arg("--version").output().is_ok();
        if self == Self::Aarch64 && is_there() { CROSS } else { "objdump" }
    }

    /// Returns a word without its first letter if that letter stands for a request field that only
    /// looks like a record, because more stores and then the real record follow.
    fn without_fields(self, word: String) -> String {
        match word.strip_prefix("Rs") {
            Some(rest) if self == Self::X86_64 && rest.contains('R') => rest.to_owned(),
            _ => word,
        }
    }

    /// Translates a word from aarch64 letters to this architecture.
    fn word(self, word: &str) -> String {
        word.chars().filter(|letter| self == Self::Aarch64 || !matches!(letter, 'T' | 'F')).collect()
    }
}

#[derive(Debug)]
struct Instruction {
    address: u64,
    name: String,
    operands: String,
}

/// Parses the lines of a disassembly, such as `  1234:\tmov    eax,DWORD PTR [rdi]`.
fn instructions(text: &str) -> Vec<Instruction> {
    let lines = text.lines().filter_map(|line| {
        let (address, code) = line.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        // A comment has a space after its mark, an aarch64 immediate has none.
        let code = code.split("// ").next()?.split("# ").next()?.trim();
        let (name, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        Some(Instruction { address, name: name.to_owned(), operands: operands.trim().to_owned() })
    });
    lines.collect()
}

/// Returns the words of all paths through a function. Stores before the first other letter and
/// after the last one are left out. If `with_stores` is false, all stores are left out and only the
/// ends of the words are kept. Code reached only through a jump table starts separate paths.
fn words(arch: Arch, code: &[Instruction], with_stores: bool) -> BTreeSet<String> {
    let places: BTreeMap<u64, usize> =
        code.iter().enumerate().map(|(place, one)| (one.address, place)).collect();
    let mut found = BTreeSet::new();
    // The position, the letters up to it, and the base address of the last owner read.
    let mut seen: BTreeSet<(usize, String, String)> = BTreeSet::new();
    let mut reached: BTreeSet<usize> = BTreeSet::new();
    for start in 0..code.len() {
        let is_start = start == 0 || !jump(arch, &code[start - 1]).1;
        if !is_start || reached.contains(&start) {
            continue;
        }
        let mut open = vec![(start, String::new(), String::new())];
        while let Some((place, mut word, mut base)) = open.pop() {
            if place >= code.len() || !seen.insert((place, word.clone(), base.clone())) {
                continue;
            }
            let letter = letter(arch, code, place, &base);
            let next = place + if let Some(Letter::Block(len)) = letter { len } else { 1 };
            reached.extend(place..next);
            match letter {
                // The entry has already been handed over.
                Some(Letter::Owner(of)) if word.ends_with('U') && of == base => {}
                Some(Letter::UserIndex(_)) if word.ends_with('U') => {}
                Some(Letter::Owner(of)) => {
                    word.push('O');
                    base = of;
                }
                Some(Letter::UserIndex(of)) => {
                    if !word.ends_with(&arch.word("OF")) {
                        found.insert(format!("{TOO_EARLY}{word}"));
                    }
                    word.push('U');
                    base = of;
                }
                Some(Letter::Block(_)) => word.push('B'),
                Some(Letter::Store) if !with_stores || word.ends_with('s') => {}
                Some(Letter::Store) => word.push('s'),
                Some(Letter::One(letter)) => word.push(letter),
                None => {}
            }
            if !base.is_empty() && writes(&code[place], &base) {
                base.clear();
            }
            // A poller has loops: its rule needs only the ends of words.
            if !with_stores {
                word.drain(..word.len().saturating_sub(LAST));
            }
            let (target, goes_on) = jump(arch, &code[place]);
            let inside = target.and_then(|target| places.get(&target).copied());
            if goes_on {
                open.push((next, word.clone(), base.clone()));
            } else if inside.is_none() {
                found.insert(word.trim_matches('s').to_owned());
            }
            open.extend(inside.map(|to| (to, word, base)));
        }
    }
    found
}

/// The number of letters kept at the end of a poller's word.
const LAST: usize = 6;

enum Letter {
    One(char),
    Store,
    /// A block is copied with this number of instructions.
    Block(usize),
    /// The owner of a completion is read, relative to this base.
    Owner(String),
    /// The user index of the same completion is read, relative to this base.
    UserIndex(String),
}

/// Returns the letter for the instruction at index `place`; `base` is the base address of the last
/// owner read.
fn letter(arch: Arch, code: &[Instruction], place: usize, base: &str) -> Option<Letter> {
    let one = &code[place];
    let (name, operands) = (one.name.as_str(), one.operands.as_str());
    let one = |letter| Some(Letter::One(letter));
    match arch {
        Arch::X86_64 => {
            let (to, from) = operands.split_once(',').unwrap_or((operands, ""));
            if name == "sfence" {
                return one('W');
            }
            if name == "lock" {
                return one('A');
            }
            let copies = code.get(place..place + 8).unwrap_or_default();
            if copies.len() == 8
                && copies.iter().all(|copy| copy.name == "movups")
                && copies[4..].iter().all(|copy| copy.operands.contains("],"))
            {
                return Some(Letter::Block(8));
            }
            if let Some(of) = at(from, 63).filter(|_| from.contains("BYTE PTR")) {
                return Some(Letter::Owner(of));
            }
            // At first, the base may be the sum of two registers; later, the first of them holds
            // the sum.
            if from.starts_with("DWORD PTR")
                && let Some(of) = at(from, 32)
                && (of == base || base.starts_with(&format!("{of}+")))
            {
                return Some(Letter::UserIndex(of));
            }
            if !to.contains('[') || to.contains("[rsp") || !name.starts_with("mov") {
                return None;
            }
            // A record is stored through a pointer without an offset; a field of an entry has an
            // offset.
            let is_record = to.starts_with("DWORD PTR") && !to.contains(['+', '-']);
            let is_record = is_record && is_swapped(code, place, "bswap");
            Some(if is_record { Letter::One('R') } else { Letter::Store })
        }
        Arch::Aarch64 => {
            let memory = operands.find('[').map_or("", |start| &operands[start..]);
            match (name, operands) {
                ("dmb", "oshst") => one('T'),
                ("dmb", "oshld") => one('F'),
                ("dsb", "st") => one('W'),
                ("stlr", _) if operands.starts_with('w') && is_swapped(code, place, "rev") => one('R'),
                ("st1", _) => Some(Letter::Block(1)),
                ("ldrb", _) if at(memory, 63).is_some() => at(memory, 63).map(Letter::Owner),
                ("ldr", _) if operands.starts_with('w') && at(memory, 32).is_some_and(|of| of == base) => {
                    at(memory, 32).map(Letter::UserIndex)
                }
                ("bl", _) if operands.contains("__aarch64_ld") => one('A'),
                _ if name.starts_with("ldset") || name.starts_with("ldclr") => one('A'),
                _ if name.starts_with("st") && !memory.starts_with("[sp") => Some(Letter::Store),
                _ => None,
            }
        }
    }
}

/// Returns whether an instruction before index `place` swapped the bytes that the instruction there
/// stores.
fn is_swapped(code: &[Instruction], place: usize, name: &str) -> bool {
    let stored = code[place].operands.split(',').find(|operand| !operand.contains('[')).unwrap_or_default();
    let mut before = code[place.saturating_sub(6)..place].iter();
    before.any(|one| one.name == name && first(one) == stored)
}

/// Returns the first operand of an instruction.
fn first(one: &Instruction) -> &str {
    one.operands.split(',').next().unwrap_or_default()
}

/// Returns whether an instruction may write a register.
fn writes(one: &Instruction, register: &str) -> bool {
    let only_reads = one.name.starts_with("st") || matches!(one.name.as_str(), "cmp" | "test" | "tst");
    first(one) == register && !only_reads
}

/// Returns the base of an address with this offset, such as `[rax+0x3f]` or `[x8, #63]`.
fn at(operand: &str, offset: u64) -> Option<String> {
    let inner = operand.split_once('[')?.1.split_once(']')?.0;
    let (base, told) = inner.rsplit_once("+0x").or_else(|| inner.rsplit_once(", #"))?;
    let radix = if inner.contains("+0x") { 16 } else { 10 };
    (u64::from_str_radix(told, radix).ok()? == offset).then(|| base.to_owned())
}

/// Returns the jump target of an instruction that jumps to a fixed address, and whether execution
/// may continue with the next instruction.
fn jump(arch: Arch, one: &Instruction) -> (Option<u64>, bool) {
    let (name, operands) = (one.name.as_str(), one.operands.as_str());
    let target = || {
        let before = operands.split_once(" <").map_or(operands, |(before, _)| before);
        let number = before.rsplit([' ', ',', '\t']).next()?;
        u64::from_str_radix(number.trim_start_matches("0x"), 16).ok()
    };
    let is_conditional = match arch {
        Arch::X86_64 => name.starts_with('j') && name != "jmp",
        Arch::Aarch64 => name.starts_with("b.") || matches!(name, "cbz" | "cbnz" | "tbz" | "tbnz"),
    };
    // After a call that does not return, another path begins.
    let never_returns = || ["panic", "failed", "alloc_error"].iter().any(|end| operands.contains(end));
    match name {
        _ if is_conditional => (target(), true),
        "jmp" | "b" => (target(), false),
        "ret" | "ud2" | "hlt" | "notrack" | "brk" | "br" | "udf" => (None, false),
        "call" | "bl" => (None, !never_returns()),
        _ => (None, true),
    }
}
