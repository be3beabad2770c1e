//! Names of objects, methods, attributes and fields. The names and layouts come from
//! [`uverbs_abi`], which tests compare with the kernel's headers; the tables here assign them to
//! methods.

use uverbs_abi::HEADERS;
use uverbs_abi::ib_user_ioctl_cmds::{UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT};
use uverbs_abi::layout::{Constants, Item, Type};

/// An ioctl method.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name of the constant that identifies the object type.
    pub object: &'static str,
    /// Name of the constant that identifies the method.
    pub method: &'static str,
    /// The enums that name the method's attributes: the core's and the driver's.
    pub attrs: [&'static str; 2],
    /// The struct of the driver's input; empty if there is none.
    pub driver: &'static str,
}

/// A command of the `write()` interface.
#[derive(Clone, Copy, Debug)]
pub struct WriteCommand {
    /// Name of the constant for the command's number.
    pub name: &'static str,
    /// The struct of the command's input.
    pub input: &'static str,
    /// The struct of the command's reply; empty if there is none.
    pub reply: &'static str,
    /// The struct of the driver's input; empty if there is none.
    pub driver: &'static str,
}

const fn method(object: &'static str, method: &'static str, attrs: &'static str) -> Method {
    Method { object, method, attrs: [attrs, ""], driver: "" }
}

const fn command(name: &'static str, input: &'static str, reply: &'static str) -> WriteCommand {
    WriteCommand { name, input, reply, driver: "" }
}

impl Method {
    const fn with(self, driver_attrs: &'static str) -> Self {
        Self { attrs: [self.attrs[0], driver_attrs], ..self }
    }

    const fn driver(self, driver: &'static str) -> Self {
        Self { driver, ..self }
    }

    /// Returns the method's name as the normal form shows it.
    pub fn name(&self) -> &'static str {
        stripped(self.method)
    }

    /// Returns the name of an attribute.
    pub fn attr(&self, id: u16) -> Option<&'static str> {
        let named = self.attrs.iter().find_map(|group| name_of(group, id.into()));
        // The names from the enums come first, because the driver uses the same numbers as the two
        // names below.
        named.or(match id {
            UVERBS_ATTR_UHW_IN => Some("UVERBS_ATTR_UHW_IN"),
            UVERBS_ATTR_UHW_OUT => Some("UVERBS_ATTR_UHW_OUT"),
            _ => None,
        })
    }
}

impl WriteCommand {
    const fn driver(self, driver: &'static str) -> Self {
        Self { driver, ..self }
    }
}

