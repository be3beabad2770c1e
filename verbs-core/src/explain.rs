//! Checks that name the cause of a rejected value, shared by all providers.
//!
//! Each function returns the [`Cause`] as an error if a value is at fault, and `Ok` otherwise. A
//! provider that is itself the device (soft) calls the functions before it acts; a provider of a
//! kernel device calls them after the kernel has returned `EINVAL` (`kernel/limits.rs`). The
//! exception is [`path_mtu`], which `modify_qp` calls first because rxe accepts invalid codes.
//!
//! [`numbers_fit`] is for a provider's callers. Devices truncate numbers to the width of their
//! fields, so a program would observe numbers that it did not request. The Rust API rejects such
//! numbers.

use crate::errno::Errno;
use crate::error::Cause;
use crate::types::{
    AccessFlags, AhAttr, CqWcFlags, DeviceAttr, Gid, LinkLayer, QpAttr, QpAttrMask, QpCap, QpState, QpType,
};

/// The maximum queue pair number and packet sequence number: both have 24 bits on the wire.
pub const BITS_24: u32 = 0xff_ffff;

/// Checks that the value `asked` is within `min..=max`.
///
/// # Errors
/// [`Cause::Limit`].
pub fn within(name: &'static str, asked: u64, min: u64, max: u64) -> Result<(), Cause> {
    if (min..=max).contains(&asked) { Ok(()) } else { Err(Cause::Limit { name, asked, min, max }) }
}

/// Checks the new size of a ring that must keep `held` entries. The number of slots in a ring is a
/// power of two and exceeds the number of entries by one, so a size just below `held` may round up
/// to enough slots.
///
/// # Errors
/// The errors of [`within`], if the ring would have too few slots or exceed `max` entries.
pub fn resized(name: &'static str, asked: u64, held: u32, max: u64) -> Result<(), Cause> {
    let least = (held + 1).next_power_of_two() / 2;
    within(name, asked, least.max(1).into(), max)
}

/// Checks that the numbers for `modify_qp` fit into the protocol's fields.
///
/// # Errors
/// [`Cause::Limit`] with the name of the attribute.
pub fn numbers_fit(attr: &QpAttr, mask: QpAttrMask) -> Result<(), Cause> {
    let bits_24 = |flag, name, asked: u32| {
        if mask.contains(flag) { within(name, asked.into(), 0, BITS_24.into()) } else { Ok(()) }
    };
    bits_24(QpAttrMask::RQ_PSN, "rq_psn", attr.rq_psn)?;
    bits_24(QpAttrMask::SQ_PSN, "sq_psn", attr.sq_psn)?;
    bits_24(QpAttrMask::DEST_QPN, "dest_qp_num", attr.dest_qp_num)?;
    at_most(mask, QpAttrMask::TIMEOUT, "timeout", attr.timeout, BITS_5)?;
    at_most(mask, QpAttrMask::ALT_PATH, "alt_timeout", attr.alt_timeout, BITS_5)?;
    at_most(mask, QpAttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt, BITS_3)?;
    at_most(mask, QpAttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry, BITS_3)?;
    at_most(mask, QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, BITS_5)
}

/// Returns the attributes with their numbers truncated to the width of the protocol's fields, as
/// ConnectX devices and their driver do.
#[must_use]
pub const fn numbers_cut(attr: &QpAttr) -> QpAttr {
    QpAttr {
        rq_psn: attr.rq_psn & BITS_24,
        sq_psn: attr.sq_psn & BITS_24,
        dest_qp_num: attr.dest_qp_num & BITS_24,
        timeout: attr.timeout & BITS_5 as u8,
        alt_timeout: attr.alt_timeout & BITS_5 as u8,
        retry_cnt: attr.retry_cnt & BITS_3 as u8,
        rnr_retry: attr.rnr_retry & BITS_3 as u8,
        min_rnr_timer: attr.min_rnr_timer & BITS_5 as u8,
        ..*attr
    }
}

/// Checks that the path MTU is valid.
///
/// # Errors
/// [`Cause::Mtu`].
pub fn path_mtu(attr: &QpAttr, mask: QpAttrMask) -> Result<(), Cause> {
    if mask.contains(QpAttrMask::PATH_MTU) && attr.path_mtu.bytes().is_none() {
        return Err(Cause::Mtu { mtu: attr.path_mtu });
    }
    Ok(())
}

fn at_most(mask: QpAttrMask, flag: QpAttrMask, name: &'static str, asked: u8, max: u32) -> Result<(), Cause> {
    if mask.contains(flag) { within(name, asked.into(), 0, max.into()) } else { Ok(()) }
}

