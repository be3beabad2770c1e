//! Compares the types and constants of `ibverbs_c::c` with `golden/verbs-*.txt` and `rdmacm-*.txt`.
//! `cargo xtask abi` generates these files with a C compiler from the headers of libibverbs and
//! librdmacm. `xtask/src/abi/header.rs` describes the file format.
//!
//! The types match the newest release. [`LATER`] lists everything that older releases lack, by
//! name, and [`SIZES`] the sizes that differ. Nothing else may differ.

use std::collections::BTreeMap;
use std::path::Path;

use ibverbs_c::c::layout::{Field, Item, Type};
use ibverbs_c::c::{LAYOUT, RDMA_LAYOUT};

/// The releases of rdma-core that have a golden file.
const RELEASES: &[u32] = &[44, 56, 65];
const NEWEST: u32 = 65;

/// The definitions of a library.
#[derive(Clone, Copy)]
struct Library {
    /// The prefix of the library's golden file names.
    stem: &'static str,
    /// The types and constants of this crate.
    layout: &'static [&'static [Item]],
    /// Definitions, by the first of the [`RELEASES`] that has them; all other definitions are in
    /// release 44.
    later: &'static [(u32, &'static [&'static str])],
    /// Types that were smaller: the release, the type, and its size in that release.
    sizes: &'static [(u32, &'static str, u32)],
    /// The minimum number of definitions expected in the newest release.
    least: usize,
}

const LIBRARIES: [Library; 2] = [
    Library { stem: "verbs", layout: LAYOUT, later: LATER, sizes: SIZES, least: 1000 },
    Library { stem: "rdmacm", layout: RDMA_LAYOUT, later: RDMA_LATER, sizes: &[], least: 100 },
];

const RDMA_LATER: &[(u32, &[&str])] = &[(
    65,
    &[
        "constant RAI_DNS",
        "constant RAI_SA",
        "constant RDMA_CM_EVENT_ADDRINFO_ERROR",
        "constant RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        "constant RDMA_CM_EVENT_INTERNAL",
        "constant RDMA_CM_EVENT_USER",
        "field rdma_cm_event.param.arg",
    ],
)];

const LATER: &[(u32, &[&str])] = &[
    (
        56,
        &[
            "constant IBV_ACCESS_FLUSH_GLOBAL",
            "constant IBV_ACCESS_FLUSH_PERSISTENT",
            "constant IBV_FLUSH_GLOBAL",
            "constant IBV_FLUSH_MR",
            "constant IBV_FLUSH_PERSISTENT",
            "constant IBV_FLUSH_RANGE",
            "constant IBV_PORT_LINK_SPEED_XDR_SUP",
            "constant IBV_QP_EX_WITH_FLUSH",
            "constant IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES",
            "constant IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS",
            "constant IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG",
            "constant IBV_WC_FLUSH",
            "constant IBV_WR_FLUSH",
            "field ibv_port_attr.active_speed_ex",
            "field ibv_qp_ex.wr_flush",
        ],
    ),
    (
        65,
        &[
            "constant IBV_COMP_CNTR_TYPE_BYTES",
            "constant IBV_COMP_CNTR_TYPE_WRS",
            "constant IBV_DEVICE_CC_DMA_BOUNCE",
            "constant IBV_DMAH_INIT_ATTR_MASK_CPU_ID",
            "constant IBV_DMAH_INIT_ATTR_MASK_PH",
            "constant IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE",
            "constant IBV_EVENT_DEVICE_SPEED_CHANGE",
            "constant IBV_ODP_SUPPORT_ATOMIC_WRITE",
            "constant IBV_ODP_SUPPORT_FLUSH",
            "constant IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_RECV",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE",
            "constant IBV_QP_ATTACH_COMP_CNTR_OP_SEND",
            "constant IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY",
            "constant IBV_REG_MR_MASK_ADDR",
            "constant IBV_REG_MR_MASK_BUF",
            "constant IBV_REG_MR_MASK_DMAH",
            "constant IBV_REG_MR_MASK_FD",
            "constant IBV_REG_MR_MASK_FD_OFFSET",
            "constant IBV_REG_MR_MASK_IOVA",
            "constant IBV_TPH_MEM_TYPE_PM",
            "constant IBV_TPH_MEM_TYPE_VM",
            "field ibv_comp_cntr.context",
            "field ibv_comp_cntr.handle",
            "field ibv_comp_cntr_caps.max_counters",
            "field ibv_comp_cntr_caps.max_value",
            "field ibv_comp_cntr_caps.supported_qp_attach_ops",
            "field ibv_comp_cntr_init_attr.comp_mask",
            "field ibv_comp_cntr_init_attr.flags",
            "field ibv_comp_cntr_init_attr.type",
            "field ibv_dmah.context",
            "field ibv_dmah_init_attr.comp_mask",
            "field ibv_dmah_init_attr.cpu_id",
            "field ibv_dmah_init_attr.ph",
            "field ibv_dmah_init_attr.tph_mem_type",
            "field ibv_fd_arr.arr",
            "field ibv_fd_arr.count",
            "field ibv_mr_init_attr.access",
            "field ibv_mr_init_attr.addr",
            "field ibv_mr_init_attr.buf",
            "field ibv_mr_init_attr.comp_mask",
            "field ibv_mr_init_attr.dmah",
            "field ibv_mr_init_attr.fd",
            "field ibv_mr_init_attr.fd_offset",
            "field ibv_mr_init_attr.iova",
            "field ibv_mr_init_attr.length",
            "field ibv_qp_attach_comp_cntr_attr.comp_mask",
            "field ibv_qp_attach_comp_cntr_attr.op_mask",
            "field verbs_context.alloc_buf",
            "field verbs_context.alloc_dmah",
            "field verbs_context.dealloc_dmah",
            "field verbs_context.dm_export_dmabuf_fd",
            "field verbs_context.free_buf",
            "field verbs_context.reg_mr_ex",
            "type ibv_comp_cntr",
            "type ibv_comp_cntr_caps",
            "type ibv_comp_cntr_init_attr",
            "type ibv_dmah",
            "type ibv_dmah_init_attr",
            "type ibv_fd_arr",
            "type ibv_mr_init_attr",
            "type ibv_qp_attach_comp_cntr_attr",
        ],
    ),
];

