//! Reads a kernel uapi header far enough to list its definitions: the names of constants, types and
//! fields, in order.
//!
//! Values, offsets and sizes come from the C compiler. This parser reads the C that the RDMA
//! headers are written in and no more. Anything else is an error with a line number and never
//! skipped, because a definition that the parser skipped would be missing from the golden file
//! without a trace. [`library`] adds what the headers of libibverbs need besides.

pub(super) mod library;

use anyhow::{Context as _, Result, bail, ensure};

/// One definition of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// An object-like macro with a value.
    Define(String),
    /// A macro with parameters.
    FunctionMacro(String),
    /// A typedef.
    Typedef(String),
    /// An enum and its constants.
    Enum { tag: Option<String>, names: Vec<String> },
    /// A struct or union, including one without a tag inside another.
    Type(Type),
}

/// A struct or union.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Type {
    pub(super) union: bool,
    /// The tag (and kind) of the type, or of the outermost type around it.
    pub(super) root: Root,
    /// Members that lead from the root to this type; empty for the root itself.
    pub(super) path: Vec<String>,
    pub(super) members: Vec<Member>,
}

/// A type that C can name.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Root {
    pub(super) union: bool,
    pub(super) tag: String,
}

/// A member as C reaches it from its type: those of an anonymous struct or union count as the outer
/// type's.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    /// An array without length at the end.
    pub(super) flexible: bool,
}

/// Returns the definitions of `source` in order; a type comes before the types declared inside it.
///
/// # Errors
/// A line that the parser does not understand; the message names the first one.
pub(super) fn parse(source: &str) -> Result<Vec<Item>> {
    Parser { tokens: tokenize(source, "")?, at: 0, items: Vec::new(), library: false }.all()
}

#[derive(Debug, PartialEq, Eq, Clone)]
enum Token {
    /// Identifier or number.
    Word(String),
    Punctuation(char),
    Define(String),
    FunctionMacro(String),
}

