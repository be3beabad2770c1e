//! The rules for attributes that allow unsafe code, for test code, and for parameters that could
//! name anything.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, FnArg, Meta};

/// Types that can name memory or a file.
const TYPES: &[&str] =
    &["NonNull", "AtomicPtr", "RawFd", "BorrowedFd", "OwnedFd", "AsFd", "AsRawFd", "IntoRawFd", "File"];

/// Types of roce for numbers that name an object of an engine.
const HANDLES: &[&str] = &["Qpn", "Pd", "CqId", "SrqId", "XrcDomain", "SlotId"];

/// Integers of the language and of C.
const INTEGERS: &[&str] = &[
    "i32",
    "i64",
    "isize",
    "u32",
    "u64",
    "usize",
    "c_int",
    "c_uint",
    "c_long",
    "c_ulong",
    "c_longlong",
    "c_ulonglong",
];

/// Names of parameters that are numbers of memory, files or objects.
const NUMBERS: &[&str] =
    &["fd", "handle", "addr", "address", "ptr", "pointer", "iova", "key", "lkey", "rkey", "qpn", "qp_num"];

/// Conditions other than `test` set only for test programs: loom's models.
const MODELS: &[&str] = &["loom"];

/// Returns whether an attribute anywhere in the tokens, including macros, sets the lint
/// `unsafe_code` to a level other than `deny` or `forbid`. In a doc comment the text is a literal,
/// which does not count.
pub(crate) fn allows_unsafe(tokens: TokenStream) -> bool {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => is_attribute = true,
            TokenTree::Punct(punct) if punct.as_char() == '!' && is_attribute => {}
            TokenTree::Group(group) => {
                if is_attribute && group.delimiter() == Delimiter::Bracket {
                    if sets_lint(group.stream(), "") {
                        return true;
                    }
                } else if allows_unsafe(group.stream()) {
                    return true;
                }
                is_attribute = false;
            }
            _ => is_attribute = false,
        }
    }
    false
}

/// Returns whether an attribute's tokens list `unsafe_code` under a level other than `deny` or
/// `forbid`.
fn sets_lint(tokens: TokenStream, level: &str) -> bool {
    let mut last = String::new();
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => {
            last = ident.to_string();
            last == "unsafe_code" && !["deny", "forbid"].contains(&level)
        }
        TokenTree::Group(group) => sets_lint(group.stream(), &last),
        _ => false,
    })
}

/// Returns whether the tokens, including macros, contain an `unsafe` block. A package outside the
/// workspace is not under its lints, and needs no attribute.
pub(crate) fn has_unsafe_block(tokens: TokenStream) -> bool {
    let mut is_unsafe = false;
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => {
            is_unsafe = ident == "unsafe";
            false
        }
        TokenTree::Group(group) => {
            let is_block = std::mem::take(&mut is_unsafe) && group.delimiter() == Delimiter::Brace;
            is_block || has_unsafe_block(group.stream())
        }
        _ => {
            is_unsafe = false;
            false
        }
    })
}

/// Returns the headers of the `unsafe impl`s in a macro's tokens.
pub(crate) fn unsafe_impls(tokens: TokenStream) -> Vec<String> {
    let mut headers = Vec::new();
    let mut header: Option<TokenStream> = None;
    let mut last = String::new();
    for token in tokens {
        let ends = matches!(&token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        if let TokenTree::Ident(ident) = &token {
            if last == "unsafe" && ident == "impl" {
                header = Some("unsafe".parse().expect("a keyword"));
            }
            last = ident.to_string();
        } else {
            last.clear();
        }
        if let TokenTree::Group(group) = &token {
            if ends && let Some(header) = header.take() {
                headers.push(plain(&header));
            }
            headers.extend(unsafe_impls(group.stream()));
        }
        if let Some(header) = &mut header {
            header.extend([token]);
        }
    }
    headers
}

/// Returns whether an item is compiled only for tests or models: under exactly `cfg(test)`,
/// `cfg(loom)` or `cfg(all(test, ..))`.
pub(crate) fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => is_test_condition(list.tokens.clone()),
        _ => false,
    })
}

fn is_test_condition(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(one)] => one == "test" || MODELS.iter().any(|model| one == model),
        [TokenTree::Ident(all), TokenTree::Group(group)] if all == "all" => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            parts
                .split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                .any(|part| is_test_condition(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// Returns a parameter that could name anything, as text.
pub(crate) fn suspect(file: &str, argument: &FnArg) -> Option<String> {
    let FnArg::Typed(argument) = argument else { return None };
    let (name, text) = (plain(&argument.pat), plain(&argument.ty));
    let has = |list: &[&str]| words(&text).any(|word| list.contains(&word));
    let is_handle = file.starts_with("roce/") && has(HANDLES);
    let is_number = has(INTEGERS) && words(&name).any(names_anything);
    let is_suspect =
        text.contains("*const") || text.contains("*mut") || names_type(&text) || is_handle || is_number;
    is_suspect.then(|| format!("{name}: {text}"))
}

/// Returns whether a parameter's name, or its singular, is one of [`NUMBERS`] or ends in an
/// underscore and one of them.
fn names_anything(name: &str) -> bool {
    let is_one = |name: &str| {
        NUMBERS.iter().any(|number| {
            name.strip_suffix(number).is_some_and(|before| before.is_empty() || before.ends_with('_'))
        })
    };
    is_one(name) || name.strip_suffix('s').is_some_and(is_one)
}

/// Returns whether the text contains one of [`TYPES`] as a word.
pub(crate) fn names_type(text: &str) -> bool {
    words(text).any(|word| TYPES.contains(&word))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns tokens in their usual formatting.
pub(crate) fn plain(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        ("* ", "*"),
        ("' ", "'"),
        ("[ ", "["),
        (" ]", "]"),
        (" ;", ";"),
        ("( ", "("),
        (" )", ")"),
        ("> for", "> for"),
        (" (", "("),
    ] {
        text = text.replace(from, to);
    }
    text
}