/// Checks that the numbers for `modify_qp` are within the device's limits.
///
/// # Errors
/// [`Cause::Limit`] with the name of the attribute.
pub fn numbers_of_device(attr: &QpAttr, mask: QpAttrMask, device: &DeviceAttr) -> Result<(), Cause> {
    let (initiator, target) = (device.max_qp_init_rd_atom, device.max_qp_rd_atom);
    at_most(mask, QpAttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic, initiator)?;
    at_most(mask, QpAttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic, target)
}

/// Returns the errno for a queue pair type the device does not support: `EOPNOTSUPP`, or `EINVAL`
/// for an unknown type.
#[must_use]
pub const fn without_type(qp_type: QpType) -> Errno {
    match qp_type {
        QpType::RC
        | QpType::UC
        | QpType::UD
        | QpType::RAW_PACKET
        | QpType::XRC_SEND
        | QpType::XRC_RECV
        | QpType::DRIVER => Errno::OPNOTSUPP,
        _ => Errno::INVAL,
    }
}

/// Checks that the current state passed to `modify_qp` (`cur_qp_state`) is the queue pair's state
/// `at`.
///
/// # Errors
/// [`Cause::Other`] with both states.
pub fn present_state(at: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Cause> {
    let given = attr.cur_qp_state;
    if !mask.contains(QpAttrMask::CUR_STATE) || given == at {
        return Ok(());
    }
    Err(Cause::Other { reason: format!("cur_qp_state is {given}, but the queue pair is in {at}").into() })
}

/// Checks that a queue pair can join the multicast group `gid`.
///
/// # Errors
/// - [`Cause::CallOfType`]: the service is not UD.
/// - [`Cause::NotMulticast`]: the address is outside the multicast ranges.
pub fn group(qp_type: QpType, gid: &Gid) -> Result<(), Cause> {
    if qp_type != QpType::UD {
        return Err(Cause::CallOfType { qp_type, needs: "only UD queue pairs join multicast groups" });
    }
    if gid.is_multicast() { Ok(()) } else { Err(Cause::NotMulticast { gid: *gid }) }
}

/// Checks that the device supports the requested completion fields.
///
/// # Errors
/// [`Cause::CqWcFlags`] with the fields missing from `supported`.
pub fn wc_flags(asked: CqWcFlags, supported: CqWcFlags) -> Result<(), Cause> {
    let wc_flags = asked - supported;
    if wc_flags.is_empty() { Ok(()) } else { Err(Cause::CqWcFlags { wc_flags }) }
}

/// Checks that the port of a path exists.
///
/// # Errors
/// [`Cause::Limit`] with the name `ah_attr.port_num`.
pub fn path_port(attr: &AhAttr, phys_port_cnt: u8) -> Result<(), Cause> {
    within(PATH_PORT, attr.port_num.into(), 1, phys_port_cnt.into())
}

/// Checks that a path has a GRH if its port needs one.
///
/// # Errors
/// [`Cause::NoGrh`].
pub fn path_grh(attr: &AhAttr, link_layer: LinkLayer) -> Result<(), Cause> {
    if attr.grh.is_none() && link_layer == LinkLayer::ETHERNET {
        return Err(Cause::NoGrh { port_num: attr.port_num });
    }
    Ok(())
}

/// Checks that memory region rights do not contradict each other.
///
/// # Errors
/// [`Cause::NeedsLocalWrite`]: a peer could write memory that the device itself must not write.
pub fn region_access(access: AccessFlags) -> Result<(), Cause> {
    let writing = access & AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC);
    if writing.is_empty() || access.contains(AccessFlags::LOCAL_WRITE) {
        return Ok(());
    }
    Err(Cause::NeedsLocalWrite { access: writing })
}

/// Checks that a queue pair capacity is not too large. `max_inline` is the provider's limit on
/// inline data; `None` skips the check of that limit.
///
/// # Errors
/// [`Cause::Limit`] with the name of the first member that is too large.
pub fn capacity(cap: &QpCap, device: &DeviceAttr, max_inline: Option<u32>) -> Result<(), Cause> {
    within("max_send_wr", cap.max_send_wr.into(), 0, device.max_qp_wr.into())?;
    within("max_recv_wr", cap.max_recv_wr.into(), 0, device.max_qp_wr.into())?;
    within("max_send_sge", cap.max_send_sge.into(), 0, device.max_sge.into())?;
    within("max_recv_sge", cap.max_recv_sge.into(), 0, device.max_sge.into())?;
    max_inline.map_or(Ok(()), |max| within("max_inline_data", cap.max_inline_data.into(), 0, max.into()))
}

/// The name of a path's port number, to distinguish it from the queue pair's own `port_num`.
pub(crate) const PATH_PORT: &str = "ah_attr.port_num";

