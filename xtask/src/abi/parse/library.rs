//! Reads a header of libibverbs: conditional directives, functions, which are left out, and members
//! of any type.
//!
//! Every condition is looked up in [`CONDITIONS`]; one that is not listed is an error, because its
//! branch could hold a definition.

use anyhow::{Context as _, Result, bail, ensure};

use super::{Item, Member, Parser, Root, Token, tokenize, without_comments};

/// The conditions of the headers, and whether they hold for the probe: C, gcc, 64 bits, and nothing
/// included before.
const CONDITIONS: &[(&str, bool)] = &[
    ("ifndef INFINIBAND_VERBS_H", true),
    ("ifndef VERBS_API_H", true),
    ("ifndef INFINIBAND_SA_H", true),
    ("if !defined(RDMA_CMA_H)", true),
    ("ifdef __cplusplus", false),
    ("ifdef __CHECKER__", false),
    ("ifdef RDMA_STATIC_PROVIDERS", false),
    ("if __GNUC__ >= 3", true),
    ("if UINTPTR_MAX == UINT32_MAX", false),
    ("elif UINTPTR_MAX == UINT64_MAX", true),
    // Only inside the branch for 32 bits.
    ("if __BYTE_ORDER == __LITTLE_ENDIAN", true),
];

/// Returns the definitions of `source` in order, without functions and forward declarations; a type
/// comes before the types declared inside it.
///
/// # Errors
/// A line that the parser does not understand; the message names the first one.
pub(in crate::abi) fn parse(source: &str) -> Result<Vec<Item>> {
    let source = without_dead_branches(&without_comments(source)?)?;
    Parser { tokens: tokenize(&source, "!.^?")?, at: 0, items: Vec::new(), library: true }.all()
}

/// An `#if` whose `#endif` has not come.
struct Branch {
    /// Whether the lines around the `#if` apply.
    outer: bool,
    /// Whether a branch of it has applied.
    taken: bool,
    /// Whether the present branch applies.
    live: bool,
}

/// Empties the lines of branches that do not apply, and the conditional directives.
fn without_dead_branches(source: &str) -> Result<String> {
    let mut out = String::new();
    let mut branches: Vec<Branch> = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let live = branches.last().is_none_or(|branch| branch.live);
        let words: Vec<_> =
            line.trim_start().strip_prefix('#').unwrap_or_default().split_whitespace().collect();
        let holds = || {
            let condition = words.join(" ");
            let known = CONDITIONS.iter().find(|(known, _)| *known == condition);
            known.map(|(_, holds)| *holds).with_context(|| format!("the condition #{condition} is unknown"))
        };
        let directive = match words.first().copied().unwrap_or_default() {
            "if" | "ifdef" | "ifndef" => holds().map(|holds| {
                branches.push(Branch { outer: live, taken: holds, live: live && holds });
            }),
            "elif" => holds().and_then(|holds| {
                let branch = branches.last_mut().context("an #elif without its #if")?;
                branch.live = branch.outer && !branch.taken && holds;
                branch.taken |= holds;
                Ok(())
            }),
            "else" => branches.last_mut().context("an #else without its #if").map(|branch| {
                branch.live = branch.outer && !branch.taken;
                branch.taken = true;
            }),
            "endif" => branches.pop().map(|_| ()).context("an #endif without its #if"),
            "undef" => Ok(()),
            _ => {
                if live {
                    out.push_str(line);
                }
                Ok(())
            }
        };
        directive.with_context(|| format!("line {}", index + 1))?;
        out.push('\n');
    }
    ensure!(branches.is_empty(), "an #if without its #endif");
    Ok(out)
}

impl Parser {
    pub(super) fn library_item(&mut self) -> Result<()> {
        let is = |at: usize, c: char| matches!(self.tokens.get(at), Some((_, Token::Punctuation(found))) if *found == c);
        let at = self.at;
        match self.peek() {
            Some(Token::Word(word)) => match word.as_str() {
                "struct" | "union" if is(at + 2, ';') => self.at += 3,
                "struct" | "union" | "enum" if is(at + 1, '{') || is(at + 2, '{') => self.top_level()?,
                _ => self.function()?,
            },
            _ => self.top_level()?,
        }
        Ok(())
    }

    /// Skips the declaration or definition of a function.
    fn function(&mut self) -> Result<()> {
        let mut words = 0;
        loop {
            match self.next()? {
                Token::Word(word) if word == "__attribute__" => {
                    self.expect('(')?;
                    self.skip_block('(', ')')?;
                }
                Token::Word(_) => words += 1,
                Token::Punctuation('*') => {}
                Token::Punctuation('(') if words >= 2 => break,
                found => bail!("expected a function, found {found:?}"),
            }
        }
        self.skip_block('(', ')')?;
        if self.next_is(';') {
            return Ok(());
        }
        self.expect('{')?;
        self.skip_block('{', '}')
    }

