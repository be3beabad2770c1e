//! Every symbol that `libibverbs.so.1` exports, with its version node and its state.
//!
//! This table is the only list of symbols. `cargo xtask c-abi` generates the linker's version
//! script from it and rejects an image that lacks a listed symbol or exports an unlisted symbol.
//! The table in docs/c-abi.md is generated from it as well.
//!
//! | nodes | names | content |
//! |---|---|---|
//! | [`IBVERBS`] | 95 | the public API of libibverbs in rdma-core 65 |
//! | [`PRIVATE`] | 1 | the only private name that programs import, in the nodes of eight releases |
//! | [`RDMACM`] | 74 | librdmacm of rdma-core 65 |
//! | [`MLX5`], [`EFA`] | 142, 13 | the providers' own APIs, for programs that link them |
//!
//! Each name is in its newest node. Two sets of older versions are omitted:
//!
//! - 33 names of `IBVERBS_1.0` that `IBVERBS_1.1` replaced in 2006. No program in a supported
//!   distribution was linked before then.
//! - `mlx5dv_init_obj` in `MLX5_1.0`, which `MLX5_1.2` replaced in 2017.
//!
//! The loader looks for a program's version nodes in the library it was linked with and then finds
//! each symbol by name and node in any loaded library. `librdmacm.so.1`, `libmlx5.so.1` and
//! `libefa.so.1` therefore contain only nodes, and the image defines their symbols.
//!
//! The module has no dependencies, because `cargo xtask` compiles it too.

/// A version node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The name, such as `IBVERBS_1.1`.
    pub name: &'static str,
    /// The symbols, sorted by name.
    pub symbols: &'static [Symbol],
}

/// An exported symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// The symbol's name in C.
    pub name: &'static str,
    /// Whether the function is implemented, and how far.
    pub state: State,
}

/// Whether a function is implemented, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The function works as its man page describes, on every device with the feature.
    Served,
    /// The function is incomplete; the text states the missing part and the reason.
    Partial(&'static str),
    /// The function fails on every device; the text states the reason.
    Refused(&'static str),
}

const fn node(name: &'static str, symbols: &'static [Symbol]) -> Node {
    Node { name, symbols }
}

const fn served(name: &'static str) -> Symbol {
    Symbol { name, state: State::Served }
}

const fn partial(name: &'static str, why: &'static str) -> Symbol {
    Symbol { name, state: State::Partial(why) }
}

const fn refused(name: &'static str, why: &'static str) -> Symbol {
    Symbol { name, state: State::Refused(why) }
}

const NO_DEVX: &str = "commands of DevX are not built: `EOPNOTSUPP`";
const NO_RULES: &str = "rules in the device's own format are not built: `EOPNOTSUPP`";
const NO_KEYS: &str = "requests of the device's own are not built: `EOPNOTSUPP`";
const NO_OBJECTS: &str = "these objects of the device are not built: `EOPNOTSUPP`";
const NO_ALLOCATORS: &str = "the provider allocates the memory of queues itself: `EOPNOTSUPP`";
const NO_VFIO: &str = "devices are not driven by VFIO: `EOPNOTSUPP`";
const NO_SOCKETS: &str = "sockets over RDMA are not built: `EOPNOTSUPP`";
const NO_ACM: &str = "routes are resolved without ibacm";
const NO_EFA: &str = "no provider of EFA devices: `EOPNOTSUPP`";

/// Returns every node of the image: first libibverbs, then librdmacm, then the provider libraries.
pub fn nodes() -> impl Iterator<Item = &'static Node> {
    [IBVERBS, PRIVATE, RDMACM, MLX5, EFA].into_iter().flatten()
}

