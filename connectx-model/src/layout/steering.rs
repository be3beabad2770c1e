//! Flow steering commands and contexts.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_FLOW_TABLE input.
    create_flow_table_in: 0x40 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        REFORMAT_EN 0x18 31 31;
        DECAP_EN 0x18 30 30;
        SW_OWNER 0x18 29 29;
        TERMINATION_TABLE 0x18 28 28;
        TABLE_MISS_ACTION 0x18 27 24;
        LEVEL 0x18 23 16;
        RTC_VALID 0x18 15 15;
        LOG_SIZE 0x18 7 0;
        TABLE_MISS_ID 0x1c 23 0;
        LAG_MASTER_NEXT_TABLE_ID 0x20 23 0;
        SW_OWNER_ICM_ROOT_1 0x30 63 0;
        SW_OWNER_ICM_ROOT_0 0x38 63 0;
        RTC_ID_0 0x30 31 0;
        RTC_ID_1 0x34 31 0;
    }

    /// The CREATE_FLOW_TABLE output.
    create_flow_table_out: 0x10 {
        STATUS 0x00 31 24;
        ICM_ADDRESS_63_40 0x00 23 0;
        SYNDROME 0x04 31 0;
        ICM_ADDRESS_39_32 0x08 31 24;
        TABLE_ID 0x08 23 0;
        ICM_ADDRESS_31_0 0x0c 31 0;
    }

    /// The MODIFY_FLOW_TABLE input.
    modify_flow_table_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        MODIFY_FIELD_SELECT 0x0c 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
        REFORMAT_EN 0x18 31 31;
        DECAP_EN 0x18 30 30;
        SW_OWNER 0x18 29 29;
        TERMINATION_TABLE 0x18 28 28;
        TABLE_MISS_ACTION 0x18 27 24;
        LEVEL 0x18 23 16;
        RTC_VALID 0x18 15 15;
        LOG_SIZE 0x18 7 0;
        TABLE_MISS_ID 0x1c 23 0;
        LAG_MASTER_NEXT_TABLE_ID 0x20 23 0;
        SW_OWNER_ICM_ROOT_1 0x30 63 0;
        SW_OWNER_ICM_ROOT_0 0x38 63 0;
        RTC_ID_0 0x30 31 0;
        RTC_ID_1 0x34 31 0;
    }

    /// The DESTROY_FLOW_TABLE input.
    destroy_flow_table_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
    }

    /// The QUERY_FLOW_TABLE input.
    query_flow_table_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        TABLE_TYPE 0x10 31 24;
        TABLE_ID 0x14 23 0;
    }

    /// The QUERY_FLOW_TABLE output.
    query_flow_table_out: 0x40 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        REFORMAT_EN 0x18 31 31;
        DECAP_EN 0x18 30 30;
        SW_OWNER 0x18 29 29;
        TERMINATION_TABLE 0x18 28 28;
        TABLE_MISS_ACTION 0x18 27 24;
        LEVEL 0x18 23 16;
        RTC_VALID 0x18 15 15;
        LOG_SIZE 0x18 7 0;
        TABLE_MISS_ID 0x1c 23 0;
        LAG_MASTER_NEXT_TABLE_ID 0x20 23 0;
        SW_OWNER_ICM_ROOT_1 0x30 63 0;
        SW_OWNER_ICM_ROOT_0 0x38 63 0;
        RTC_ID_0 0x30 31 0;
        RTC_ID_1 0x34 31 0;
    }

    /// The CREATE_FLOW_GROUP input.
    create_flow_group_in: 0x400 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        GROUP_TYPE 0x10 19 16;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
        SOURCE_ESWITCH_OWNER_VHCA_ID_VALID 0x18 31 31;
        START_FLOW_INDEX 0x1c 31 0;
        END_FLOW_INDEX 0x24 31 0;
        MATCH_DEFINER_ID 0x28 15 0;
        MATCH_CRITERIA_ENABLE 0x3c 7 0;
        MATCH_CRITERIA bytes 0x40 0x200;
    }

    /// The CREATE_FLOW_GROUP output.
    create_flow_group_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        GROUP_ID 0x08 23 0;
    }

    /// The DESTROY_FLOW_GROUP input.
    destroy_flow_group_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
        GROUP_ID 0x18 31 0;
    }

    /// The SET_FTE input.
    set_fte_in: 0x340 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
        IGNORE_FLOW_LEVEL 0x18 31 31;
        MODIFY_ENABLE_MASK 0x18 7 0;
        FLOW_INDEX 0x20 31 0;
        FLOW_CONTEXT bytes 0x40 0x300;
    }

    /// The DELETE_FTE input.
    delete_fte_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        TABLE_TYPE 0x10 31 24;
        ESWITCH_OWNER_VHCA_ID 0x10 15 0;
        TABLE_ID 0x14 23 0;
        FLOW_INDEX 0x20 31 0;
    }

    /// The SET_FLOW_TABLE_ROOT input.
    set_flow_table_root_in: 0x40 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        OTHER_ESWITCH 0x08 30 30;
        VPORT_NUMBER 0x08 15 0;
        ESWITCH_OWNER_VHCA_ID 0x0c 15 0;
        TABLE_TYPE 0x10 31 24;
        TABLE_OF_OTHER_VPORT 0x10 16 16;
        TABLE_VPORT_NUMBER 0x10 15 0;
        TABLE_ID 0x14 23 0;
        UNDERLAY_QPN 0x18 23 0;
        TABLE_ESWITCH_OWNER_VHCA_ID_VALID 0x1c 31 31;
        TABLE_ESWITCH_OWNER_VHCA_ID 0x1c 15 0;
    }

    /// The ALLOC_FLOW_COUNTER input.
    alloc_flow_counter_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        FLOW_COUNTER_BULK_LOG_SIZE 0x0c 12 8;
        FLOW_COUNTER_BULK 0x0c 7 0;
    }

    /// The ALLOC_FLOW_COUNTER output.
    alloc_flow_counter_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        FLOW_COUNTER_ID 0x08 31 0;
    }

    /// The DEALLOC_FLOW_COUNTER input.
    dealloc_flow_counter_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        FLOW_COUNTER_ID 0x08 31 0;
    }

    /// The QUERY_FLOW_COUNTER input.
    query_flow_counter_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        CLEAR 0x18 31 31;
        NUM_OF_COUNTERS 0x18 15 0;
        FLOW_COUNTER_ID 0x1c 31 0;
    }

    /// The QUERY_FLOW_COUNTER output.
    query_flow_counter_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        FLOW_STATISTICS @ 0x10;
    }

    /// The context of a flow entry, with its actions. A list of destinations and then of counters
    /// follows.
    flow_context: 0x300 {
        PUSH_VLAN bytes 0x0 0x4;
        GROUP_ID 0x04 31 0;
        FLOW_TAG 0x08 23 0;
        ACTION 0x0c 15 0;
        EXTENDED_DESTINATION 0x10 31 31;
        UPLINK_HAIRPIN_EN 0x10 30 30;
        FLOW_SOURCE 0x10 29 28;
        ENCRYPT_DECRYPT_TYPE 0x10 27 24;
        DESTINATION_LIST_SIZE 0x10 23 0;
        FLOW_COUNTER_LIST_SIZE 0x14 23 0;
        PACKET_REFORMAT_ID 0x18 31 0;
        MODIFY_HEADER_ID 0x1c 31 0;
        PUSH_VLAN_2 bytes 0x20 0x4;
        ENCRYPT_DECRYPT_OBJ_ID 0x24 31 0;
        MATCH_VALUE bytes 0x40 0x200;
        EXECUTE_ASO bytes 0x240 0x20;
        DESTINATION @ 0x300;
    }

    /// One destination of a flow entry.
    dest_format_struct: 0x8 {
        DESTINATION_TYPE 0x00 31 24;
        DESTINATION_ID 0x00 23 0;
        DESTINATION_ESWITCH_OWNER_VHCA_ID_VALID 0x04 31 31;
        PACKET_REFORMAT 0x04 30 30;
        DESTINATION_ESWITCH_OWNER_VHCA_ID 0x04 15 0;
    }

    /// Layer 2 to 4 header fields to match: the first part of match criteria and match values.
    fte_match_set_lyr_2_4: 0x40 {
        SMAC bytes 0x0 0x6;
        ETHERTYPE 0x04 15 0;
        DMAC bytes 0x8 0x6;
        FIRST_PRIO 0x0c 15 13;
        FIRST_CFI 0x0c 12 12;
        FIRST_VID 0x0c 11 0;
        IP_PROTOCOL 0x10 31 24;
        IP_DSCP 0x10 23 18;
        IP_ECN 0x10 17 16;
        CVLAN_TAG 0x10 15 15;
        SVLAN_TAG 0x10 14 14;
        FRAG 0x10 13 13;
        IP_VERSION 0x10 12 9;
        TCP_FLAGS 0x10 8 0;
        TCP_SPORT 0x14 31 16;
        TCP_DPORT 0x14 15 0;
        TTL_HOPLIMIT 0x18 7 0;
        UDP_SPORT 0x1c 31 16;
        UDP_DPORT 0x1c 15 0;
        SRC_IP bytes 0x20 0x10;
        DST_IP bytes 0x30 0x10;
    }

    /// Further fields to match: the second part of match criteria and match values.
    fte_match_set_misc: 0x40 {
        OUTER_IPV6_FLOW_LABEL 0x1c 19 0;
    }
}
