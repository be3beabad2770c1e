//! Flow actions: IPsec ESP offload.
//!
//! verbs.h takes these types from the kernel's `rdma/ib_user_ioctl_verbs.h` and renames them.

use core::ffi::{c_uint, c_void};

use super::ibv_context;
use super::macros::c_types;

/// A pointer in a 64-bit field, as `RDMA_UAPI_PTR` declares it.
#[repr(C, align(8))]
pub union uapi_ptr<T> {
    pub ptr: *mut T,
    pub data_u64: u64,
}

// Derived impls would require the same traits of `T`.
impl<T> Clone for uapi_ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for uapi_ptr<T> {}

impl<T> core::fmt::Debug for uapi_ptr<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("uapi_ptr").finish_non_exhaustive()
    }
}

c_types! {
    /// A flow action.
    pub struct ibv_flow_action {
        context: *mut ibv_context,
    }

    /// The valid fields of [`ibv_flow_action_esp_attr`].
    pub enum ibv_flow_action_esp_mask: c_uint {
        IBV_FLOW_ACTION_ESP_MASK_ESN = 1 << 0,
    }

    /// The attributes of an ESP action (`ibv_flow_action_esp(3)`).
    pub struct ibv_flow_action_esp_attr {
        esp_attr: *mut ibv_flow_action_esp,
        keymat_proto: ibv_flow_action_esp_keymat,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: ibv_flow_action_esp_replay,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut ibv_flow_action_esp_encap,
        comp_mask: u32,
        esn: u32,
    }

    /// The kind of key material.
    pub enum ibv_flow_action_esp_keymat: c_uint {
        IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM = 0,
    }

    /// The source of initialisation vectors.
    pub enum ibv_flow_action_esp_keymat_aes_gcm_iv_algo: c_uint {
        IBV_FLOW_ACTION_IV_ALGO_SEQ = 0,
    }

    /// Key material for AES-GCM.
    pub struct ibv_flow_action_esp_keymat_aes_gcm {
        iv: u64,
        iv_algo: u32,
        salt: u32,
        icv_len: u32,
        key_len: u32,
        aes_key: [u32; 8],
    }

    /// The kind of replay protection.
    pub enum ibv_flow_action_esp_replay: c_uint {
        IBV_FLOW_ACTION_ESP_REPLAY_NONE = 0,
        IBV_FLOW_ACTION_ESP_REPLAY_BMP = 1,
    }

    /// Replay protection with a bitmap.
    pub struct ibv_flow_action_esp_replay_bmp {
        size: u32,
    }

    /// Options for an ESP action; the zero values are the defaults.
    pub enum ibv_flow_action_esp_flags: c_uint {
        IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = 1 << 0,
        IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT = 1 << 1,
        IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT = 1 << 2,
        IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = 1 << 3,
    }

    /// A list of the headers that encapsulate the payload in tunnel mode.
    pub struct ibv_flow_action_esp_encap {
        val_ptr: uapi_ptr<c_void>,
        next_ptr: uapi_ptr<ibv_flow_action_esp_encap>,
        len: u16,
        type_: u16,
    }

    /// The parameters of an ESP action.
    pub struct ibv_flow_action_esp {
        spi: u32,
        seq: u32,
        tfc_pad: u32,
        flags: u32,
        hard_limit_pkts: u64,
    }
}