const BITS_3: u32 = 7;
const BITS_5: u32 = 31;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{GlobalRoute, Mtu};

    #[test]
    fn numbers_of_more_than_24_bits_are_refused_where_the_mask_has_them() {
        let attr = QpAttr {
            rq_psn: 1 << 24,
            sq_psn: 0x1000_0001,
            dest_qp_num: 0x0100_0011,
            path_mtu: Mtu::MTU_256,
            ..QpAttr::default()
        };
        for (mask, text) in [
            (QpAttrMask::RQ_PSN, "rq_psn 16777216 does not fit into 24 bits: the most is 16777215"),
            (QpAttrMask::SQ_PSN, "sq_psn 268435457 does not fit into 24 bits: the most is 16777215"),
            (QpAttrMask::DEST_QPN, "dest_qp_num 16777233 does not fit into 24 bits: the most is 16777215"),
        ] {
            assert_eq!(numbers_fit(&attr, mask).unwrap_err().to_string(), text);
        }
        assert_eq!(numbers_fit(&attr, QpAttrMask::STATE), Ok(()));
        let most = QpAttr { rq_psn: BITS_24, sq_psn: BITS_24, dest_qp_num: BITS_24, ..attr };
        assert_eq!(numbers_fit(&most, QpAttrMask::all()), Ok(()));
        assert_eq!(numbers_fit(&numbers_cut(&attr), QpAttrMask::all()), Ok(()));
        let cut = numbers_cut(&attr);
        assert_eq!((cut.rq_psn, cut.sq_psn, cut.dest_qp_num), (0, 1, 0x11));
    }

    #[test]
    fn short_numbers_lose_the_bits_that_their_fields_do_not_have() {
        let attr = QpAttr {
            timeout: 32,
            min_rnr_timer: 63,
            retry_cnt: 8,
            rnr_retry: 0xff,
            path_mtu: Mtu::MTU_256,
            ..QpAttr::default()
        };
        for (mask, text) in [
            (QpAttrMask::TIMEOUT, "timeout 32 does not fit into 5 bits: the most is 31"),
            (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer 63 does not fit into 5 bits: the most is 31"),
            (QpAttrMask::RETRY_CNT, "retry_cnt 8 does not fit into 3 bits: the most is 7"),
            (QpAttrMask::RNR_RETRY, "rnr_retry 255 does not fit into 3 bits: the most is 7"),
        ] {
            assert_eq!(numbers_fit(&attr, mask).unwrap_err().to_string(), text);
        }
        let cut = numbers_cut(&attr);
        let short = (cut.timeout, cut.min_rnr_timer, cut.retry_cnt, cut.rnr_retry);
        assert_eq!((short, cut.path_mtu), ((0, 31, 0, 7), Mtu::MTU_256));
    }

    #[test]
    fn an_mtu_that_does_not_exist_is_named_with_those_that_do() {
        for mtu in [0, 6, 255] {
            let attr = QpAttr { path_mtu: Mtu(mtu), ..QpAttr::default() };
            let cause = path_mtu(&attr, QpAttrMask::PATH_MTU).unwrap_err();
            let text = format!(
                "there is no MTU with the code {mtu}: 1 to 5 stand for 256, 512, 1024, 2048 and 4096 bytes"
            );
            assert_eq!(cause.to_string(), text);
        }
    }

    #[test]
    fn the_port_of_a_path_and_a_path_without_a_grh_are_named() {
        let text = path_port(&AhAttr::lid(3, 1), 2).unwrap_err().to_string();
        assert_eq!(text, "ah_attr.port_num 3 is out of range: the device has 1 to 2");
        let text = path_port(&AhAttr::lid(0, 1), 2).unwrap_err().to_string();
        assert_eq!(text, "ah_attr.port_num 0 is out of range: the device has 1 to 2");
        let text = path_grh(&AhAttr::lid(2, 1), LinkLayer::ETHERNET).unwrap_err().to_string();
        assert_eq!(
            text,
            "port 2 is Ethernet (RoCE), where every path needs a GRH: set ah_attr.grh, or make the path with AhAttr::new"
        );
        assert_eq!(path_grh(&AhAttr::lid(2, 1), LinkLayer::INFINIBAND), Ok(()));
        let routed = AhAttr { grh: Some(GlobalRoute::default()), ..AhAttr::default() };
        assert_eq!(path_grh(&routed, LinkLayer::ETHERNET), Ok(()));
    }

    #[test]
    fn a_peer_may_write_only_what_the_device_may() {
        let text =
            region_access(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ).unwrap_err().to_string();
        assert_eq!(text, "REMOTE_WRITE needs LOCAL_WRITE as well");
        let both = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let text = region_access(both).unwrap_err().to_string();
        assert_eq!(text, "REMOTE_WRITE, REMOTE_ATOMIC needs LOCAL_WRITE as well");
        assert_eq!(region_access(both | AccessFlags::LOCAL_WRITE), Ok(()));
        assert_eq!(region_access(AccessFlags::REMOTE_READ), Ok(()));
    }
}
