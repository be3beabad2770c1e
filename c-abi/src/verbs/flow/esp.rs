//! Reading the attributes of an ESP flow action.
//!
//! # Safety
//! Each pointer in the attributes is null or points to as many bytes as the attributes state. The
//! pointers to the security association and to the outer header point to their structs.
#![allow(unsafe_code)]

use verbs_core::Errno;
use verbs_core::types::{
    AesKey, EspAttr, EspEncap, EspFlags, EspIvAlgo, EspKeymat, EspReplay, FlowActionEspAttr,
    FlowIpv4ExtFilter,
};

use super::spec::{ipv4_ext, ipv6};
use crate::abi::c::{
    IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM, IBV_FLOW_ACTION_ESP_MASK_ESN, IBV_FLOW_ACTION_ESP_REPLAY_BMP,
    IBV_FLOW_ACTION_ESP_REPLAY_NONE, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV6, ibv_flow_action_esp_attr,
    ibv_flow_action_esp_encap, ibv_flow_action_esp_keymat_aes_gcm, ibv_flow_action_esp_replay_bmp,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter,
};

/// Converts the attributes of an ESP flow action from C.
///
/// # Errors
/// `EOPNOTSUPP` for unknown members and protocols, and for lists of headers; `EINVAL` for a wrong
/// length.
///
/// # Safety
/// See the module documentation.
pub(super) unsafe fn attr_from_c(attr: &ibv_flow_action_esp_attr) -> Result<FlowActionEspAttr, Errno> {
    if attr.comp_mask & !IBV_FLOW_ACTION_ESP_MASK_ESN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        Ok(FlowActionEspAttr {
            esp_attr: attr.esp_attr.as_ref().map(|esp| EspAttr {
                spi: esp.spi,
                seq: esp.seq,
                tfc_pad: esp.tfc_pad,
                flags: EspFlags::from_bits_retain(esp.flags),
                hard_limit_pkts: esp.hard_limit_pkts,
            }),
            esn: (attr.comp_mask & IBV_FLOW_ACTION_ESP_MASK_ESN != 0).then_some(attr.esn),
            keymat: keymat(attr)?,
            replay: replay(attr)?,
            encap: attr.esp_encap.as_ref().map(|link| encap(link)).transpose()?,
        })
    }
}

/// Reads the key material.
///
/// # Safety
/// See the module documentation.
unsafe fn keymat(attr: &ibv_flow_action_esp_attr) -> Result<Option<EspKeymat>, Errno> {
    if attr.keymat_ptr.is_null() {
        return Ok(None);
    }
    if attr.keymat_proto != IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM {
        return Err(Errno::OPNOTSUPP);
    }
    if usize::from(attr.keymat_len) != size_of::<ibv_flow_action_esp_keymat_aes_gcm>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the length equals the size of the struct.
    let keymat = unsafe { attr.keymat_ptr.cast::<ibv_flow_action_esp_keymat_aes_gcm>().read_unaligned() };
    // The key is a byte array stored as words.
    let mut key = [0; 32];
    for (bytes, word) in key.as_chunks_mut().0.iter_mut().zip(keymat.aes_key) {
        *bytes = word.to_ne_bytes();
    }
    Ok(Some(EspKeymat {
        iv: keymat.iv,
        iv_algo: EspIvAlgo(keymat.iv_algo),
        salt: keymat.salt,
        icv_len: keymat.icv_len,
        aes_key: aes_key(&key, keymat.key_len).ok_or(Errno::INVAL)?,
    }))
}

/// Returns a key of `length` bytes, if AES has keys of that length.
fn aes_key(key: &[u8; 32], length: u32) -> Option<AesKey> {
    match length {
        16 => key.first_chunk().copied().map(AesKey::Bits128),
        24 => key.first_chunk().copied().map(AesKey::Bits192),
        32 => Some(AesKey::Bits256(*key)),
        _ => None,
    }
}

/// Reads the replay protection.
///
/// # Safety
/// See the module documentation.
unsafe fn replay(attr: &ibv_flow_action_esp_attr) -> Result<Option<EspReplay>, Errno> {
    if attr.replay_ptr.is_null() {
        return Ok(None);
    }
    let length = match attr.replay_proto {
        IBV_FLOW_ACTION_ESP_REPLAY_NONE => 0,
        IBV_FLOW_ACTION_ESP_REPLAY_BMP => size_of::<ibv_flow_action_esp_replay_bmp>(),
        _ => return Err(Errno::OPNOTSUPP),
    };
    if usize::from(attr.replay_len) != length {
        return Err(Errno::INVAL);
    }
    if length == 0 {
        return Ok(Some(EspReplay::None));
    }
    // SAFETY: the length equals the size of the struct.
    let bitmap = unsafe { attr.replay_ptr.cast::<ibv_flow_action_esp_replay_bmp>().read_unaligned() };
    Ok(Some(EspReplay::Bitmap { size: bitmap.size }))
}

