//! `devinfo`: the device attributes that rdma-core's tools read through the driver and libmlx5.

use std::collections::BTreeSet;

use verbs_fixtures::functions::{Port, Setup, address, device, gid_of_address, read_sysfs};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};
use verbs_harness::tools::{Maker, run};

const SUITE: &str = "devinfo";

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let mut cases =
        vec![Case::new(SUITE, "ibv_devices lists every function", move || every_function_is_listed(setup))];
    for function in setup.numbers() {
        let name = device(function);
        let mut one = |what: &str, check: fn(Setup, u8) -> CaseResult| {
            cases.push(Case::new(SUITE, format!("{name} {what}"), move || check(setup, function)));
        };
        one("is a ConnectX-5", is_a_connectx_5);
        one("has a port that is active", has_an_active_port);
        one("has room for every kind of object", has_room);
        one("has atomics", has_atomics);
        one("has memory", has_memory);
        one("has addresses", has_addresses);
    }
    if setup.functions > 1 {
        cases.push(Case::new(SUITE, "functions have identities of their own", move || {
            identities_differ(setup)
        }));
    }
    cases
}

/// The output of `ibv_devinfo -v` for one device.
#[derive(Debug)]
pub struct Report(pub String);

impl Report {
    fn for_function(function: u8) -> CaseResult<Self> {
        let name = device(function);
        let ended = run(Maker::Theirs.tool("ibv_devinfo")?.args(["-v", "-d", &name]))?;
        if !ended.status.success() || !ended.stderr.is_empty() {
            return fail(format_args!("ibv_devinfo -v -d {name}: {ended:?}"));
        }
        Ok(Self(ended.stdout))
    }

    /// Returns the text after `KEY:`.
    ///
    /// # Errors
    /// Fails if the line is missing.
    pub fn text(&self, key: &str) -> CaseResult<&str> {
        let mut lines = self.0.lines().map(str::trim);
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        found.map(str::trim).ok_or_else(|| Stop::Failed(format!("ibv_devinfo prints no {key}")))
    }

    /// Checks the text after `KEY:`.
    ///
    /// # Errors
    /// Fails if the line is missing or has a different text.
    pub fn is(&self, key: &str, wanted: &str) -> CaseResult {
        let text = self.text(key)?;
        if text == wanted { Ok(()) } else { fail(format_args!("{key} is {text:?} rather than {wanted:?}")) }
    }

    fn is_one_of(&self, key: &str, wanted: &[&str]) -> CaseResult {
        let text = self.text(key)?;
        if wanted.contains(&text) {
            Ok(())
        } else {
            fail(format_args!("{key} is {text:?} rather than one of {wanted:?}"))
        }
    }

    /// Returns the number after `KEY:`, which is written as `17`, `0x11` or `1 (256)`.
    ///
    /// # Errors
    /// Fails if the line is missing or has no number.
    pub fn number(&self, key: &str) -> CaseResult<u64> {
        let text = self.text(key)?;
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| Stop::Failed(format!("{key} is {text:?}, which is not a number")))
    }

    /// Checks that each number is at least the given minimum.
    ///
    /// # Errors
    /// Fails if a number is missing or less than its minimum.
    pub fn at_least(&self, least: &[(&str, u64)]) -> CaseResult {
        for &(key, least) in least {
            let number = self.number(key)?;
            if number < least {
                return fail(format_args!("{key} is {number}, less than {least}"));
            }
        }
        Ok(())
    }

    /// Returns the GIDs in the report.
    pub fn gids(&self) -> Vec<&str> {
        let lines = self.0.lines().map(str::trim).filter(|line| line.starts_with("GID["));
        lines.filter_map(|line| line.split_once(':').map(|(_, gid)| gid.trim())).collect()
    }
}

fn every_function_is_listed(setup: Setup) -> CaseResult {
    let ended = run(&mut Maker::Theirs.tool("ibv_devices")?)?;
    let listed = listed(&ended.stdout);
    let names: Vec<_> = listed.iter().map(|(name, _)| *name).collect();
    let wanted: Vec<_> = setup.numbers().map(device).collect();
    if names != wanted {
        return fail(format_args!("ibv_devices lists {names:?} rather than {wanted:?}"));
    }
    let guids: BTreeSet<_> = listed.iter().map(|(_, guid)| *guid).collect();
    if guids.len() != listed.len() || guids.contains("0000000000000000") {
        return fail(format_args!("GUIDs are missing or not unique: {guids:?}"));
    }
    Ok(())
}

/// Returns the names and GUIDs in the output of `ibv_devices`, without its two heading lines.
pub fn listed(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .skip(2)
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .map(|(name, guid)| (name, guid.trim()))
        .collect()
}

