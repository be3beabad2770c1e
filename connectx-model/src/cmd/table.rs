//! The table of commands: one row per command, with everything that the dispatcher needs.
//!
//! To add a command, write its structures in [`layout`](crate::layout), its handler in its family's
//! file and one row here. Dispatch, checks, traces and the names in fault lines follow from the
//! row.
//!
//! ```text
//! 0x108 "MANAGE_PAGES" manage_pages_in -> manage_pages_out
//!       = manage_pages, in [Enabled, Initialised], modifiers 0..=2, list "pages";
//! ```
//!
//! | part of a row | meaning | if absent |
//! |---|---|---|
//! | `0x108 "MANAGE_PAGES"` | opcode and name | |
//! | `manage_pages_in` | input structure, for its length and its reserved bits | |
//! | `-> manage_pages_out` | output structure, or its minimum number of bytes | |
//! | `= manage_pages` | handler | |
//! | `in [...]` | stages of the function that permit the command | `in [Initialised]` |
//! | `modifiers 0..=2` | accepted values of `op_mod` | only 0 |
//! | `list "pages"` | items after the structure; the handler checks the length | no list |
//!
//! An input without a list has exactly the length of its structure, as Linux 6.1 to 7.2 send it.
//! Each family starts with the modules that hold its handlers and its structures (`tir, eth`).
//!
//! Invariant: each opcode and each name occurs in only one row.
//!
//! # References
//! PRM, "command interface functions"; Linux `include/linux/mlx5/mlx5_ifc.h`

use std::ops::RangeInclusive;

use crate::bus::Bus;
use crate::function::Function;
use crate::layout::{self, Table};
use crate::refusal::Refusal;
use crate::state::hca::Stage::{self, *};

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Command<B: Bus> {
    pub(crate) opcode: u16,
    pub(crate) name: &'static str,
    /// The input structure. It determines the input's length and its reserved bits.
    pub(crate) input: &'static Table,
    /// The name of the items in the list after the input structure, if there is a list.
    pub(crate) list: Option<&'static str>,
    /// Minimum length of the output, in bytes.
    pub(crate) output: usize,
    /// The stages of the function in which the command is permitted.
    pub(crate) stages: &'static [Stage],
    /// The accepted values of `op_mod`.
    pub(crate) modifiers: RangeInclusive<u32>,
    pub(crate) run: Run<B>,
}

/// A handler: executes a command with its input and fills in its output.
///
/// The output is zeroed and has the length that the driver has provided. The caller sets status and
/// syndrome.
pub(crate) type Run<B> = fn(&mut Function<B>, &[u8], &mut [u8]) -> Result<(), Refusal>;

/// Returns the command with this opcode; `None` if there is none.
pub(crate) fn command<B: Bus>(opcode: u16) -> Option<&'static Command<B>> {
    Command::ALL.iter().find(|command| command.opcode == opcode)
}

/// Generates [`Command::ALL`] from the table's rows.
macro_rules! table {
    ($($handlers:ident, $layouts:ident { $(
        $opcode:literal $name:literal $input:ident -> $output:tt = $($run:ident)::+
        $(, in $stages:tt)? $(, modifiers $modifiers:expr)? $(, list $list:literal)?;
    )* })*) => {
        impl<B: Bus> Command<B> {
            /// All commands, in table order.
            pub(crate) const ALL: &[Self] = &[$($( Command {
                opcode: $opcode,
                name: $name,
                input: &layout::$layouts::$input::TABLE,
                list: table!(@list $($list)?),
                output: table!(@size $layouts $output),
                stages: table!(@stages $($stages)?),
                modifiers: table!(@modifiers $($modifiers)?),
                run: super::$handlers::$($run)::+,
            }, )*)*];
        }
    };
    (@list) => { None };
    (@list $list:literal) => { Some($list) };
    (@size $layouts:ident $bytes:literal) => { $bytes };
    (@size $layouts:ident $output:ident) => { layout::$layouts::$output::SIZE };
    (@stages) => { &[Initialised] };
    (@stages $stages:tt) => { &$stages };
    (@modifiers) => { 0..=0 };
    (@modifiers $modifiers:expr) => { $modifiers };
}

