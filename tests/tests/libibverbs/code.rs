//! Generates code that names an item and therefore does not compile without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use quote::ToTokens;
use syn::{FnArg, GenericParam, Signature, Type, TypeParamBound, WherePredicate};

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

/// The files of code, each with its head.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("constants", "//! Every constant that the pages name.\n"),
    ("fields", "//! Every field that the pages name.\n\nuse std::mem::offset_of;\n"),
    (
        "functions",
        "//! Every function and method that the pages name.\n\n\
         use std::net::TcpStream;\nuse std::ops::RangeFull;\n\nuse verbs::state::*;\n",
    ),
    ("types", "//! Every type and module that the pages name.\n\n#![allow(unused_imports)]\n"),
    ("variants", "//! Every variant of an enumeration that the pages name.\n"),
];

/// Returns the contents of each of [`FILES`], with a line for each path.
pub(crate) fn files(scan: &Scan, paths: &BTreeSet<&str>) -> BTreeMap<&'static str, String> {
    let mut lines = BTreeMap::<_, String>::new();
    for path in paths {
        let (file, line) = line(path, &scan.items[*path]);
        let indent = if file == "types" { "" } else { "    " };
        let _ = writeln!(lines.entry(file).or_default(), "{indent}{line}");
    }
    let file = |(name, head): &(&'static str, _)| {
        let lines = lines.remove(name).unwrap_or_default();
        let text = match *name {
            "types" => format!("{head}\n{lines}"),
            _ => format!("{head}\n#[test]\nfn every_path_compiles() {{\n{lines}}}\n"),
        };
        (*name, text)
    };
    FILES.iter().map(file).collect()
}

/// Returns the file for an item and the line that names it.
fn line(path: &str, kind: &Kind) -> (&'static str, String) {
    let (owner, name) = path.rsplit_once("::").unwrap_or(("", path));
    match kind {
        Kind::Module => ("types", format!("use {path} as _;")),
        Kind::Type => ("types", format!("use verbs::{path} as _;")),
        Kind::Constant => ("constants", format!("let _ = verbs::{path};")),
        Kind::Field => ("fields", format!("let _ = offset_of!({}, {name});", instance(owner))),
        Kind::Reader => ("functions", format!("let _ = <{}>::{name};", instance(owner))),
        Kind::Variant { fields } => {
            ("variants", format!("let _ = |x: &{}| matches!(x, verbs::{path}{fields});", instance(owner)))
        }
        Kind::Function { of, signature } => {
            let item = match of.as_deref().unwrap_or(owner) {
                "" => format!("verbs::{name}"),
                of => format!("<{}>::{name}", instance(of)),
            };
            ("functions", function(path, &item, signature))
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
    let signature: Signature =
        syn::parse_str(signature).unwrap_or_else(|e| panic!("{path}: {signature}: {e}"));
    let turbofish: Vec<_> = parameters(&signature).into_iter().map(|bounds| meets(path, &bounds)).collect();
    let turbofish =
        if turbofish.is_empty() { String::new() } else { format!("::<{}>", turbofish.join(", ")) };
    let arguments: Vec<_> = signature.inputs.iter().map(|input| argument(path, input)).collect();
    let any = arguments.iter().any(|argument| argument != "_");
    let is_unsafe = if signature.unsafety.is_some() { "unsafe " } else { "" };
    let of = if any { format!(": {is_unsafe}fn({}) -> _", arguments.join(", ")) } else { String::new() };
    let line = format!("let _{of} = {item}{turbofish};");
    // Breaks the line like rustfmt.
    if line.len() + 4 > 110 { line.replace(" = ", " =\n        ") } else { line }
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
    found.unwrap_or_else(|| panic!("{path}: BOUNDS lacks a type for {bounds}")).1.to_owned()
}

#[test]
fn each_kind_of_item_is_named_in_its_own_way() {
    let function = |of: Option<&str>, signature: &str| Kind::Function {
        of: of.map(str::to_owned),
        signature: signature.to_owned(),
    };
    let batch = "let _ = offset_of!(verbs::WrBatch<<verbs::Erased as verbs::Provider>::Sq>, wr_id);";
    for (path, kind, want) in [
        ("verbs_core::cmd", Kind::Module, "use verbs_core::cmd as _;"),
        ("Ah", Kind::Type, "use verbs::Ah as _;"),
        ("Rate::MAX", Kind::Constant, "let _ = verbs::Rate::MAX;"),
        ("WrBatch::wr_id", Kind::Field, batch),
        ("Completion::wr_id", Kind::Reader, "let _ = <verbs::Completion>::wr_id;"),
        (
            "TmOp::Sync",
            Kind::Variant { fields: "(..)" },
            "let _ = |x: &verbs::TmOp| matches!(x, verbs::TmOp::Sync(..));",
        ),
        ("devices", function(None, "fn devices() -> List"), "let _ = verbs::devices;"),
        ("Pd::close", function(Some("Pd<P>"), "fn close(self)"), "let _ = <verbs::Pd>::close;"),
        ("Qp::resume", function(Some("Qp<Sqd, P>"), "fn resume(self)"), "let _ = <verbs::Qp<Sqd>>::resume;"),
        (
            "Qp::post_recv_buf",
            function(None, "fn post_recv_buf<M: PostMemory>(&mut self, m: M, r: impl RangeBounds<usize>)"),
            "let _: fn(_, _, RangeFull) -> _ = <verbs::Qp<Rts>>::post_recv_buf::<verbs::Buf>;",
        ),
        (
            "Qp::modify_to",
            function(Some("Qp<S, P>"), "unsafe fn modify_to<T>(self, from: impl State) where T: State"),
            "let _: unsafe fn(_, Rts) -> _ = <verbs::Qp<Rts>>::modify_to::<Rts>;",
        ),
    ] {
        assert_eq!(line(path, &kind).1, want);
    }
}
