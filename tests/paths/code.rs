//! Generates code that names an item and therefore does not compile without it.

use std::fmt::Write as _;

use quote::ToTokens;
use syn::{FnArg, GenericParam, Signature, Type, TypeParamBound, WherePredicate};

use super::page::Paths;
use super::scan::{Kind, Scan};

/// Arguments for types whose parameters have no default.
const ARGUMENTS: &[(&str, &str)] = &[
    ("FlowMatch", "verbs::FlowEthFilter"),
    ("HandleError", "verbs::Pd"),
    ("PostBufError", "verbs::Buf"),
    ("Qp", "Rts"),
    ("ScopedQp", "Rts"),
    ("SendBatch", "verbs::Erased"),
    ("Wr", "<verbs::Erased as verbs::Provider>::Sq"),
    ("WrBatch", "<verbs::Erased as verbs::Provider>::Sq"),
];

/// Types that meet the bounds of functions' type parameters.
const BOUNDS: &[(&str, &str)] = &[
    ("Into<CqHandle<P>>", "verbs::CqHandle"),
    ("Lent<'scope>", "verbs::ScopedBuf<'_>"),
    ("NamedProvider", "verbs::soft::Soft"),
    ("PostMemory", "verbs::Buf"),
    ("Read+Write", "TcpStream"),
    ("RangeBounds<usize>", "RangeFull"),
    ("StableBytes", "Vec<u8>"),
    ("StableMemory", "Vec<u8>"),
    ("State", "Rts"),
];

/// Returns the code: imports of types and modules, and a test with a statement for each other path.
/// A word that names no item is an error of the compiler.
pub(crate) fn code(scan: &Scan, paths: &Paths<'_>) -> String {
    let mut imports = "use std::mem::offset_of;\nuse std::net::TcpStream;\nuse std::ops::RangeFull;\n\n\
                       use verbs::state::*;\n"
        .to_owned();
    let mut statements = String::new();
    for path in &paths.items {
        let line = line(path, &scan.items[*path]);
        let to = if line.starts_with("use ") { &mut imports } else { &mut statements };
        let _ = writeln!(to, "{line}");
    }
    for word in &paths.unknown {
        let _ = writeln!(imports, "{};", error(&format!("{word} is neither an item nor a row of NO_PATHS")));
    }
    format!("{imports}\n#[test]\nfn every_path_compiles() {{\n{statements}}}\n")
}

/// Returns code that is an error of the compiler, as a statement, an item or a type.
fn error(why: &str) -> String {
    format!("compile_error!({why:?})")
}

/// Returns the code that names an item.
fn line(path: &str, kind: &Kind) -> String {
    let (owner, name) = path.rsplit_once("::").unwrap_or(("", path));
    match kind {
        Kind::Module => format!("use {path} as _;"),
        Kind::Type => format!("use verbs::{path} as _;"),
        Kind::Constant => format!("let _ = verbs::{path};"),
        Kind::Field => format!("let _ = offset_of!({}, {name});", instance(owner)),
        Kind::Reader => format!("let _ = <{}>::{name};", instance(owner)),
        Kind::Variant { fields } => {
            format!("let _ = |x: &{}| matches!(x, verbs::{path}{fields});", instance(owner))
        }
        Kind::Function { of, signature } => {
            let item = match of.as_deref().unwrap_or(owner) {
                "" => format!("verbs::{name}"),
                of => format!("<{}>::{name}", instance(of)),
            };
            function(path, &item, signature)
        }
    }
}

/// Returns a type with arguments, given the text after `impl`: its state if it names one, or else
/// its entry in [`ARGUMENTS`].
fn instance(of: &str) -> String {
    let (name, arguments) = of.split_once('<').unwrap_or((of, ""));
    let first = arguments.split([',', '>']).find(|argument| !argument.trim().starts_with('\''));
    let states = ["Reset", "Init", "Rtr", "Rts", "Sqd", "Sqe", "Err"];
    if let Some(state) = first.filter(|first| states.contains(&first.trim())) {
        return format!("verbs::{name}<{}>", state.trim());
    }
    let arguments = ARGUMENTS.iter().find(|(of, _)| *of == name);
    arguments.map_or_else(|| format!("verbs::{name}"), |(_, with)| format!("verbs::{name}<{with}>"))
}

/// Returns the line for a function. Its type parameters get types that meet their bounds; types for
/// `impl Trait` are in the type of a function pointer.
fn function(path: &str, item: &str, signature: &str) -> String {
    let signature: Signature = match syn::parse_str(signature) {
        Ok(signature) => signature,
        Err(why) => return format!("{};", error(&format!("{path}: {signature}: {why}"))),
    };
    let turbofish: Vec<_> = parameters(&signature).into_iter().map(|bounds| meets(path, &bounds)).collect();
    let turbofish =
        if turbofish.is_empty() { String::new() } else { format!("::<{}>", turbofish.join(", ")) };
    let arguments: Vec<_> = signature.inputs.iter().map(|input| argument(path, input)).collect();
    let any = arguments.iter().any(|argument| argument != "_");
    let is_unsafe = if signature.unsafety.is_some() { "unsafe " } else { "" };
    let of = if any { format!(": {is_unsafe}fn({}) -> _", arguments.join(", ")) } else { String::new() };
    format!("let _{of} = {item}{turbofish};")
}

/// Returns the type of an argument in a function pointer: `_` unless it has an `impl Trait`.
fn argument(path: &str, input: &FnArg) -> String {
    let FnArg::Typed(input) = input else { return "_".to_owned() };
    match &*input.ty {
        Type::ImplTrait(of) => meets(path, &text(&of.bounds)),
        Type::Reference(to) => match &*to.elem {
            Type::Paren(inner) => {
                let Type::ImplTrait(of) = &*inner.elem else { return "_".to_owned() };
                let mutable = if to.mutability.is_some() { "mut " } else { "" };
                format!("&{mutable}{}", meets(path, &text(&of.bounds)))
            }
            _ => "_".to_owned(),
        },
        _ => "_".to_owned(),
    }
}

/// Returns the bounds of each type parameter.
fn parameters(signature: &Signature) -> Vec<String> {
    let mut found = Vec::new();
    for param in &signature.generics.params {
        let GenericParam::Type(param) = param else { continue };
        let mut bounds: Vec<_> = param.bounds.iter().collect();
        for predicate in signature.generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            if let WherePredicate::Type(of) = predicate
                && param.ident == of.bounded_ty.to_token_stream().to_string()
            {
                bounds.extend(&of.bounds);
            }
        }
        found.push(text(bounds));
    }
    found
}

/// Returns bounds as text without spaces and lifetimes.
fn text<'a>(bounds: impl IntoIterator<Item = &'a TypeParamBound>) -> String {
    let bounds = bounds.into_iter().filter(|bound| !matches!(bound, TypeParamBound::Lifetime(_)));
    let bounds: Vec<_> = bounds.map(|bound| bound.to_token_stream().to_string().replace(' ', "")).collect();
    bounds.join("+")
}

/// Returns a type that meets bounds.
fn meets(path: &str, bounds: &str) -> String {
    let found = BOUNDS.iter().find(|(of, _)| *of == bounds);
    let lacks = || error(&format!("{path}: BOUNDS lacks a type for {bounds}"));
    found.map_or_else(lacks, |(_, with)| (*with).to_owned())
}
