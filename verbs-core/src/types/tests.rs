//! Tests that a search for a C name finds the corresponding constant.

/// Returns the constants of the `open_enum!` and `bitflags!` blocks in a source file, each with its
/// preceding attributes and comments.
fn constants(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut is_inside, mut before) = (false, String::new());
    for line in source.lines() {
        match line {
            "open_enum! {" | "bitflags! {" => is_inside = true,
            "}" => is_inside = false,
            _ => {}
        }
        let code = line.trim().trim_start_matches("const ");
        let name = code.split_once(" = ").map_or("", |(name, _)| name);
        let is_constant = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_');
        if is_inside && line.starts_with("        ") && is_constant {
            found.push((name.to_owned(), std::mem::take(&mut before)));
        } else if code.starts_with("#[doc(alias") || code.starts_with("///") {
            before.push_str(code);
        } else {
            before.clear();
        }
    }
    found
}

#[test]
fn every_constant_is_found_by_its_name_in_c() {
    let sources = [
        (include_str!("access.rs"), 11),
        (include_str!("data_in_order.rs"), 2),
        (include_str!("counters.rs"), 13),
        (include_str!("cq.rs"), 14),
        (include_str!("device_attr.rs"), 48),
        (include_str!("event.rs"), 21),
        (include_str!("flow.rs"), 26),
        (include_str!("gid.rs"), 3),
        (include_str!("mw.rs"), 2),
        (include_str!("port_attr.rs"), 61),
        (include_str!("qp_attr.rs"), 40),
        (include_str!("qp_create.rs"), 4),
        (include_str!("rate.rs"), 24),
        (include_str!("srq.rs"), 5),
        (include_str!("tm.rs"), 6),
        (include_str!("wc.rs"), 40),
        (include_str!("wq.rs"), 20),
        (include_str!("wr.rs"), 14),
        (include_str!("../discovery/device.rs"), 10),
    ];
    for (source, least) in sources {
        let constants = constants(source);
        assert!(constants.len() >= least, "{} constants, at least {least} expected", constants.len());
        for (name, before) in constants {
            assert!(before.contains("#[doc(alias = \"IB"), "{name} has no alias: {before}");
        }
    }
}