/// The methods.
pub const METHODS: &[Method] = &[
    method("UVERBS_OBJECT_DEVICE", "UVERBS_METHOD_GET_CONTEXT", "uverbs_attrs_get_context_attr_ids")
        .driver("mlx5_ib_alloc_ucontext_req_v2"),
    method("UVERBS_OBJECT_DEVICE", "UVERBS_METHOD_QUERY_CONTEXT", "uverbs_attrs_query_context_attr_ids")
        .with("mlx5_ib_device_query_context_attrs"),
    method("UVERBS_OBJECT_DEVICE", "UVERBS_METHOD_QUERY_PORT", "uverbs_attrs_query_port_cmd_attr_ids"),
    method(
        "UVERBS_OBJECT_DEVICE",
        "UVERBS_METHOD_QUERY_GID_TABLE",
        "uverbs_attrs_query_gid_table_cmd_attr_ids",
    ),
    method(
        "UVERBS_OBJECT_DEVICE",
        "UVERBS_METHOD_QUERY_GID_ENTRY",
        "uverbs_attrs_query_gid_entry_cmd_attr_ids",
    ),
    method("UVERBS_OBJECT_PD", "UVERBS_METHOD_PD_DESTROY", "uverbs_attrs_pd_destroy_ids"),
    method("UVERBS_OBJECT_PD", "MLX5_IB_METHOD_PD_QUERY", "mlx5_ib_query_pd_attrs"),
    method("UVERBS_OBJECT_CQ", "UVERBS_METHOD_CQ_CREATE", "uverbs_attrs_create_cq_cmd_attr_ids")
        .with("mlx5_ib_create_cq_attrs")
        .driver("mlx5_ib_create_cq"),
    method("UVERBS_OBJECT_CQ", "UVERBS_METHOD_CQ_DESTROY", "uverbs_attrs_destroy_cq_cmd_attr_ids"),
    method("UVERBS_OBJECT_QP", "UVERBS_METHOD_QP_CREATE", "uverbs_attrs_create_qp_cmd_attr_ids")
        .with("mlx5_ib_create_qp_attrs")
        .driver("mlx5_ib_create_qp"),
    method("UVERBS_OBJECT_QP", "UVERBS_METHOD_QP_DESTROY", "uverbs_attrs_destroy_qp_cmd_attr_ids"),
    method("UVERBS_OBJECT_SRQ", "UVERBS_METHOD_SRQ_CREATE", "uverbs_attrs_create_srq_cmd_attr_ids")
        .with("mlx5_ib_create_srq_attrs")
        .driver("mlx5_ib_create_srq"),
    method("UVERBS_OBJECT_SRQ", "UVERBS_METHOD_SRQ_DESTROY", "uverbs_attrs_destroy_srq_cmd_attr_ids"),
    method("UVERBS_OBJECT_WQ", "UVERBS_METHOD_WQ_CREATE", "uverbs_attrs_create_wq_cmd_attr_ids")
        .driver("mlx5_ib_create_wq"),
    method("UVERBS_OBJECT_WQ", "UVERBS_METHOD_WQ_DESTROY", "uverbs_attrs_destroy_wq_cmd_attr_ids"),
    method("UVERBS_OBJECT_AH", "UVERBS_METHOD_AH_DESTROY", "uverbs_attrs_ah_destroy_ids"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_DM_MR_REG", "uverbs_attrs_reg_dm_mr_cmd_attr_ids"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_MR_DESTROY", "uverbs_attrs_mr_destroy_ids"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_ADVISE_MR", "uverbs_attrs_advise_mr_cmd_attr_ids"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_QUERY_MR", "uverbs_attrs_query_mr_cmd_attr_ids"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_REG_DMABUF_MR", "uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids")
        .with("mlx5_ib_reg_dmabuf_mr_attrs"),
    method("UVERBS_OBJECT_MR", "UVERBS_METHOD_REG_MR", "uverbs_attrs_reg_mr_cmd_attr_ids"),
    method("UVERBS_OBJECT_MW", "UVERBS_METHOD_MW_DESTROY", "uverbs_attrs_mw_destroy_ids"),
    method("UVERBS_OBJECT_FLOW", "UVERBS_METHOD_FLOW_DESTROY", "uverbs_attrs_flow_destroy_ids"),
    method("UVERBS_OBJECT_XRCD", "UVERBS_METHOD_XRCD_DESTROY", "uverbs_attrs_xrcd_destroy_ids"),
    method(
        "UVERBS_OBJECT_RWQ_IND_TBL",
        "UVERBS_METHOD_RWQ_IND_TBL_DESTROY",
        "uverbs_attrs_rwq_ind_tbl_destroy_ids",
    ),
    method(
        "UVERBS_OBJECT_FLOW_ACTION",
        "UVERBS_METHOD_FLOW_ACTION_ESP_CREATE",
        "uverbs_attrs_create_flow_action_esp",
    )
    .with("mlx5_ib_create_flow_action_attrs"),
    method(
        "UVERBS_OBJECT_FLOW_ACTION",
        "UVERBS_METHOD_FLOW_ACTION_DESTROY",
        "uverbs_attrs_destroy_flow_action_esp",
    ),
    method("UVERBS_OBJECT_DM", "UVERBS_METHOD_DM_ALLOC", "uverbs_attrs_alloc_dm_cmd_attr_ids")
        .with("mlx5_ib_alloc_dm_attrs"),
    method("UVERBS_OBJECT_DM", "UVERBS_METHOD_DM_FREE", "uverbs_attrs_free_dm_cmd_attr_ids"),
    method(
        "UVERBS_OBJECT_COUNTERS",
        "UVERBS_METHOD_COUNTERS_CREATE",
        "uverbs_attrs_create_counters_cmd_attr_ids",
    ),
    method(
        "UVERBS_OBJECT_COUNTERS",
        "UVERBS_METHOD_COUNTERS_DESTROY",
        "uverbs_attrs_destroy_counters_cmd_attr_ids",
    ),
    method(
        "UVERBS_OBJECT_COUNTERS",
        "UVERBS_METHOD_COUNTERS_READ",
        "uverbs_attrs_read_counters_cmd_attr_ids",
    ),
    method("UVERBS_OBJECT_ASYNC_EVENT", "UVERBS_METHOD_ASYNC_EVENT_ALLOC", "uverbs_attrs_async_event_create"),
    method("MLX5_IB_OBJECT_UAR", "MLX5_IB_METHOD_UAR_OBJ_ALLOC", "mlx5_ib_uar_alloc_attrs"),
    method("MLX5_IB_OBJECT_UAR", "MLX5_IB_METHOD_UAR_OBJ_DESTROY", "mlx5_ib_uar_obj_destroy_attrs"),
    method("MLX5_IB_OBJECT_DEVX", "MLX5_IB_METHOD_DEVX_OTHER", "mlx5_ib_devx_other_attrs"),
];

/// The commands of the `write()` interface for creating and changing objects.
pub const COMMANDS: &[WriteCommand] = &[
    command("IB_USER_VERBS_CMD_QUERY_DEVICE", "ib_uverbs_query_device", "ib_uverbs_query_device_resp"),
    command("IB_USER_VERBS_CMD_QUERY_PORT", "ib_uverbs_query_port", "ib_uverbs_query_port_resp"),
    command("IB_USER_VERBS_CMD_ALLOC_PD", "ib_uverbs_alloc_pd", "ib_uverbs_alloc_pd_resp"),
    command("IB_USER_VERBS_CMD_CREATE_AH", "ib_uverbs_create_ah", "ib_uverbs_create_ah_resp"),
    command("IB_USER_VERBS_CMD_REG_MR", "ib_uverbs_reg_mr", "ib_uverbs_reg_mr_resp"),
    command("IB_USER_VERBS_CMD_REREG_MR", "ib_uverbs_rereg_mr", "ib_uverbs_rereg_mr_resp"),
    command("IB_USER_VERBS_CMD_ALLOC_MW", "ib_uverbs_alloc_mw", "ib_uverbs_alloc_mw_resp")
        .driver("mlx5_ib_alloc_mw"),
    command(
        "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL",
        "ib_uverbs_create_comp_channel",
        "ib_uverbs_create_comp_channel_resp",
    ),
    command("IB_USER_VERBS_CMD_CREATE_CQ", "ib_uverbs_create_cq", "ib_uverbs_create_cq_resp")
        .driver("mlx5_ib_create_cq"),
    command("IB_USER_VERBS_CMD_RESIZE_CQ", "ib_uverbs_resize_cq", "ib_uverbs_resize_cq_resp")
        .driver("mlx5_ib_resize_cq"),
    command("IB_USER_VERBS_CMD_CREATE_QP", "ib_uverbs_create_qp", "ib_uverbs_create_qp_resp")
        .driver("mlx5_ib_create_qp"),
    command("IB_USER_VERBS_CMD_QUERY_QP", "ib_uverbs_query_qp", "ib_uverbs_query_qp_resp"),
    command("IB_USER_VERBS_CMD_MODIFY_QP", "ib_uverbs_modify_qp", "").driver("mlx5_ib_modify_qp"),
    command("IB_USER_VERBS_CMD_ATTACH_MCAST", "ib_uverbs_attach_mcast", ""),
    command("IB_USER_VERBS_CMD_DETACH_MCAST", "ib_uverbs_detach_mcast", ""),
    command("IB_USER_VERBS_CMD_CREATE_SRQ", "ib_uverbs_create_srq", "ib_uverbs_create_srq_resp")
        .driver("mlx5_ib_create_srq"),
    command("IB_USER_VERBS_CMD_CREATE_XSRQ", "ib_uverbs_create_xsrq", "ib_uverbs_create_srq_resp")
        .driver("mlx5_ib_create_srq"),
    command("IB_USER_VERBS_CMD_MODIFY_SRQ", "ib_uverbs_modify_srq", ""),
    command("IB_USER_VERBS_CMD_QUERY_SRQ", "ib_uverbs_query_srq", "ib_uverbs_query_srq_resp"),
    command("IB_USER_VERBS_CMD_OPEN_XRCD", "ib_uverbs_open_xrcd", "ib_uverbs_open_xrcd_resp"),
    command("IB_USER_VERBS_CMD_OPEN_QP", "ib_uverbs_open_qp", "ib_uverbs_create_qp_resp"),
    command(
        "IB_USER_VERBS_EX_CMD_QUERY_DEVICE",
        "ib_uverbs_ex_query_device",
        "ib_uverbs_ex_query_device_resp",
    ),
    command("IB_USER_VERBS_EX_CMD_CREATE_CQ", "ib_uverbs_ex_create_cq", "ib_uverbs_ex_create_cq_resp")
        .driver("mlx5_ib_create_cq"),
    command("IB_USER_VERBS_EX_CMD_CREATE_QP", "ib_uverbs_ex_create_qp", "ib_uverbs_ex_create_qp_resp")
        .driver("mlx5_ib_create_qp"),
    command("IB_USER_VERBS_EX_CMD_MODIFY_QP", "ib_uverbs_ex_modify_qp", "ib_uverbs_ex_modify_qp_resp")
        .driver("mlx5_ib_modify_qp"),
    command("IB_USER_VERBS_EX_CMD_CREATE_FLOW", "ib_uverbs_create_flow", "ib_uverbs_create_flow_resp")
        .driver("mlx5_ib_create_flow"),
    command("IB_USER_VERBS_EX_CMD_DESTROY_FLOW", "ib_uverbs_destroy_flow", ""),
    command("IB_USER_VERBS_EX_CMD_CREATE_WQ", "ib_uverbs_ex_create_wq", "ib_uverbs_ex_create_wq_resp")
        .driver("mlx5_ib_create_wq"),
    command("IB_USER_VERBS_EX_CMD_MODIFY_WQ", "ib_uverbs_ex_modify_wq", "").driver("mlx5_ib_modify_wq"),
    command("IB_USER_VERBS_EX_CMD_DESTROY_WQ", "ib_uverbs_ex_destroy_wq", "ib_uverbs_ex_destroy_wq_resp"),
    command(
        "IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL",
        "ib_uverbs_ex_create_rwq_ind_table",
        "ib_uverbs_ex_create_rwq_ind_table_resp",
    ),
    command("IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL", "ib_uverbs_ex_destroy_rwq_ind_table", ""),
    command("IB_USER_VERBS_EX_CMD_MODIFY_CQ", "ib_uverbs_ex_modify_cq", ""),
];

/// Nested structs: the outer struct, the field and the inner struct.
const NESTED: &[(&str, &str, &str)] = &[
    ("ib_uverbs_create_ah", "attr", "ib_uverbs_ah_attr"),
    ("ib_uverbs_ah_attr", "grh", "ib_uverbs_global_route"),
    ("ib_uverbs_modify_qp", "dest", "ib_uverbs_qp_dest"),
    ("ib_uverbs_modify_qp", "alt_dest", "ib_uverbs_qp_dest"),
    ("ib_uverbs_ex_modify_qp", "base", "ib_uverbs_modify_qp"),
    ("ib_uverbs_ex_modify_cq", "attr", "ib_uverbs_cq_moderation"),
    ("ib_uverbs_create_flow", "flow_attr", "ib_uverbs_flow_attr"),
    ("mlx5_ib_create_qp", "dci_streams", "mlx5_ib_create_qp_dci_streams"),
    ("mlx5_ib_modify_qp", "burst_info", "mlx5_ib_burst_info"),
];

/// Attributes whose input is a struct, apart from the driver's attributes and write commands.
const STRUCTS: &[(&str, &str)] = &[("UVERBS_ATTR_CREATE_QP_CAP", "ib_uverbs_qp_cap")];

/// Attributes that the kernel fills in although their names do not show it.
const OUTPUTS: &[&str] = &[
    "UVERBS_ATTR_CORE_OUT",
    "UVERBS_ATTR_UHW_OUT",
    "UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS",
    "UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT",
    "UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS",
    "UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT",
    "UVERBS_ATTR_READ_COUNTERS_BUFF",
    "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET",
    "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH",
    "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID",
    "MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT",
];

/// Returns a method by the numbers of its object and of the method itself.
pub fn find_method(object: u16, id: u16) -> Option<&'static Method> {
    METHODS.iter().find(|one| number_of(one.object) == object.into() && number_of(one.method) == id.into())
}