/// The public nodes of `libibverbs.so.1`.
pub const IBVERBS: &[Node] = &[
    node(
        "IBVERBS_1.0",
        &[
            served("ibv_copy_path_rec_from_kern"),
            served("ibv_copy_path_rec_to_kern"),
            served("ibv_copy_qp_attr_from_kern"),
            served("ibv_create_comp_channel"),
            served("ibv_destroy_comp_channel"),
            served("ibv_get_sysfs_path"),
            served("ibv_rate_to_mult"),
            served("ibv_read_sysfs_file"),
            served("mult_to_ibv_rate"),
        ],
    ),
    node(
        "IBVERBS_1.1",
        &[
            served("ibv_ack_async_event"),
            served("ibv_ack_cq_events"),
            served("ibv_alloc_pd"),
            served("ibv_attach_mcast"),
            served("ibv_close_device"),
            served("ibv_copy_ah_attr_from_kern"),
            served("ibv_create_ah"),
            served("ibv_create_ah_from_wc"),
            served("ibv_create_cq"),
            served("ibv_create_qp"),
            served("ibv_create_srq"),
            served("ibv_dealloc_pd"),
            served("ibv_dereg_mr"),
            served("ibv_destroy_ah"),
            served("ibv_destroy_cq"),
            served("ibv_destroy_qp"),
            served("ibv_destroy_srq"),
            served("ibv_detach_mcast"),
            served("ibv_dofork_range"),
            served("ibv_dontfork_range"),
            served("ibv_event_type_str"),
            served("ibv_fork_init"),
            served("ibv_free_device_list"),
            served("ibv_get_async_event"),
            served("ibv_get_cq_event"),
            served("ibv_get_device_guid"),
            served("ibv_get_device_list"),
            served("ibv_get_device_name"),
            served("ibv_init_ah_from_wc"),
            served("ibv_modify_qp"),
            served("ibv_modify_srq"),
            served("ibv_node_type_str"),
            served("ibv_open_device"),
            served("ibv_port_state_str"),
            served("ibv_query_device"),
            served("ibv_query_gid"),
            served("ibv_query_pkey"),
            served("ibv_query_port"),
            served("ibv_query_qp"),
            served("ibv_query_srq"),
            served("ibv_rate_to_mbps"),
            served("ibv_reg_mr"),
            served("ibv_register_driver"),
            served("ibv_rereg_mr"),
            served("ibv_resize_cq"),
            served("ibv_resolve_eth_l2_from_gid"),
            served("ibv_wc_status_str"),
            served("mbps_to_ibv_rate"),
        ],
    ),
    node("IBVERBS_1.5", &[served("ibv_get_pkey_index")]),
    node("IBVERBS_1.6", &[served("ibv_qp_to_qp_ex")]),
    node("IBVERBS_1.7", &[served("ibv_reg_mr_iova")]),
    node("IBVERBS_1.8", &[served("ibv_reg_mr_iova2")]),
    node("IBVERBS_1.9", &[served("ibv_get_device_index")]),
    node(
        "IBVERBS_1.10",
        &[
            served("ibv_import_device"),
            served("ibv_import_mr"),
            served("ibv_import_pd"),
            served("ibv_query_ece"),
            served("ibv_set_ece"),
            served("ibv_unimport_mr"),
            served("ibv_unimport_pd"),
        ],
    ),
    node("IBVERBS_1.11", &[served("_ibv_query_gid_ex"), served("_ibv_query_gid_table")]),
    node("IBVERBS_1.12", &[served("ibv_reg_dmabuf_mr")]),
    node(
        "IBVERBS_1.13",
        &[served("ibv_import_dm"), served("ibv_is_fork_initialized"), served("ibv_unimport_dm")],
    ),
    node("IBVERBS_1.14", &[served("ibv_query_qp_data_in_order")]),
    node("IBVERBS_1.15", &[served("ibv_alloc_dmah"), served("ibv_dealloc_dmah"), served("ibv_reg_mr_ex")]),
    node("IBVERBS_1.16", &[served("ibv_dm_export_dmabuf_fd"), served("ibv_query_port_speed")]),
    node("IBVERBS_1.17", &[served("ibv_alloc_buf"), served("ibv_free_buf"), served("ibv_reg_buf_mr")]),
    node(
        "IBVERBS_1.18",
        &[
            served("_ibv_query_comp_cntr_caps"),
            served("ibv_create_comp_cntr"),
            served("ibv_destroy_comp_cntr"),
            partial("ibv_export_buf_dmabuf_fd", "buffers lie in memory of the process: `ENODATA`"),
            served("ibv_inc_comp_cntr"),
            served("ibv_inc_err_comp_cntr"),
            served("ibv_qp_attach_comp_cntr"),
            served("ibv_read_comp_cntr"),
            served("ibv_read_err_comp_cntr"),
            served("ibv_set_comp_cntr"),
            served("ibv_set_err_comp_cntr"),
        ],
    ),
];

