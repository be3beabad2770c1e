//! Commands and contexts of the port and its virtual ports.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The QUERY_HCA_VPORT_CONTEXT input.
    query_hca_vport_context_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        PORT_NUM 0x08 19 16;
        VPORT_NUMBER 0x08 15 0;
    }

    /// The QUERY_HCA_VPORT_CONTEXT output.
    query_hca_vport_context_out: 0x210 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        HCA_VPORT_CONTEXT bytes 0x10 0x200;
    }

    /// The MODIFY_HCA_VPORT_CONTEXT input.
    modify_hca_vport_context_in: 0x210 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        PORT_NUM 0x08 19 16;
        VPORT_NUMBER 0x08 15 0;
        HCA_VPORT_CONTEXT bytes 0x10 0x200;
    }

    /// The QUERY_HCA_VPORT_GID input.
    query_hca_vport_gid_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        PORT_NUM 0x08 19 16;
        VPORT_NUMBER 0x08 15 0;
        GID_INDEX 0x0c 15 0;
    }

    /// The QUERY_HCA_VPORT_GID output.
    query_hca_vport_gid_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        GIDS_NUM 0x0c 31 16;
        GID @ 0x10;
    }

    /// The QUERY_HCA_VPORT_PKEY input.
    query_hca_vport_pkey_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        PORT_NUM 0x08 19 16;
        VPORT_NUMBER 0x08 15 0;
        PKEY_INDEX 0x0c 15 0;
    }

    /// The QUERY_HCA_VPORT_PKEY output.
    query_hca_vport_pkey_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        PKEY @ 0x10;
    }

    /// The QUERY_VPORT_STATE input.
    query_vport_state_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        VPORT_NUMBER 0x08 15 0;
    }

    /// The QUERY_VPORT_STATE output.
    query_vport_state_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        MAX_TX_SPEED 0x0c 31 16;
        ADMIN_STATE 0x0c 7 4;
        STATE 0x0c 3 0;
    }

    /// The MODIFY_VPORT_STATE input.
    modify_vport_state_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        VPORT_NUMBER 0x08 15 0;
        MAX_TX_SPEED 0x0c 31 16;
        INGRESS_CONNECT 0x0c 15 15;
        EGRESS_CONNECT 0x0c 14 14;
        INGRESS_CONNECT_VALID 0x0c 13 13;
        EGRESS_CONNECT_VALID 0x0c 12 12;
        ADMIN_STATE 0x0c 7 4;
    }

    /// The QUERY_NIC_VPORT_CONTEXT input.
    query_nic_vport_context_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        VPORT_NUMBER 0x08 15 0;
        ALLOWED_LIST_TYPE 0x0c 26 24;
    }

    /// The QUERY_NIC_VPORT_CONTEXT output.
    query_nic_vport_context_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        NIC_VPORT_CONTEXT bytes 0x10 0x100;
    }

    /// The MODIFY_NIC_VPORT_CONTEXT input.
    modify_nic_vport_context_in: 0x200 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        VPORT_NUMBER 0x08 15 0;
        AFFILIATION 0x0c 13 13;
        DISABLE_UC_LOCAL_LB 0x0c 11 11;
        DISABLE_MC_LOCAL_LB 0x0c 10 10;
        NODE_GUID 0x0c 9 9;
        PORT_GUID 0x0c 8 8;
        MIN_INLINE 0x0c 7 7;
        MTU 0x0c 6 6;
        CHANGE_EVENT 0x0c 5 5;
        PROMISC 0x0c 4 4;
        PERMANENT_ADDRESS 0x0c 3 3;
        ADDRESSES_LIST 0x0c 2 2;
        ROCE_EN 0x0c 1 1;
        NIC_VPORT_CONTEXT bytes 0x100 0x100;
    }

    /// The QUERY_VPORT_COUNTER input.
    query_vport_counter_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        PORT_NUM 0x08 19 16;
        VPORT_NUMBER 0x08 15 0;
        CLEAR 0x18 31 31;
    }

    /// The QUERY_VPORT_COUNTER output.
    query_vport_counter_out: 0x210 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RECEIVED_ERRORS_PACKETS 0x10 63 0;
        RECEIVED_ERRORS_OCTETS 0x18 63 0;
        TRANSMIT_ERRORS_PACKETS 0x20 63 0;
        TRANSMIT_ERRORS_OCTETS 0x28 63 0;
        RECEIVED_IB_UNICAST_PACKETS 0x30 63 0;
        RECEIVED_IB_UNICAST_OCTETS 0x38 63 0;
        TRANSMITTED_IB_UNICAST_PACKETS 0x40 63 0;
        TRANSMITTED_IB_UNICAST_OCTETS 0x48 63 0;
        RECEIVED_IB_MULTICAST_PACKETS 0x50 63 0;
        RECEIVED_IB_MULTICAST_OCTETS 0x58 63 0;
        TRANSMITTED_IB_MULTICAST_PACKETS 0x60 63 0;
        TRANSMITTED_IB_MULTICAST_OCTETS 0x68 63 0;
        RECEIVED_ETH_BROADCAST_PACKETS 0x70 63 0;
        RECEIVED_ETH_BROADCAST_OCTETS 0x78 63 0;
        TRANSMITTED_ETH_BROADCAST_PACKETS 0x80 63 0;
        TRANSMITTED_ETH_BROADCAST_OCTETS 0x88 63 0;
        RECEIVED_ETH_UNICAST_PACKETS 0x90 63 0;
        RECEIVED_ETH_UNICAST_OCTETS 0x98 63 0;
        TRANSMITTED_ETH_UNICAST_PACKETS 0xa0 63 0;
        TRANSMITTED_ETH_UNICAST_OCTETS 0xa8 63 0;
        RECEIVED_ETH_MULTICAST_PACKETS 0xb0 63 0;
        RECEIVED_ETH_MULTICAST_OCTETS 0xb8 63 0;
        TRANSMITTED_ETH_MULTICAST_PACKETS 0xc0 63 0;
        TRANSMITTED_ETH_MULTICAST_OCTETS 0xc8 63 0;
        LOCAL_LOOPBACK_PACKETS 0xd0 63 0;
        LOCAL_LOOPBACK_OCTETS 0xd8 63 0;
    }

    /// The SET_ROCE_ADDRESS input.
    set_roce_address_in: 0x30 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        ROCE_ADDRESS_INDEX 0x08 31 16;
        VHCA_PORT_NUM 0x08 3 0;
        ROCE_ADDRESS bytes 0x10 0x20;
    }

    /// The QUERY_ROCE_ADDRESS input.
    query_roce_address_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        ROCE_ADDRESS_INDEX 0x08 31 16;
        VHCA_PORT_NUM 0x08 3 0;
    }

    /// The QUERY_ROCE_ADDRESS output.
    query_roce_address_out: 0x30 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ROCE_ADDRESS bytes 0x10 0x20;
    }

    /// The MAD_IFC input.
    mad_ifc_in: 0x110 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        REMOTE_LID 0x08 31 16;
        PLANE_INDEX 0x08 15 8;
        PORT 0x08 7 0;
        MAD bytes 0x10 0x100;
    }

    /// The MAD_IFC output.
    mad_ifc_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RESPONSE_MAD_PACKET bytes 0x10 0x100;
    }

    /// Context of an InfiniBand virtual port.
    hca_vport_context: 0x200 {
        FIELD_SELECT 0x00 31 0;
        SM_VIRT_AWARE 0x20 31 31;
        HAS_SMI 0x20 30 30;
        HAS_RAW 0x20 29 29;
        GRH_REQUIRED 0x20 28 28;
        NUM_PORT_PLANE 0x20 23 16;
        PORT_PHYSICAL_STATE 0x20 15 12;
        VPORT_STATE_POLICY 0x20 11 8;
        PORT_STATE 0x20 7 4;
        VPORT_STATE 0x20 3 0;
        SYSTEM_IMAGE_GUID 0x28 63 0;
        PORT_GUID 0x30 63 0;
        NODE_GUID 0x38 63 0;
        CAP_MASK1 0x40 31 0;
        CAP_MASK1_FIELD_SELECT 0x44 31 0;
        CAP_MASK2 0x48 31 0;
        CAP_MASK2_FIELD_SELECT 0x4c 31 0;
        LID 0x60 31 16;
        INIT_TYPE_REPLY 0x60 11 8;
        LMC 0x60 7 5;
        SUBNET_TIMEOUT 0x60 4 0;
        SM_LID 0x64 31 16;
        SM_SL 0x64 15 12;
        QKEY_VIOLATION_COUNTER 0x68 31 16;
        PKEY_VIOLATION_COUNTER 0x68 15 0;
    }

    /// Context of an Ethernet virtual port.
    nic_vport_context: 0x100 {
        MIN_WQE_INLINE_MODE 0x00 26 24;
        DISABLE_MC_LOCAL_LB 0x00 2 2;
        DISABLE_UC_LOCAL_LB 0x00 1 1;
        ROCE_EN 0x00 0 0;
        ARM_CHANGE_EVENT 0x04 31 31;
        EVENT_ON_MTU 0x04 4 4;
        EVENT_ON_PROMISC_CHANGE 0x04 3 3;
        EVENT_ON_VLAN_CHANGE 0x04 2 2;
        EVENT_ON_MC_ADDRESS_CHANGE 0x04 1 1;
        EVENT_ON_UC_ADDRESS_CHANGE 0x04 0 0;
        VHCA_ID_TYPE 0x08 31 31;
        AFFILIATION_CRITERIA 0x08 19 16;
        AFFILIATED_VHCA_ID 0x08 15 0;
        SD_GROUP 0x20 30 28;
        SD_GROUP_SIZE 0x20 23 16;
        MTU 0x24 15 0;
        SYSTEM_IMAGE_GUID 0x28 63 0;
        PORT_GUID 0x30 63 0;
        NODE_GUID 0x38 63 0;
        QKEY_VIOLATION_COUNTER 0x68 31 16;
        PROMISC_UC 0xf0 31 31;
        PROMISC_MC 0xf0 30 30;
        PROMISC_ALL 0xf0 29 29;
        ALLOWED_LIST_TYPE 0xf0 26 24;
        ALLOWED_LIST_SIZE 0xf0 15 0;
        MAC_ADDR_47_32 0xf4 15 0;
        MAC_ADDR_31_0 0xf8 31 0;
        CURRENT_UC_MAC_ADDRESS @ 0x100;
    }

    /// An entry of the RoCE address table.
    roce_addr_layout: 0x20 {
        SOURCE_L3_ADDRESS bytes 0x0 0x10;
        VLAN_VALID 0x10 28 28;
        VLAN_ID 0x10 27 16;
        SOURCE_MAC_47_32 0x10 15 0;
        SOURCE_MAC_31_0 0x14 31 0;
        ROCE_L3_TYPE 0x18 11 8;
        ROCE_VERSION 0x18 7 0;
    }
}