/// Returns a write command by its number and whether it is extended.
pub fn find_command(number: u32, is_extended: bool) -> Option<&'static WriteCommand> {
    let is_one = |one: &&WriteCommand| {
        one.name.contains("_EX_CMD_") == is_extended && number_of(one.name) == number.into()
    };
    COMMANDS.iter().find(is_one)
}

/// Returns whether the kernel fills in an attribute.
pub fn is_output(attr: &str) -> bool {
    attr.contains("_RESP_") || attr.ends_with("_RESP") || OUTPUTS.contains(&attr)
}

/// Returns the struct that an attribute carries.
pub fn struct_of(attr: &str) -> Option<&'static str> {
    STRUCTS.iter().find(|(name, _)| *name == attr).map(|(_, of)| *of)
}

/// Returns the struct nested in a field.
pub fn nested(of: &str, field: &str) -> Option<&'static str> {
    NESTED.iter().find(|(outer, name, _)| *outer == of && *name == field).map(|(.., inner)| *inner)
}

/// Returns a name without the common prefix of its kind.
pub fn stripped(name: &'static str) -> &'static str {
    const PREFIXES: [&str; 6] = [
        "UVERBS_METHOD_",
        "MLX5_IB_METHOD_",
        "UVERBS_ATTR_",
        "MLX5_IB_ATTR_",
        "UVERBS_OBJECT_",
        "MLX5_IB_OBJECT_",
    ];
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Returns a struct of the kernel's headers.
pub fn type_of(c_name: &str) -> Option<&'static Type> {
    items().find_map(|item| match item {
        Item::Type(one) if one.c_name == c_name => Some(one),
        _ => None,
    })
}

/// Returns the number of a constant.
///
/// # Panics
/// Panics if no header has the name. The tables in this file contain only known names.
fn number_of(name: &str) -> i128 {
    let all = groups().flat_map(|group| group.constants);
    let found = all.into_iter().find(|(constant, _)| *constant == name);
    found.map(|(_, number)| *number).unwrap_or_else(|| panic!("no header has {name}"))
}

/// Returns the name of a number in an enum of the kernel's headers.
pub fn name_of(group: &str, number: i128) -> Option<&'static str> {
    let mut groups = groups().filter(|one| one.c_name == group);
    groups.find_map(|one| one.constants.iter().find(|(_, value)| *value == number)).map(|(name, _)| *name)
}