    /// Skips to the bracket that closes the one just read.
    fn skip_block(&mut self, open: char, close: char) -> Result<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                Token::Punctuation(c) if c == open => depth += 1,
                Token::Punctuation(c) if c == close => depth -= 1,
                Token::Define(name) | Token::FunctionMacro(name) => bail!("#define {name} inside a function"),
                Token::Word(_) | Token::Punctuation(_) => {}
            }
        }
        Ok(())
    }

    /// Reads members of any type, function pointers included.
    pub(super) fn library_member(
        &mut self,
        root: &Root,
        path: &[String],
        members: &mut Vec<Member>,
    ) -> Result<()> {
        let first = self.word()?;
        if (first == "struct" || first == "union") && self.next_is('{') {
            return self.nested(first == "union", root, path, members);
        }
        let mut words = vec![first];
        loop {
            match self.next()? {
                Token::Word(word) => words.push(word),
                Token::Punctuation('*') => {}
                Token::Punctuation('(') => {
                    self.expect('*')?;
                    words.push(self.word()?);
                    self.expect(')')?;
                    self.expect('(')?;
                    self.skip_block('(', ')')?;
                }
                Token::Punctuation('[') => {
                    ensure!(!self.next_is(']'), "an array without length is not understood");
                    self.skip_block('[', ']')?;
                }
                Token::Punctuation(';') => break,
                found => bail!("expected a member, found {found:?}"),
            }
        }
        ensure!(words.len() >= 2, "a member without a type or a name");
        members.push(Member { name: words.pop().unwrap_or_default(), flexible: false });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Type;
    use super::*;

    #[test]
    fn types_and_constants_are_read_and_functions_are_not() {
        let source = "#ifndef INFINIBAND_VERBS_H\n#define INFINIBAND_VERBS_H\n#include <stdint.h>\n\
                      #ifdef __cplusplus\n#include <limits>\nextern \"C\" {\n#else\n#define A ((void *)-1)\n#endif\n\
                      enum ibv_rate { B, C = 1 << 2 };\nenum ibv_rate  __attribute_const get(int mult);\n\
                      struct ibv_pd;\nint f(struct ibv_pd *pd, ...);\n\
                      static inline struct ibv_pd *g(int x)\n{\n\tif (!x) { return 0; }\n\treturn x ^ 1;\n}\n\
                      __attribute__((always_inline)) static inline int h(void) { return 0; }\n#undef A\n#endif\n";
        let items = parse(source).unwrap();
        assert_eq!(
            items,
            [
                Item::Define("A".into()),
                Item::Enum { tag: Some("ibv_rate".into()), names: vec!["B".into(), "C".into()] }
            ]
        );
    }

    #[test]
    fn members_of_every_kind_are_read() {
        let source = "struct s {\n\tunsigned int\ta;\n\tstruct t *b;\n\tchar c[N];\n\tenum e (*d)(int x, int (*y)(void));\n\
                      \tvoid * (*f) (void);\n\tunion {\n\t\tstruct {\n\t\t\tint x;\n\t\t} g;\n\t\tint h;\n\t};\n};\n";
        let types: Vec<Type> = parse(source)
            .unwrap()
            .into_iter()
            .filter_map(|item| if let Item::Type(t) = item { Some(t) } else { None })
            .collect();
        let names = |t: &Type| t.members.iter().map(|m| m.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&types[0]), ["a", "b", "c", "d", "f", "g", "h"]);
        assert_eq!((types[1].path.join("."), names(&types[1])), ("g".into(), vec!["x".into()]));
    }

    #[test]
    fn only_the_live_branch_of_a_condition_is_read() {
        let source = "#if UINTPTR_MAX == UINT32_MAX\n#if __BYTE_ORDER == __LITTLE_ENDIAN\n#define A 1\n#else\n#define B 1\n\
                      #endif\n#elif UINTPTR_MAX == UINT64_MAX\n#define C 1\n#else\n#error no\n#endif\n#define D 1\n";
        assert_eq!(parse(source).unwrap(), [Item::Define("C".into()), Item::Define("D".into())]);
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_its_line() {
        for (source, line) in [
            ("\n#ifdef SOMETHING\n#endif\n", "line 2"),
            ("#ifdef __cplusplus\n", "#endif"),
            ("#else\n", "line 1"),
            ("\nint x;\n", "line 2"),
            ("struct s {\n int a : 3;\n};\n", "line 2"),
            ("struct s {\n int a[];\n};\n", "line 2"),
            ("struct s {\n a;\n};\n", "line 2"),
            ("int f(void)\n{\n", "end of the header"),
        ] {
            let error = format!("{:#}", parse(source).expect_err(source));
            assert!(error.contains(line), "{source:?}: {error}");
        }
    }
}