/// The nodes of libibverbs' private symbols, one per group of releases, from 22 to 65.
///
/// Programs import only one private symbol: `ibv_devinfo` and pyverbs import `ibv_query_gid_type`
/// from the node of their release. Such a program runs with the image if its node is listed here.
pub const PRIVATE: &[Node] = &[
    node("IBVERBS_PRIVATE_22", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_25", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_33", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_34", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_57", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_59", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_64", &[served("ibv_query_gid_type")]),
    node("IBVERBS_PRIVATE_65", &[served("ibv_query_gid_type")]),
];

/// The nodes of `librdmacm.so.1`.
pub const RDMACM: &[Node] = &[
    node(
        "RDMACM_1.0",
        &[
            refused("raccept", NO_SOCKETS),
            refused("rbind", NO_SOCKETS),
            refused("rclose", NO_SOCKETS),
            refused("rconnect", NO_SOCKETS),
            served("rdma_accept"),
            served("rdma_ack_cm_event"),
            served("rdma_bind_addr"),
            served("rdma_connect"),
            served("rdma_create_ep"),
            served("rdma_create_event_channel"),
            served("rdma_create_id"),
            served("rdma_create_qp"),
            served("rdma_create_qp_ex"),
            served("rdma_create_srq"),
            served("rdma_create_srq_ex"),
            served("rdma_destroy_ep"),
            served("rdma_destroy_event_channel"),
            served("rdma_destroy_id"),
            served("rdma_destroy_qp"),
            served("rdma_destroy_srq"),
            served("rdma_disconnect"),
            served("rdma_event_str"),
            served("rdma_free_devices"),
            served("rdma_freeaddrinfo"),
            served("rdma_get_cm_event"),
            served("rdma_get_devices"),
            served("rdma_get_dst_port"),
            served("rdma_get_request"),
            served("rdma_get_src_port"),
            partial("rdma_getaddrinfo", NO_ACM),
            served("rdma_join_multicast"),
            served("rdma_leave_multicast"),
            served("rdma_listen"),
            served("rdma_migrate_id"),
            served("rdma_notify"),
            served("rdma_reject"),
            served("rdma_resolve_addr"),
            partial("rdma_resolve_route", NO_ACM),
            served("rdma_set_option"),
            refused("rfcntl", NO_SOCKETS),
            refused("rgetpeername", NO_SOCKETS),
            refused("rgetsockname", NO_SOCKETS),
            refused("rgetsockopt", NO_SOCKETS),
            refused("riomap", NO_SOCKETS),
            refused("riounmap", NO_SOCKETS),
            refused("riowrite", NO_SOCKETS),
            refused("rlisten", NO_SOCKETS),
            refused("rpoll", NO_SOCKETS),
            refused("rread", NO_SOCKETS),
            refused("rreadv", NO_SOCKETS),
            refused("rrecv", NO_SOCKETS),
            refused("rrecvfrom", NO_SOCKETS),
            refused("rrecvmsg", NO_SOCKETS),
            refused("rselect", NO_SOCKETS),
            refused("rsend", NO_SOCKETS),
            refused("rsendmsg", NO_SOCKETS),
            refused("rsendto", NO_SOCKETS),
            refused("rsetsockopt", NO_SOCKETS),
            refused("rshutdown", NO_SOCKETS),
            refused("rsocket", NO_SOCKETS),
            refused("rwrite", NO_SOCKETS),
            refused("rwritev", NO_SOCKETS),
        ],
    ),
    node("RDMACM_1.1", &[served("rdma_join_multicast_ex")]),
    node("RDMACM_1.2", &[served("rdma_establish"), served("rdma_init_qp_attr")]),
    node(
        "RDMACM_1.3",
        &[served("rdma_get_remote_ece"), served("rdma_reject_ece"), served("rdma_set_local_ece")],
    ),
    node(
        "RDMACM_1.4",
        &[served("rdma_query_addrinfo"), served("rdma_resolve_addrinfo"), served("rdma_write_cm_event")],
    ),
    node(
        "RDMACM_1.5",
        &[
            refused("repoll_create", NO_SOCKETS),
            refused("repoll_ctl", NO_SOCKETS),
            refused("repoll_wait", NO_SOCKETS),
        ],
    ),
];