/// Splits a header into tokens with their line numbers; `further` lists punctuation that a
/// declaration does not need and a function does.
fn tokenize(source: &str, further: &str) -> Result<Vec<(usize, Token)>> {
    let mut tokens = Vec::new();
    let source = without_comments(source)?;
    let mut lines = source.lines().enumerate();
    while let Some((index, first)) = lines.next() {
        let number = index + 1;
        let mut line = first.to_owned();
        while let Some(start) = line.strip_suffix('\\') {
            let (_, next) = lines.next().with_context(|| format!("line {number}: continued past the end"))?;
            line = format!("{start} {next}");
        }
        if let Some(text) = line.trim_start().strip_prefix('#') {
            let token = directive(text.trim()).with_context(|| format!("line {number}"))?;
            tokens.extend(token.map(|token| (number, token)));
            continue;
        }
        let mut rest = line.as_str();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            if word > 0 {
                tokens.push((number, Token::Word(rest[..word].to_owned())));
                rest = &rest[word..];
            } else {
                if !c.is_whitespace() {
                    let known = "{}[]();,=<>|&~+-*/:".contains(c) || further.contains(c);
                    ensure!(known, "line {number}: unexpected {c:?}");
                    tokens.push((number, Token::Punctuation(c)));
                }
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Ok(tokens)
}

/// Replaces each comment by one space, and keeps the line breaks in it, so that line numbers stay
/// right.
fn without_comments(source: &str) -> Result<String> {
    let mut out = String::new();
    let mut rest = source;
    while let Some(start) = rest.find("/*") {
        out.push_str(&rest[..start]);
        let length = rest[start..].find("*/").context("a comment without an end")?;
        out.push(' ');
        out.extend(rest[start..start + length].chars().filter(|c| *c == '\n'));
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    ensure!(!out.contains("//"), "a comment that starts with //");
    Ok(out)
}

fn directive(text: &str) -> Result<Option<Token>> {
    let (keyword, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match keyword {
        // Include guards, and a check for RDMA_UAPI_PTR, which is undefined at this point: the body
        // always applies.
        "ifndef" | "endif" | "include" => Ok(None),
        "define" => {
            let rest = rest.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (name, value) = rest.split_at(end);
            ensure!(!name.is_empty(), "a #define without a name");
            Ok(match value.trim() {
                _ if value.starts_with('(') => Some(Token::FunctionMacro(name.to_owned())),
                "" => None,
                _ => Some(Token::Define(name.to_owned())),
            })
        }
        _ => bail!("the directive #{text} is not understood"),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    items: Vec<Item>,
    /// Whether the header is one of libibverbs, with functions and members of any type.
    library: bool,
}

impl Parser {
    fn all(mut self) -> Result<Vec<Item>> {
        while self.at < self.tokens.len() {
            let line = self.line();
            let read = if self.library { self.library_item() } else { self.top_level() };
            read.with_context(|| format!("line {line}"))?;
        }
        Ok(self.items)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |(line, _)| *line)
    }

    fn next(&mut self) -> Result<Token> {
        let (_, token) = self.tokens.get(self.at).context("unexpected end of the header")?;
        self.at += 1;
        Ok(token.clone())
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn next_is(&mut self, c: char) -> bool {
        let is = self.peek() == Some(&Token::Punctuation(c));
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, c: char) -> Result<()> {
        let line = self.line();
        match self.next()? {
            Token::Punctuation(found) if found == c => Ok(()),
            found => bail!("line {line}: expected {c:?}, found {found:?}"),
        }
    }

    fn word(&mut self) -> Result<String> {
        let line = self.line();
        match self.next()? {
            Token::Word(word) => Ok(word),
            found => bail!("line {line}: expected a name, found {found:?}"),
        }
    }

    fn top_level(&mut self) -> Result<()> {
        match self.next()? {
            Token::Define(name) => self.items.push(Item::Define(name)),
            Token::FunctionMacro(name) => self.items.push(Item::FunctionMacro(name)),
            Token::Word(word) if word == "enum" => self.enumeration()?,
            Token::Word(word) if word == "struct" || word == "union" => {
                let root = Root { union: word == "union", tag: self.word()? };
                self.expect('{')?;
                self.body(&root, Vec::new(), root.union)?;
                self.expect(';')?;
            }
            Token::Word(word) if word == "typedef" => {
                let mut name = None;
                loop {
                    match self.next()? {
                        Token::Punctuation(';') => break,
                        Token::Word(word) => name = Some(word),
                        Token::Punctuation('(' | ')') => {}
                        found => bail!("expected a plain typedef, found {found:?}"),
                    }
                }
                self.items.push(Item::Typedef(name.context("a typedef without a name")?));
            }
            found => bail!("expected a definition, found {found:?}"),
        }
        Ok(())
    }

    fn enumeration(&mut self) -> Result<()> {
        let tag = match self.peek() {
            Some(Token::Word(_)) => Some(self.word()?),
            _ => None,
        };
        self.expect('{')?;
        let mut names = Vec::new();
        while !self.next_is('}') {
            names.push(self.word()?);
            if self.next_is('=') {
                self.skip_expression()?;
            }
            if !self.next_is(',') {
                self.expect('}')?;
                break;
            }
        }
        self.expect(';')?;
        self.items.push(Item::Enum { tag, names });
        Ok(())
    }

    /// Skips to the comma or closing brace that ends an enumerator's value.
    fn skip_expression(&mut self) -> Result<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek().context("unexpected end of the header")? {
                Token::Punctuation(',' | '}') if depth == 0 => return Ok(()),
                Token::Punctuation('(') => depth += 1,
                Token::Punctuation(')') => depth = depth.checked_sub(1).context("a ) without its (")?,
                Token::Punctuation('{' | '}' | ';') => bail!("an enumerator's value without an end"),
                Token::Define(name) | Token::FunctionMacro(name) => bail!("#define {name} inside an enum"),
                Token::Word(_) | Token::Punctuation(_) => {}
            }
            self.at += 1;
        }
    }

    /// Reads the members up to the closing brace, as a [`Type`] of its own.
    fn body(&mut self, root: &Root, path: Vec<String>, union: bool) -> Result<()> {
        let slot = self.items.len();
        let mut members = Vec::new();
        self.members(root, &path, &mut members)?;
        self.items.insert(slot, Item::Type(Type { union, root: root.clone(), path, members }));
        Ok(())
    }

    fn members(&mut self, root: &Root, path: &[String], members: &mut Vec<Member>) -> Result<()> {
        while !self.next_is('}') {
            let line = self.line();
            self.member(root, path, members).with_context(|| format!("line {line}: in {}", root.tag))?;
        }
        Ok(())
    }

    fn member(&mut self, root: &Root, path: &[String], members: &mut Vec<Member>) -> Result<()> {
        if self.library {
            return self.library_member(root, path, members);
        }
        let word = self.word()?;
        match word.as_str() {
            "struct" | "union" if self.next_is('{') => {
                return self.nested(word == "union", root, path, members);
            }
            "struct" | "union" => {
                self.word()?;
            }
            "RDMA_UAPI_PTR" | "__DECLARE_FLEX_ARRAY" => {
                self.expect('(')?;
                while !self.next_is(',') {
                    ensure!(!matches!(self.next()?, Token::Punctuation(';')), "{word} without a name");
                }
                members.push(Member { name: self.word()?, flexible: word != "RDMA_UAPI_PTR" });
                self.expect(')')?;
                return self.expect(';');
            }
            "enum" | "const" | "volatile" | "unsigned" | "signed" | "long" | "short" | "int" | "char"
            | "void" => {
                bail!("a member of type {word:?} is not understood")
            }
            _ => {}
        }
        loop {
            let name = self.word()?;
            let mut flexible = false;
            if self.next_is('[') {
                let start = self.at;
                while !self.next_is(']') {
                    ensure!(
                        !matches!(self.next()?, Token::Punctuation(';')),
                        "an array length without an end"
                    );
                }
                let length = &self.tokens[start..self.at - 1];
                flexible = match length {
                    [] => true,
                    [(_, Token::Word(word))] => word == "0",
                    _ => false,
                };
            }
            members.push(Member { name, flexible });
            if !self.next_is(',') {
                return self.expect(';');
            }
        }
    }

    /// Reads a struct or union without a tag, after its `{`.
    fn nested(&mut self, union: bool, root: &Root, path: &[String], members: &mut Vec<Member>) -> Result<()> {
        // Its name comes after its body: look for it first.
        let start = self.at;
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                Token::Punctuation('{') => depth += 1,
                Token::Punctuation('}') => depth -= 1,
                Token::Define(name) | Token::FunctionMacro(name) => bail!("#define {name} inside a type"),
                _ => {}
            }
        }
        let mut names = Vec::new();
        while !self.next_is(';') {
            if !names.is_empty() {
                self.expect(',')?;
            }
            names.push(self.word()?);
        }
        let end = self.at;
        self.at = start;
        match names.first() {
            None => self.members(root, path, members)?,
            // Two members of one type without a tag: the first one stands for both.
            Some(first) => {
                let mut inner = path.to_vec();
                inner.push(first.clone());
                self.body(root, inner, union)?;
                members.extend(names.into_iter().map(|name| Member { name, flexible: false }));
            }
        }
        self.at = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(members: &[Member]) -> Vec<&str> {
        members.iter().map(|m| m.name.as_str()).collect()
    }

    fn types(items: &[Item]) -> Vec<&Type> {
        items.iter().filter_map(|item| if let Item::Type(t) = item { Some(t) } else { None }).collect()
    }

    #[test]
    fn a_header_becomes_its_definitions_in_order() {
        let source = "/* a\n * b */\n#ifndef X_H\n#define X_H\n#include <linux/types.h>\n#define A 1 /* one */\n\
                      #define GET(x) \\\n\t(x)\nenum e {\n\tB, /* b */\n\tC = (A << 1) | (1, 2),\n};\n\
                      enum { D };\ntypedef unsigned long __attribute__((aligned(4))) word;\n\
                      struct s {\n\t__u32 a, b[A * 2];\n\tRDMA_UAPI_PTR(struct s *, p);\n\tstruct t data[];\n};\n#endif\n";
        let items = parse(source).unwrap();
        assert_eq!(items[0], Item::Define("A".into()));
        assert_eq!(items[1], Item::FunctionMacro("GET".into()));
        assert_eq!(items[2], Item::Enum { tag: Some("e".into()), names: vec!["B".into(), "C".into()] });
        assert_eq!(items[3], Item::Enum { tag: None, names: vec!["D".into()] });
        assert_eq!(items[4], Item::Typedef("word".into()));
        let types = types(&items);
        assert_eq!(names(&types[0].members), ["a", "b", "p", "data"]);
        assert_eq!(
            types[0].members.iter().map(|m| m.flexible).collect::<Vec<_>>(),
            [false, false, false, true]
        );
    }

    #[test]
    fn inner_types_are_listed_after_the_outer_one_and_named_by_their_path() {
        let source = "struct s {\n union {\n  struct {\n   __u8 x;\n  } deep;\n  __u64 y;\n } u, v;\n \
                      union {\n  __u8 p;\n  struct { __u8 q; };\n  __DECLARE_FLEX_ARRAY(struct t, r);\n };\n __u8 z[0];\n};\n";
        let items = parse(source).unwrap();
        let types = types(&items);
        assert_eq!(types.len(), 3);
        assert_eq!(names(&types[0].members), ["u", "v", "p", "q", "r", "z"]);
        assert_eq!(types[0].members.iter().filter(|m| m.flexible).count(), 2);
        assert_eq!((types[1].path.join("."), types[1].union), ("u".into(), true));
        assert_eq!(names(&types[1].members), ["deep", "y"]);
        assert_eq!((types[2].path.join("."), types[2].union), ("u.deep".into(), false));
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_its_line() {
        for (source, line) in [
            ("#ifdef X\n#endif\n", "line 1"),
            ("\nextern int x;\n", "line 2"),
            ("struct s {\n __u32 a : 3;\n};\n", "line 2"),
            ("struct s {\n unsigned long a;\n};\n", "line 2"),
            ("struct s {\n __u32 a;\n#define A 1\n};\n", "line 3"),
            ("enum e {\n A = {\n};\n", "line 1"),
            ("struct s {\n __u32 a;\n", "end of the header"),
            ("static inline void f(void) {}\n", "line 1"),
            ("struct s { __u32 a; } x;\n", "line 1"),
            ("__u32 \"x\";\n", "line 1"),
        ] {
            let error = format!("{:#}", parse(source).expect_err(source));
            assert!(error.contains(line), "{source:?}: {error}");
        }
    }
}