/// Reads the outer header. An IPv4 header may end after the addresses.
///
/// # Safety
/// See the module documentation.
unsafe fn encap(link: &ibv_flow_action_esp_encap) -> Result<EspEncap, Errno> {
    const SHORT: usize = size_of::<ibv_flow_ipv4_filter>();
    const IPV4: usize = size_of::<ibv_flow_ipv4_ext_filter>();
    const IPV6: usize = size_of::<ibv_flow_ipv6_filter>();
    // SAFETY: both members of the unions are the bytes of an address.
    let (header, next) = unsafe { (link.val_ptr.ptr, link.next_ptr.data_u64) };
    if next != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if header.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the header has the length stated in the link.
    unsafe {
        match (u32::from(link.type_), usize::from(link.len)) {
            (IBV_FLOW_SPEC_IPV4, IPV4) => {
                Ok(EspEncap::Ipv4(ipv4_ext(&header.cast::<ibv_flow_ipv4_ext_filter>().read_unaligned())))
            }
            (IBV_FLOW_SPEC_IPV4, SHORT) => {
                let ibv_flow_ipv4_filter { src_ip, dst_ip } =
                    header.cast::<ibv_flow_ipv4_filter>().read_unaligned();
                Ok(EspEncap::Ipv4(FlowIpv4ExtFilter {
                    src_ip: src_ip.to_ne_bytes().into(),
                    dst_ip: dst_ip.to_ne_bytes().into(),
                    ..FlowIpv4ExtFilter::default()
                }))
            }
            (IBV_FLOW_SPEC_IPV6, IPV6) => {
                Ok(EspEncap::Ipv6(ipv6(&header.cast::<ibv_flow_ipv6_filter>().read_unaligned())))
            }
            _ => Err(Errno::INVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use super::*;
    use crate::abi::c::{
        IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT, IBV_FLOW_SPEC_IPV4_EXT, ibv_flow_action_esp, uapi_ptr,
    };

    const NOTHING: ibv_flow_action_esp_attr = ibv_flow_action_esp_attr {
        esp_attr: null_mut(),
        keymat_proto: 77,
        keymat_len: 77,
        keymat_ptr: null_mut(),
        replay_proto: 77,
        replay_len: 77,
        replay_ptr: null_mut(),
        esp_encap: null_mut(),
        comp_mask: 0,
        esn: 5,
    };

    fn read(attr: &ibv_flow_action_esp_attr) -> Result<FlowActionEspAttr, Errno> {
        // SAFETY: the tests pass pointers to as many bytes as the attributes state.
        unsafe { attr_from_c(attr) }
    }

    #[test]
    fn an_attribute_that_is_null_or_not_in_the_mask_is_left_out() {
        assert_eq!(read(&NOTHING), Ok(FlowActionEspAttr::default()));
        let esn = ibv_flow_action_esp_attr { comp_mask: IBV_FLOW_ACTION_ESP_MASK_ESN, ..NOTHING };
        assert_eq!(read(&esn), Ok(FlowActionEspAttr { esn: Some(5), ..Default::default() }));
        let unknown = ibv_flow_action_esp_attr { comp_mask: 2, ..NOTHING };
        assert_eq!(read(&unknown), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_security_association_keeps_its_numbers() {
        let flags = IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT;
        let mut esp = ibv_flow_action_esp { spi: 1, seq: 2, tfc_pad: 3, flags, hard_limit_pkts: 4 };
        let attr = read(&ibv_flow_action_esp_attr { esp_attr: &raw mut esp, ..NOTHING }).unwrap();
        let expected = EspAttr { spi: 1, seq: 2, tfc_pad: 3, flags: EspFlags::ENCRYPT, hard_limit_pkts: 4 };
        assert_eq!(attr, FlowActionEspAttr { esp_attr: Some(expected), ..Default::default() });
    }

    #[test]
    fn a_key_has_the_length_that_it_states_or_is_refused() {
        let bytes: [u8; 32] = core::array::from_fn(|index| index as u8);
        let key = core::array::from_fn(|word| u32::from_ne_bytes(bytes[4 * word..][..4].try_into().unwrap()));
        let material = |key_len| ibv_flow_action_esp_keymat_aes_gcm {
            iv: 1,
            iv_algo: 0,
            salt: 2,
            icv_len: 16,
            key_len,
            aes_key: key,
        };
        let with = |keymat_len, keymat_proto, key_len| {
            let mut material = material(key_len);
            let keymat_ptr = (&raw mut material).cast();
            read(&ibv_flow_action_esp_attr { keymat_proto, keymat_len, keymat_ptr, ..NOTHING })
                .map(|attr| attr.keymat.unwrap())
        };
        for (key_len, expected) in [
            (16, AesKey::Bits128(bytes[..16].try_into().unwrap())),
            (24, AesKey::Bits192(bytes[..24].try_into().unwrap())),
            (32, AesKey::Bits256(bytes)),
        ] {
            let keymat = with(56, 0, key_len).unwrap();
            assert!(keymat.aes_key == expected, "{key_len}");
            assert_eq!((keymat.iv, keymat.iv_algo, keymat.salt), (1, EspIvAlgo::SEQ, 2));
            assert_eq!(keymat.icv_len, 16);
        }
        for key_len in [0, 15, 17, 33, u32::MAX] {
            assert_eq!(with(56, 0, key_len), Err(Errno::INVAL), "{key_len}");
        }
        for keymat_len in [0, 55, 57] {
            assert_eq!(with(keymat_len, 0, 16), Err(Errno::INVAL), "{keymat_len}");
        }
        assert_eq!(with(56, 1, 16), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn replay_protection_is_a_bitmap_or_none() {
        let mut bitmap = ibv_flow_action_esp_replay_bmp { size: 64 };
        let replay_ptr = (&raw mut bitmap).cast();
        let with = |replay_proto, replay_len| {
            read(&ibv_flow_action_esp_attr { replay_proto, replay_len, replay_ptr, ..NOTHING })
                .map(|attr| attr.replay)
        };
        assert_eq!(with(0, 0), Ok(Some(EspReplay::None)));
        assert_eq!(with(1, 4), Ok(Some(EspReplay::Bitmap { size: 64 })));
        assert_eq!((with(0, 4), with(1, 3)), (Err(Errno::INVAL), Err(Errno::INVAL)));
        assert_eq!(with(2, 4), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn the_outer_header_is_one_of_ipv4_or_ipv6() {
        let numbers: [u8; 40] = core::array::from_fn(|index| index as u8);
        let with = |spec_type: u32, len, data_u64| {
            let mut link = ibv_flow_action_esp_encap {
                val_ptr: uapi_ptr { ptr: numbers.as_ptr().cast_mut().cast() },
                next_ptr: uapi_ptr { data_u64 },
                len,
                type_: spec_type as u16,
            };
            read(&ibv_flow_action_esp_attr { esp_encap: &raw mut link, ..NOTHING })
                .map(|attr| attr.encap.unwrap())
        };
        let short = FlowIpv4ExtFilter {
            src_ip: [0, 1, 2, 3].into(),
            dst_ip: [4, 5, 6, 7].into(),
            ..Default::default()
        };
        assert_eq!(with(IBV_FLOW_SPEC_IPV4, 8, 0), Ok(EspEncap::Ipv4(short)));
        let long = FlowIpv4ExtFilter { proto: 8, tos: 9, ttl: 10, flags: 11, ..short };
        assert_eq!(with(IBV_FLOW_SPEC_IPV4, 12, 0), Ok(EspEncap::Ipv4(long)));
        let Ok(EspEncap::Ipv6(ipv6)) = with(IBV_FLOW_SPEC_IPV6, 40, 0) else { panic!("no IPv6") };
        assert_eq!((ipv6.flow_label, ipv6.hop_limit), (0x2021_2223, 38));
        for (spec_type, len) in
            [(IBV_FLOW_SPEC_IPV4, 11), (IBV_FLOW_SPEC_IPV6, 36), (IBV_FLOW_SPEC_IPV4_EXT, 12), (0x20, 12)]
        {
            assert_eq!(with(spec_type, len, 0), Err(Errno::INVAL), "{spec_type:#x} of {len} bytes");
        }
        assert_eq!(with(IBV_FLOW_SPEC_IPV4, 12, 1), Err(Errno::OPNOTSUPP), "a second header");
    }
}