fn items() -> impl Iterator<Item = &'static Item> {
    HEADERS.iter().flat_map(|header| header.items)
}

fn groups() -> impl Iterator<Item = &'static Constants> {
    items().filter_map(|item| if let Item::Constants(group) = item { Some(group) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_tables_is_in_a_header() {
        for method in METHODS {
            assert!(number_of(method.object) >= 0 && number_of(method.method) >= 0);
            for group in method.attrs.into_iter().filter(|group| !group.is_empty()) {
                assert!(groups().any(|one| one.c_name == group), "{group}");
            }
            assert!(method.driver.is_empty() || type_of(method.driver).is_some(), "{}", method.driver);
        }
        for command in COMMANDS {
            assert!(number_of(command.name) >= 0);
            for of in [command.input, command.reply, command.driver] {
                assert!(of.is_empty() || type_of(of).is_some(), "{of}");
            }
        }
        for (outer, field, inner) in NESTED {
            let inner = type_of(inner).expect(inner);
            let fields = type_of(outer).expect(outer).fields;
            assert!(fields.iter().any(|one| one.name == *field && one.size == inner.size), "{outer}.{field}");
        }
        for (attr, of) in STRUCTS {
            assert!(number_of(attr) >= 0 && type_of(of).is_some());
        }
        OUTPUTS.iter().for_each(|attr| assert!(number_of(attr) >= 0));
    }

    #[test]
    fn numbers_find_their_method_and_their_command() {
        assert_eq!(find_method(3, 0).map(Method::name), Some("CQ_CREATE"));
        assert_eq!(find_method(0x1008, 0x1000).map(Method::name), Some("UAR_OBJ_ALLOC"));
        assert!(find_method(99, 0).is_none());
        assert_eq!(find_command(18, false).map(|one| one.input), Some("ib_uverbs_create_cq"));
        assert_eq!(find_command(18, true).map(|one| one.input), Some("ib_uverbs_ex_create_cq"));
        assert!(find_command(200, false).is_none());
    }
}