const SIZES: &[(u32, &str, u32)] = &[
    (44, "ibv_port_attr", 52),
    (44, "ibv_qp_ex", 352),
    (44, "verbs_context", 648),
    (56, "verbs_context", 648),
];

/// The types that grow at the front, which shifts all other offsets. All other types grow at the
/// end.
const GROWN_AT_THE_FRONT: &[&str] = &["verbs_context"];

/// The types that the headers leave opaque.
const NOT_IN_THE_HEADER: &[&str] = &["_compat_ibv_port_attr"];

/// Anonymous unions that are one field in Rust: the type, the field, and its second name in C.
const TWO_NAMES: &[(&str, &str, &str)] =
    &[("ibv_send_wr", "imm_data", "invalidate_rkey"), ("ibv_wc", "imm_data", "invalidated_rkey")];

/// Definitions by name: `constant NAME` with the value and 0, `type NAME` with size and alignment,
/// `field TYPE.MEMBER` with offset and size.
type Definitions = BTreeMap<String, (i128, i128)>;

/// Returns whether the golden files describe this target; reports if they do not.
fn golden_files_apply() -> bool {
    let apply = cfg!(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux"));
    if !apply {
        eprintln!("skipped: the golden files describe x86-64, and this machine is another");
    }
    apply
}

fn golden(stem: &str, release: u32) -> Definitions {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{stem}-{release}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut definitions = Definitions::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let number = |text: &str| text.parse::<i128>().unwrap_or_else(|e| panic!("{line}: {e}"));
        let words: Vec<_> = line.split(' ').collect();
        let (name, numbers) = match words[..] {
            ["define", name, value] | ["enum", _, name, value] => {
                (format!("constant {name}"), (number(value), 0))
            }
            ["struct" | "union", name, size, align] => {
                (format!("type {name}"), (number(size), number(align)))
            }
            ["field", ty, member, offset, size] => {
                (format!("field {ty}.{member}"), (number(offset), number(size)))
            }
            _ => panic!("{}: not understood: {line}", path.display()),
        };
        assert!(definitions.insert(name, numbers).is_none(), "twice in the file: {line}");
    }
    definitions
}

fn types(library: Library) -> impl Iterator<Item = &'static Type> {
    library.layout.iter().copied().flatten().filter_map(|item| match item {
        Item::Type(ty) => Some(ty),
        Item::Constants(_) => None,
    })
}

fn number(size: usize) -> i128 {
    i128::try_from(size).unwrap()
}