/// The nodes of `libmlx5.so.1`.
pub const MLX5: &[Node] = &[
    node(
        "MLX5_1.0",
        &[partial(
            "mlx5dv_query_device",
            "fields that libmlx5 queries by DevX are 0, as on kernels without DevX",
        )],
    ),
    node("MLX5_1.1", &[partial("mlx5dv_create_cq", "`EOPNOTSUPP` for padded entries")]),
    node(
        "MLX5_1.2",
        &[
            partial("mlx5dv_init_obj", "`EOPNOTSUPP` for objects of DevX"),
            refused("mlx5dv_set_context_attr", NO_ALLOCATORS),
        ],
    ),
    node(
        "MLX5_1.3",
        &[
            partial(
                "mlx5dv_create_qp",
                "`EOPNOTSUPP` for what plain queue pairs lack: DC, signatures, operations on keys, copies, \
                 tunnels, loopback by choice, packet-based credits, data out of order",
            ),
            partial("mlx5dv_create_wq", "`EOPNOTSUPP` for striding"),
        ],
    ),
    node("MLX5_1.4", &[served("mlx5dv_get_clock_info")]),
    node("MLX5_1.5", &[refused("mlx5dv_create_flow_action_esp", NO_RULES)]),
    node(
        "MLX5_1.6",
        &[
            refused("mlx5dv_create_flow", NO_RULES),
            refused("mlx5dv_create_flow_matcher", NO_RULES),
            refused("mlx5dv_destroy_flow_matcher", NO_RULES),
        ],
    ),
    node(
        "MLX5_1.7",
        &[
            refused("mlx5dv_create_flow_action_modify_header", NO_RULES),
            refused("mlx5dv_create_flow_action_packet_reformat", NO_RULES),
            partial(
                "mlx5dv_devx_alloc_uar",
                "`EOPNOTSUPP` for a dedicated page without requests, `ENOMEM` where queue pairs have all pages",
            ),
            served("mlx5dv_devx_free_uar"),
            refused("mlx5dv_devx_general_cmd", NO_DEVX),
            refused("mlx5dv_devx_obj_create", NO_DEVX),
            refused("mlx5dv_devx_obj_destroy", NO_DEVX),
            refused("mlx5dv_devx_obj_modify", NO_DEVX),
            refused("mlx5dv_devx_obj_query", NO_DEVX),
            refused("mlx5dv_devx_query_eqn", NO_DEVX),
            refused("mlx5dv_devx_umem_dereg", NO_DEVX),
            refused("mlx5dv_devx_umem_reg", NO_DEVX),
            partial(
                "mlx5dv_open_device",
                "`EOPNOTSUPP` for a context with DevX, or with descriptors of completion channels",
            ),
        ],
    ),
    node(
        "MLX5_1.8",
        &[
            refused("mlx5dv_devx_cq_modify", NO_DEVX),
            refused("mlx5dv_devx_cq_query", NO_DEVX),
            refused("mlx5dv_devx_ind_tbl_modify", NO_DEVX),
            refused("mlx5dv_devx_ind_tbl_query", NO_DEVX),
            refused("mlx5dv_devx_qp_modify", NO_DEVX),
            refused("mlx5dv_devx_qp_query", NO_DEVX),
            refused("mlx5dv_devx_srq_modify", NO_DEVX),
            refused("mlx5dv_devx_srq_query", NO_DEVX),
            refused("mlx5dv_devx_wq_modify", NO_DEVX),
            refused("mlx5dv_devx_wq_query", NO_DEVX),
            served("mlx5dv_is_supported"),
        ],
    ),
    node(
        "MLX5_1.9",
        &[
            refused("mlx5dv_devx_create_cmd_comp", NO_DEVX),
            refused("mlx5dv_devx_destroy_cmd_comp", NO_DEVX),
            refused("mlx5dv_devx_get_async_cmd_comp", NO_DEVX),
            refused("mlx5dv_devx_obj_query_async", NO_DEVX),
        ],
    ),
    node(
        "MLX5_1.10",
        &[
            partial("mlx5dv_alloc_dm", "`EOPNOTSUPP` for memory of steering rules"),
            refused("mlx5dv_create_mkey", NO_KEYS),
            refused("mlx5dv_destroy_mkey", NO_KEYS),
            refused("mlx5dv_dr_action_create_dest_ibv_qp", NO_RULES),
            refused("mlx5dv_dr_action_create_dest_table", NO_RULES),
            refused("mlx5dv_dr_action_create_dest_vport", NO_RULES),
            refused("mlx5dv_dr_action_create_drop", NO_RULES),
            refused("mlx5dv_dr_action_create_flow_counter", NO_RULES),
            refused("mlx5dv_dr_action_create_modify_header", NO_RULES),
            refused("mlx5dv_dr_action_create_packet_reformat", NO_RULES),
            refused("mlx5dv_dr_action_create_tag", NO_RULES),
            refused("mlx5dv_dr_action_destroy", NO_RULES),
            refused("mlx5dv_dr_domain_create", NO_RULES),
            refused("mlx5dv_dr_domain_destroy", NO_RULES),
            refused("mlx5dv_dr_domain_sync", NO_RULES),
            refused("mlx5dv_dr_matcher_create", NO_RULES),
            refused("mlx5dv_dr_matcher_destroy", NO_RULES),
            refused("mlx5dv_dr_rule_create", NO_RULES),
            refused("mlx5dv_dr_rule_destroy", NO_RULES),
            refused("mlx5dv_dr_table_create", NO_RULES),
            refused("mlx5dv_dr_table_destroy", NO_RULES),
            partial("mlx5dv_qp_ex_from_ibv_qp_ex", "`wr_raw_wqe` alone is there"),
        ],
    ),
    node(
        "MLX5_1.11",
        &[
            refused("mlx5dv_devx_create_event_channel", NO_DEVX),
            refused("mlx5dv_devx_destroy_event_channel", NO_DEVX),
            refused("mlx5dv_devx_get_event", NO_DEVX),
            refused("mlx5dv_devx_subscribe_devx_event", NO_DEVX),
            refused("mlx5dv_devx_subscribe_devx_event_fd", NO_DEVX),
        ],
    ),
    node(
        "MLX5_1.12",
        &[
            refused("mlx5dv_alloc_var", NO_OBJECTS),
            refused("mlx5dv_dr_action_create_flow_meter", NO_RULES),
            refused("mlx5dv_dr_action_modify_flow_meter", NO_RULES),
            refused("mlx5dv_dump_dr_domain", NO_RULES),
            refused("mlx5dv_dump_dr_matcher", NO_RULES),
            refused("mlx5dv_dump_dr_rule", NO_RULES),
            refused("mlx5dv_dump_dr_table", NO_RULES),
            refused("mlx5dv_free_var", NO_OBJECTS),
        ],
    ),
    node("MLX5_1.13", &[refused("mlx5dv_pp_alloc", NO_OBJECTS), refused("mlx5dv_pp_free", NO_OBJECTS)]),
    node(
        "MLX5_1.14",
        &[
            refused("mlx5dv_dr_action_create_default_miss", NO_RULES),
            refused("mlx5dv_dr_domain_set_reclaim_device_memory", NO_RULES),
            refused("mlx5dv_modify_qp_lag_port", NO_DEVX),
            refused("mlx5dv_query_qp_lag_port", NO_DEVX),
        ],
    ),
    node("MLX5_1.15", &[refused("mlx5dv_dr_action_create_dest_devx_tir", NO_RULES)]),
    node(
        "MLX5_1.16",
        &[
            refused("mlx5dv_dr_action_create_dest_array", NO_RULES),
            refused("mlx5dv_dr_action_create_flow_sampler", NO_RULES),
        ],
    ),
    node(
        "MLX5_1.17",
        &[
            refused("mlx5dv_dr_action_create_aso", NO_RULES),
            refused("mlx5dv_dr_action_create_pop_vlan", NO_RULES),
            refused("mlx5dv_dr_action_create_push_vlan", NO_RULES),
            refused("mlx5dv_dr_action_modify_aso", NO_RULES),
            partial(
                "mlx5dv_modify_qp_sched_elem",
                "`EOPNOTSUPP`, and `EINVAL` where libmlx5 looks at the type first",
            ),
            refused("mlx5dv_modify_qp_udp_sport", NO_DEVX),
            refused("mlx5dv_sched_leaf_create", NO_DEVX),
            refused("mlx5dv_sched_leaf_destroy", NO_DEVX),
            refused("mlx5dv_sched_leaf_modify", NO_DEVX),
            refused("mlx5dv_sched_node_create", NO_DEVX),
            refused("mlx5dv_sched_node_destroy", NO_DEVX),
            refused("mlx5dv_sched_node_modify", NO_DEVX),
        ],
    ),
    node(
        "MLX5_1.18",
        &[
            refused("mlx5dv_reserved_qpn_alloc", NO_DEVX),
            partial("mlx5dv_reserved_qpn_dealloc", "`EINVAL`, because no number is reserved"),
        ],
    ),
    node(
        "MLX5_1.19",
        &[
            served("_mlx5dv_query_port"),
            refused("mlx5dv_devx_umem_reg_ex", NO_DEVX),
            refused("mlx5dv_dm_map_op_addr", NO_OBJECTS),
        ],
    ),
    node(
        "MLX5_1.20",
        &[
            refused("_mlx5dv_mkey_check", NO_KEYS),
            refused("mlx5dv_dr_domain_allow_duplicate_rules", NO_RULES),
            refused("mlx5dv_map_ah_to_qp", NO_DEVX),
            refused("mlx5dv_qp_cancel_posted_send_wrs", NO_KEYS),
        ],
    ),
    node(
        "MLX5_1.21",
        &[
            refused("mlx5dv_crypto_login", NO_DEVX),
            refused("mlx5dv_crypto_login_query_state", NO_DEVX),
            refused("mlx5dv_crypto_logout", NO_DEVX),
            refused("mlx5dv_dci_stream_id_reset", NO_DEVX),
            refused("mlx5dv_dek_create", NO_DEVX),
            refused("mlx5dv_dek_destroy", NO_DEVX),
            refused("mlx5dv_dek_query", NO_DEVX),
            refused("mlx5dv_dr_action_create_dest_ib_port", NO_RULES),
            refused("mlx5dv_dr_matcher_set_layout", NO_RULES),
            refused("mlx5dv_get_vfio_device_list", NO_VFIO),
            refused("mlx5dv_vfio_get_events_fd", NO_VFIO),
            refused("mlx5dv_vfio_process_events", NO_VFIO),
        ],
    ),
    node(
        "MLX5_1.22",
        &[
            refused("mlx5dv_dr_aso_other_domain_link", NO_RULES),
            refused("mlx5dv_dr_aso_other_domain_unlink", NO_RULES),
        ],
    ),
    node(
        "MLX5_1.23",
        &[
            refused("mlx5dv_devx_alloc_msi_vector", NO_DEVX),
            refused("mlx5dv_devx_create_eq", NO_DEVX),
            refused("mlx5dv_devx_destroy_eq", NO_DEVX),
            refused("mlx5dv_devx_free_msi_vector", NO_DEVX),
        ],
    ),
    node(
        "MLX5_1.24",
        &[
            refused("mlx5dv_create_steering_anchor", NO_RULES),
            refused("mlx5dv_crypto_login_create", NO_DEVX),
            refused("mlx5dv_crypto_login_destroy", NO_DEVX),
            refused("mlx5dv_crypto_login_query", NO_DEVX),
            refused("mlx5dv_destroy_steering_anchor", NO_RULES),
            refused("mlx5dv_dr_action_create_dest_root_table", NO_RULES),
        ],
    ),
    node(
        "MLX5_1.25",
        &[
            partial("mlx5dv_get_data_direct_sysfs_path", "`ENODEV`: no memory is registered for data direct"),
            partial("mlx5dv_reg_dmabuf_mr", "`EOPNOTSUPP` for data direct"),
        ],
    ),
    node("MLX5_1.25.1", &[refused("__mlx5dv_create_flow", NO_RULES)]),
    node("MLX5_1.26", &[refused("mlx5dv_devx_uar_export_dmabuf_fd", NO_DEVX)]),
    node(
        "MLX5_1.27",
        &[
            refused("_mlx5dv_get_export_sizes", NO_OBJECTS),
            refused("mlx5dv_devx_obj_export", NO_OBJECTS),
            refused("mlx5dv_devx_obj_import", NO_OBJECTS),
            refused("mlx5dv_devx_obj_unimport", NO_OBJECTS),
            refused("mlx5dv_devx_umem_export", NO_OBJECTS),
            refused("mlx5dv_devx_umem_import", NO_OBJECTS),
            refused("mlx5dv_devx_umem_unimport", NO_OBJECTS),
            refused("mlx5dv_var_export", NO_OBJECTS),
            refused("mlx5dv_var_import", NO_OBJECTS),
            refused("mlx5dv_var_unimport", NO_OBJECTS),
        ],
    ),
];