fn is_a_connectx_5(_: Setup, function: u8) -> CaseResult {
    let report = Report::for_function(function)?;
    for (key, wanted) in [
        ("hca_id", &*device(function)),
        ("transport", "InfiniBand (0)"),
        ("vendor_id", "0x02c9"),
        ("vendor_part_id", "4119"),
        ("phys_port_cnt", "1"),
    ] {
        report.is(key, wanted)?;
    }
    for key in ["fw_ver", "node_guid", "sys_image_guid"] {
        if !report.text(key)?.contains(|c: char| c.is_ascii_hexdigit() && c != '0') {
            return fail(format_args!("{key} is {:?}", report.text(key)?));
        }
    }
    Ok(())
}

fn has_an_active_port(setup: Setup, function: u8) -> CaseResult {
    let report = Report::for_function(function)?;
    report.is("state", "PORT_ACTIVE (4)")?;
    report.is("phys_state", "LINK_UP (5)")?;
    match setup.port {
        Port::Ib => {
            report.is("link_layer", "InfiniBand")?;
            report.is("max_mtu", "4096 (5)")?;
            report.is("active_mtu", "4096 (5)")?;
            // Without a LID, no subnet manager has configured the port.
            report.at_least(&[("port_lid", 1), ("sm_lid", 1), ("pkey_tbl_len", 1)])
        }
        Port::Roce => {
            report.is("link_layer", "Ethernet")?;
            report.is("max_mtu", "4096 (5)")?;
            // The largest MTU that fits into frames of 1500 bytes.
            report.is("active_mtu", "1024 (3)")?;
            report.is("port_lid", "0")
        }
    }
}

fn has_room(_: Setup, function: u8) -> CaseResult {
    let report = Report::for_function(function)?;
    report.at_least(&[
        ("max_qp", 1024),
        ("max_qp_wr", 8192),
        ("max_sge", 16),
        ("max_cq", 1024),
        ("max_cqe", 65536),
        ("max_mr", 1024),
        ("max_mw", 1024),
        ("max_pd", 1024),
        ("max_qp_rd_atom", 16),
        ("max_qp_init_rd_atom", 16),
        ("max_srq", 1024),
        ("max_srq_wr", 8192),
        ("max_srq_sge", 16),
        ("max_mcast_grp", 16),
        ("max_mcast_qp_attach", 2),
        ("max_ah", 1024),
        ("max_pkeys", 1),
        ("num_comp_vectors", 1),
        ("gid_tbl_len", 2),
    ])?;
    report.is("max_msg_sz", "0x40000000")
}

fn has_memory(_: Setup, function: u8) -> CaseResult {
    Report::for_function(function)?.is("maximum available device memory", "131072Bytes")
}

fn has_atomics(_: Setup, function: u8) -> CaseResult {
    Report::for_function(function)?.is_one_of("atomic_cap", &["ATOMIC_HCA (1)", "ATOMIC_GLOB (2)"])
}

fn has_addresses(setup: Setup, function: u8) -> CaseResult {
    let report = Report::for_function(function)?;
    let gids = report.gids();
    match setup.port {
        Port::Ib => {
            let guid: String = read_sysfs(function, "ports/1/gids/0")?;
            if !guid.starts_with("fe80:0000:0000:0000:") || guid.ends_with(":0000:0000:0000:0000") {
                return fail(format_args!("the GID at index 0 is {guid}"));
            }
            let firsts: Vec<_> = gids.first().into_iter().collect();
            if firsts != [&&*guid] {
                return fail(format_args!("ibv_devinfo prints {gids:?}, sysfs has {guid}"));
            }
            Ok(())
        }
        Port::Roce => {
            gid_of_address(function)?;
            let v2 = format!("::ffff:{}, RoCE v2", address(function));
            let link_local = gids.iter().any(|gid| gid.starts_with("fe80:") && gid.contains("RoCE v"));
            if !gids.contains(&&*v2) || !link_local {
                return fail(format_args!("{v2} or a link-local GID is missing from {gids:?}"));
            }
            Ok(())
        }
    }
}

fn identities_differ(setup: Setup) -> CaseResult {
    let keys: &[&str] = match setup.port {
        Port::Ib => &["node_guid", "port_lid", "GID[  0]"],
        Port::Roce => &["node_guid"],
    };
    let reports = setup.numbers().map(Report::for_function).collect::<CaseResult<Vec<_>>>()?;
    for key in keys {
        let values = reports.iter().map(|report| report.text(key)).collect::<CaseResult<Vec<_>>>()?;
        if values.iter().collect::<BTreeSet<_>>().len() != values.len() {
            return fail(format_args!("{key} of the functions: {values:?}"));
        }
    }
    Ok(())
}