table! {
    // The function as a whole.
    hca, hca {
        0x100 "QUERY_HCA_CAP"          query_hca_cap_in          -> query_hca_cap_out
              = query_hca_cap, in [Enabled, Initialised], modifiers 0..=0x43;
        0x101 "QUERY_ADAPTER"          query_adapter_in          -> query_adapter_out
              = query_adapter, in [Enabled, Initialised];
        0x102 "INIT_HCA"               init_hca_in               -> 8
              = init_hca, in [Enabled];
        0x103 "TEARDOWN_HCA"           teardown_hca_in           -> teardown_hca_out
              = teardown_hca;
        0x104 "ENABLE_HCA"             enable_hca_in             -> 8
              = enable_hca, in [Disabled];
        0x105 "DISABLE_HCA"            disable_hca_in            -> 8
              = disable_hca, in [Enabled];
        0x107 "QUERY_PAGES"            query_pages_in            -> query_pages_out
              = query_pages, in [Enabled, Initialised], modifiers 1..=3;
        0x108 "MANAGE_PAGES"           manage_pages_in           -> manage_pages_out
              = manage_pages, in [Enabled, Initialised], modifiers 0..=2, list "pages";
        0x109 "SET_HCA_CAP"            set_hca_cap_in            -> 8
              = set_hca_cap, in [Enabled], modifiers 0..=0x43;
        0x10a "QUERY_ISSI"             query_issi_in             -> query_issi_out
              = query_issi, in [Enabled, Initialised];
        0x10b "SET_ISSI"               set_issi_in               -> 8
              = set_issi, in [Enabled];
        0x10d "SET_DRIVER_VERSION"     set_driver_version_in     -> 8
              = set_driver_version;
        0x203 "QUERY_SPECIAL_CONTEXTS" query_special_contexts_in -> query_special_contexts_out
              = query_special_contexts;
        0x204 "PAGE_FAULT_RESUME"      page_fault_resume_in      -> 8
              = page_fault_resume;
        0x771 "ALLOC_Q_COUNTER"        alloc_q_counter_in        -> alloc_q_counter_out
              = alloc_q_counter;
        0x772 "DEALLOC_Q_COUNTER"      dealloc_q_counter_in      -> 8
              = dealloc_q_counter;
        0x773 "QUERY_Q_COUNTER"        query_q_counter_in        -> query_q_counter_out
              = query_q_counter;
        0x802 "ALLOC_UAR"              alloc_uar_in              -> alloc_uar_out
              = alloc_uar;
        0x803 "DEALLOC_UAR"            dealloc_uar_in            -> 8
              = dealloc_uar;
        0x80d "NOP"                    nop_in                    -> 8
              = nop, in [Enabled, Initialised];
    }

    // Event queues.
    eq, eq {
        0x301 "CREATE_EQ"  create_eq_in  -> create_eq_out = create_eq, list "pages";
        0x302 "DESTROY_EQ" destroy_eq_in -> 8             = destroy_eq;
        0x303 "QUERY_EQ"   query_eq_in   -> query_eq_out  = query_eq;
    }

    // The port.
    vport, vport {
        0x50d "MAD_IFC"                  mad_ifc_in                  -> mad_ifc_out
              = mad_ifc, modifiers 0..=3;
        0x750 "QUERY_VPORT_STATE"        query_vport_state_in        -> query_vport_state_out
              = query_vport_state, modifiers 0..=2;
        0x751 "MODIFY_VPORT_STATE"       modify_vport_state_in       -> 8
              = modify_vport_state, modifiers 0..=2;
        0x754 "QUERY_NIC_VPORT_CONTEXT"  query_nic_vport_context_in  -> query_nic_vport_context_out
              = query_nic_vport_context;
        0x755 "MODIFY_NIC_VPORT_CONTEXT" modify_nic_vport_context_in -> 8
              = modify_nic_vport_context, list "addresses";
        0x760 "QUERY_ROCE_ADDRESS"       query_roce_address_in       -> query_roce_address_out
              = query_roce_address;
        0x761 "SET_ROCE_ADDRESS"         set_roce_address_in         -> 8
              = set_roce_address;
        0x762 "QUERY_HCA_VPORT_CONTEXT"  query_hca_vport_context_in  -> query_hca_vport_context_out
              = query_hca_vport_context;
        0x763 "MODIFY_HCA_VPORT_CONTEXT" modify_hca_vport_context_in -> 8
              = modify_hca_vport_context;
        0x764 "QUERY_HCA_VPORT_GID"      query_hca_vport_gid_in      -> query_hca_vport_gid_out
              = query_hca_vport_gid;
        0x765 "QUERY_HCA_VPORT_PKEY"     query_hca_vport_pkey_in     -> query_hca_vport_pkey_out
              = query_hca_vport_pkey;
        0x770 "QUERY_VPORT_COUNTER"      query_vport_counter_in      -> query_vport_counter_out
              = query_vport_counter;
    }

    // Registers.
    register, register {
        0x805 "ACCESS_REG" access_register_in -> access_register_out
              = access_register, in [Enabled, Initialised], modifiers 0..=1, list "a register";
    }

    // Ethernet queues.
    eth, eth {
        0x780 "SET_PP_RATE_LIMIT" set_pp_rate_limit_in -> 8 = set_pp_rate_limit;
        0x904 "CREATE_SQ"  create_sq_in  -> create_sq_out = create_sq, list "pages";
        0x905 "MODIFY_SQ"  modify_sq_in  -> 8             = modify_sq;
        0x906 "DESTROY_SQ" destroy_sq_in -> 8             = destroy_sq;
        0x907 "QUERY_SQ"   query_sq_in   -> query_sq_out  = query_sq;
        0x908 "CREATE_RQ"  create_rq_in  -> create_rq_out = create_rq, list "pages";
        0x909 "MODIFY_RQ"  modify_rq_in  -> 8             = modify_rq;
        0x90a "DESTROY_RQ" destroy_rq_in -> 8             = destroy_rq;
        0x90b "QUERY_RQ"   query_rq_in   -> query_rq_out  = query_rq;
    }

    // Transport interfaces and receive queue tables.
    tir, eth {
        0x900 "CREATE_TIR"  create_tir_in  -> create_tir_out = create_tir;
        0x901 "MODIFY_TIR"  modify_tir_in  -> 8              = modify_tir;
        0x902 "DESTROY_TIR" destroy_tir_in -> 8              = destroy_tir;
        0x903 "QUERY_TIR"   query_tir_in   -> query_tir_out  = query_tir;
        0x912 "CREATE_TIS"  create_tis_in  -> create_tis_out = create_tis;
        0x913 "MODIFY_TIS"  modify_tis_in  -> 8              = modify_tis;
        0x914 "DESTROY_TIS" destroy_tis_in -> 8              = destroy_tis;
        0x915 "QUERY_TIS"   query_tis_in   -> query_tis_out  = query_tis;
        0x916 "CREATE_RQT"  create_rqt_in  -> create_rqt_out = create_rqt, list "receive queues";
        0x917 "MODIFY_RQT"  modify_rqt_in  -> 8              = modify_rqt, list "receive queues";
        0x918 "DESTROY_RQT" destroy_rqt_in -> 8              = destroy_rqt;
        0x919 "QUERY_RQT"   query_rqt_in   -> query_rqt_out  = query_rqt;
    }

    // Flow steering.
    steering, steering {
        0x92f "SET_FLOW_TABLE_ROOT"     set_flow_table_root_in  -> 8
              = set_root, modifiers 0..=1;
        0x930 "CREATE_FLOW_TABLE"       create_flow_table_in    -> create_flow_table_out  = create_table;
        0x931 "DESTROY_FLOW_TABLE"      destroy_flow_table_in   -> 8                      = destroy_table;
        0x932 "QUERY_FLOW_TABLE"        query_flow_table_in     -> query_flow_table_out   = query_table;
        0x933 "CREATE_FLOW_GROUP"       create_flow_group_in    -> create_flow_group_out  = create_group;
        0x934 "DESTROY_FLOW_GROUP"      destroy_flow_group_in   -> 8                      = destroy_group;
        0x936 "SET_FLOW_TABLE_ENTRY"    set_fte_in              -> 8
              = set_entry, modifiers 0..=1, list "destinations and counters";
        0x938 "DELETE_FLOW_TABLE_ENTRY" delete_fte_in           -> 8                      = delete_entry;
        0x939 "ALLOC_FLOW_COUNTER"      alloc_flow_counter_in   -> alloc_flow_counter_out = alloc_counter;
        0x93a "DEALLOC_FLOW_COUNTER"    dealloc_flow_counter_in -> 8                      = dealloc_counter;
        0x93b "QUERY_FLOW_COUNTER"      query_flow_counter_in   -> 0x20                   = query_counter;
        0x93c "MODIFY_FLOW_TABLE"       modify_flow_table_in    -> 8                      = modify_table;
    }

    // Domains.
    pd, mkey {
        0x800 "ALLOC_PD"                 alloc_pd_in                 -> alloc_pd_out
              = alloc_pd;
        0x801 "DEALLOC_PD"               dealloc_pd_in               -> 16
              = dealloc_pd;
        0x80e "ALLOC_XRCD"               alloc_xrcd_in               -> alloc_xrcd_out
              = alloc_xrcd;
        0x80f "DEALLOC_XRCD"             dealloc_xrcd_in             -> 16
              = dealloc_xrcd;
        0x816 "ALLOC_TRANSPORT_DOMAIN"   alloc_transport_domain_in   -> alloc_transport_domain_out
              = alloc_transport_domain;
        0x817 "DEALLOC_TRANSPORT_DOMAIN" dealloc_transport_domain_in -> 16
              = dealloc_transport_domain;
    }

    // Memory keys.
    mkey, mkey {
        0x200 "CREATE_MKEY"  create_mkey_in  -> create_mkey_out = create, list "translations";
        0x201 "QUERY_MKEY"   query_mkey_in   -> 0x50            = query;
        0x202 "DESTROY_MKEY" destroy_mkey_in -> 16              = destroy;
    }

    // Device memory.
    memic, memic {
        0x205 "ALLOC_MEMIC"   alloc_memic_in   -> alloc_memic_out = alloc;
        0x206 "DEALLOC_MEMIC" dealloc_memic_in -> 16              = dealloc;
    }

    // Completion queues.
    cq, cq {
        0x400 "CREATE_CQ"  create_cq_in  -> create_cq_out = create, list "pages";
        0x401 "DESTROY_CQ" destroy_cq_in -> 8             = destroy;
        0x402 "QUERY_CQ"   query_cq_in   -> 0x50          = query;
        0x403 "MODIFY_CQ"  modify_cq_in  -> 8             = modify, modifiers 0..=1, list "pages";
    }

    // Queue pairs and multicast groups.
    qp, qp {
        0x500 "CREATE_QP"       create_qp_in       -> create_qp_out = create, list "pages";
        0x501 "DESTROY_QP"      destroy_qp_in      -> 8             = destroy;
        0x502 "RST2INIT_QP"     rst2init_qp_in     -> 8             = modify::rst2init;
        0x503 "INIT2RTR_QP"     init2rtr_qp_in     -> 8             = modify::init2rtr;
        0x504 "RTR2RTS_QP"      rtr2rts_qp_in      -> 8             = modify::rtr2rts;
        0x505 "RTS2RTS_QP"      rts2rts_qp_in      -> 8             = modify::rts2rts;
        0x506 "SQERR2RTS_QP"    sqerr2rts_qp_in    -> 8             = modify::sqerr2rts;
        0x507 "2ERR_QP"         qp_2err_in         -> 8             = modify::to_error;
        0x50a "2RST_QP"         qp_2rst_in         -> 8             = modify::to_reset;
        0x50b "QUERY_QP"        query_qp_in        -> 0x110         = query;
        0x50c "SQD2RTS_QP"      sqd2rts_qp_in      -> 8             = modify::sqd2rts;
        0x50e "INIT2INIT_QP"    init2init_qp_in    -> 8             = modify::init2init;
        0x806 "ATTACH_TO_MCG"   attach_to_mcg_in   -> 8             = attach;
        0x807 "DETACH_FROM_MCG" detach_from_mcg_in -> 8             = detach;
    }

    // Shared receive queues.
    srq, srq {
        0x700 "CREATE_SRQ"      create_srq_in      -> create_srq_out     = create_srq, list "pages";
        0x701 "DESTROY_SRQ"     destroy_srq_in     -> 8                  = destroy_srq;
        0x702 "QUERY_SRQ"       query_srq_in       -> 0x50               = query_srq;
        0x703 "ARM_RQ"          arm_rq_in          -> 8                  = arm_srq, modifiers 1..=2;
        0x705 "CREATE_XRC_SRQ"  create_xrc_srq_in  -> create_xrc_srq_out = create_xrc_srq, list "pages";
        0x706 "DESTROY_XRC_SRQ" destroy_xrc_srq_in -> 8                  = destroy_xrc_srq;
        0x707 "QUERY_XRC_SRQ"   query_xrc_srq_in   -> 0x50               = query_xrc_srq;
        0x708 "ARM_XRC_SRQ"     arm_xrc_srq_in     -> 8                  = arm_xrc_srq, modifiers 1..=1;
        0x717 "CREATE_XRQ"      create_xrq_in      -> create_xrq_out     = create_xrq, list "pages";
        0x718 "DESTROY_XRQ"     destroy_xrq_in     -> 8                  = destroy_xrq;
        0x719 "QUERY_XRQ"       query_xrq_in       -> query_xrq_out      = query_xrq;
        0x90c "CREATE_RMP"      create_rmp_in      -> create_rmp_out     = create_rmp, list "pages";
        0x90d "MODIFY_RMP"      modify_rmp_in      -> 8                  = modify_rmp;
        0x90e "DESTROY_RMP"     destroy_rmp_in     -> 8                  = destroy_rmp;
        0x90f "QUERY_RMP"       query_rmp_in       -> query_rmp_out      = query_rmp;
    }
}