/// The nodes of `libefa.so.1`.
pub const EFA: &[Node] = &[
    node("EFA_1.0", &[refused("efadv_create_driver_qp", NO_EFA)]),
    node(
        "EFA_1.1",
        &[
            refused("efadv_create_qp_ex", NO_EFA),
            refused("efadv_query_ah", NO_EFA),
            refused("efadv_query_device", NO_EFA),
        ],
    ),
    node("EFA_1.2", &[refused("efadv_cq_from_ibv_cq_ex", NO_EFA), refused("efadv_create_cq", NO_EFA)]),
    node("EFA_1.3", &[refused("efadv_query_mr", NO_EFA)]),
    node("EFA_1.4", &[refused("efadv_query_cq", NO_EFA), refused("efadv_query_qp_wqs", NO_EFA)]),
    node("EFA_1.5", &[refused("efadv_get_max_rq_depth", NO_EFA), refused("efadv_get_max_sq_depth", NO_EFA)]),
    node("EFA_1.6", &[refused("efadv_qp_from_ibv_qp_ex", NO_EFA)]),
    node("EFA_1.7", &[refused("efadv_create_comp_cntr", NO_EFA)]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(nodes: &[Node]) -> Vec<&'static str> {
        nodes.iter().flat_map(|node| node.symbols).map(|symbol| symbol.name).collect()
    }

    #[test]
    fn each_public_name_stands_in_one_node() {
        for (nodes, count) in [(IBVERBS, 95), (RDMACM, 74), (MLX5, 142), (EFA, 13)] {
            let names = names(nodes);
            assert_eq!(names.len(), count);
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count);
        }
    }

    #[test]
    fn nodes_are_listed_once_and_their_symbols_are_sorted() {
        let mut seen = BTreeSet::new();
        for node in nodes() {
            assert!(seen.insert(node.name), "{} stands twice", node.name);
            let names: Vec<_> = node.symbols.iter().map(|symbol| symbol.name).collect();
            assert!(names.is_sorted(), "{}: {names:?}", node.name);
        }
    }

    #[test]
    fn every_node_belongs_to_its_library() {
        for (nodes, prefix) in
            [(IBVERBS, "IBVERBS_1."), (RDMACM, "RDMACM_1."), (MLX5, "MLX5_1."), (EFA, "EFA_1.")]
        {
            assert!(nodes.iter().all(|node| node.name.starts_with(prefix)));
        }
        assert!(PRIVATE.iter().all(|node| node.name.starts_with("IBVERBS_PRIVATE_")));
    }
}