/// Returns the name of a field in C.
fn c_name(field: &Field) -> &'static str {
    match field.name {
        "type_" => "type",
        "priv_" => "priv",
        name => name,
    }
}

/// Returns this crate's definitions, with their C names.
fn ours(library: Library) -> Definitions {
    let mut definitions = Definitions::new();
    let mut insert = |name: String, numbers| {
        assert!(definitions.insert(name.clone(), numbers).is_none(), "{name} is defined twice");
    };
    for item in library.layout.iter().copied().flatten() {
        if let Item::Constants(constants) = item {
            // The probe prints each value as a `long long`.
            constants.iter().for_each(|(name, value)| {
                insert(format!("constant {name}"), (i128::from(*value as i64), 0));
            });
        }
    }
    for ty in types(library).filter(|ty| !NOT_IN_THE_HEADER.contains(&ty.rust_name)) {
        let name = match ty.path {
            None => ty.rust_name,
            // C reaches the type's members through the outer type.
            Some("") => continue,
            Some(path) => path,
        };
        insert(format!("type {name}"), (number(ty.size), number(ty.align)));
        for field in ty.fields {
            let unnamed = format!("{}_{}", ty.rust_name, field.name);
            if let Some(inner) =
                types(library).find(|inner| inner.path == Some("") && inner.rust_name == unnamed)
            {
                for member in inner.fields {
                    let offset = number(field.offset + member.offset);
                    insert(format!("field {name}.{}", c_name(member)), (offset, number(member.size)));
                }
                continue;
            }
            let numbers = (number(field.offset), number(field.size));
            insert(format!("field {name}.{}", c_name(field)), numbers);
            for (_, _, other) in TWO_NAMES.iter().filter(|two| (two.0, two.1) == (name, field.name)) {
                insert(format!("field {name}.{other}"), numbers);
            }
        }
    }
    definitions
}

/// Returns this crate's definitions without the ones newer than a release.
fn as_of(library: Library, release: u32) -> Definitions {
    let mut definitions = ours(library);
    for name in library.later.iter().filter(|(since, _)| *since > release).flat_map(|(_, names)| *names) {
        assert!(definitions.remove(*name).is_some(), "LATER names what is not defined: {name}");
    }
    for (_, ty, size) in library.sizes.iter().filter(|(of, _, _)| *of == release) {
        let now = definitions.get_mut(&format!("type {ty}")).unwrap_or_else(|| panic!("no type {ty}"));
        let shrinks = now.0 - i128::from(*size);
        assert!(shrinks > 0, "SIZES: {ty} of {release} is no smaller than now");
        now.0 = i128::from(*size);
        if GROWN_AT_THE_FRONT.contains(ty) {
            let fields = format!("field {ty}.");
            for (_, (offset, _)) in definitions.iter_mut().filter(|(name, _)| name.starts_with(&fields)) {
                *offset -= shrinks;
            }
        }
    }
    definitions
}

/// Returns one line per definition that differs.
fn differences(rust: &Definitions, c: &Definitions) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, numbers) in rust {
        match c.get(name) {
            None => lines.push(format!("only in Rust: {name}")),
            Some(c) if c != numbers => lines.push(format!("{name}: {numbers:?}, in C {c:?}")),
            Some(_) => {}
        }
    }
    lines.extend(c.keys().filter(|name| !rust.contains_key(*name)).map(|name| format!("only in C: {name}")));
    lines
}

#[test]
fn the_newest_release_has_exactly_these_types_and_constants() {
    if !golden_files_apply() {
        return;
    }
    for library in LIBRARIES {
        let golden = golden(library.stem, NEWEST);
        let differences = differences(&ours(library), &golden);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        assert!(golden.len() > library.least, "only {} definitions were compared", golden.len());
    }
}

#[test]
fn an_older_release_differs_by_the_listed_additions_alone() {
    if !golden_files_apply() {
        return;
    }
    for library in LIBRARIES {
        for release in RELEASES.iter().filter(|release| **release != NEWEST) {
            let differences = differences(&as_of(library, *release), &golden(library.stem, *release));
            assert!(differences.is_empty(), "{} {release}:\n{}", library.stem, differences.join("\n"));
        }
    }
}

#[test]
fn every_golden_file_is_compared() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let of = |library: Library| RELEASES.iter().map(move |release| format!("{}-{release}.txt", library.stem));
    let mut expected: Vec<_> = LIBRARIES.into_iter().flat_map(of).collect();
    expected.sort();
    assert_eq!(files, expected);
}
