//! Parsers of the RDMA netlink attributes of devices. They make no system calls.
//!
//! Attributes that are missing or have the wrong size are `None` and are read from sysfs instead.
//! If an attribute is repeated, the last occurrence counts, as in the kernel's own parser. Unknown
//! attributes are ignored.

use std::collections::BTreeSet;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use uverbs_abi::rdma_netlink::{
    RDMA_NL_NLDEV, RDMA_NLDEV_ATTR_CHARDEV, RDMA_NLDEV_ATTR_CHARDEV_ABI, RDMA_NLDEV_ATTR_CHARDEV_NAME,
    RDMA_NLDEV_ATTR_CHARDEV_TYPE, RDMA_NLDEV_ATTR_DEV_INDEX, RDMA_NLDEV_ATTR_DEV_NAME,
    RDMA_NLDEV_ATTR_DEV_NODE_TYPE, RDMA_NLDEV_ATTR_NODE_GUID, RDMA_NLDEV_ATTR_PORT_INDEX,
    RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, RDMA_NLDEV_CMD_GET, RDMA_NLDEV_CMD_GET_CHARDEV, RDMA_NLDEV_CMD_SYS_GET,
    RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, rdma_nl_get_type,
};

use super::netlink::{Conversation, NetlinkError, attribute, each_attribute};
use super::{DevNum, NodeType};
use crate::types::Guid;

/// A device in the dump of `RDMA_NLDEV_CMD_GET`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NlDevice {
    pub(super) index: Option<u32>,
    /// The bytes of the name up to the first NUL, unchecked.
    pub(super) name: Vec<u8>,
    pub(super) node_type: Option<NodeType>,
    pub(super) node_guid: Option<Guid>,
    pub(super) phys_port_cnt: Option<u32>,
}

impl NlDevice {
    /// Parses the attributes of a message about a device.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] for a truncated attribute or a missing name, which sysfs lookups
    /// need.
    pub(super) fn parse(attributes: &[u8]) -> Result<Self, NetlinkError> {
        let mut device = Self::default();
        let mut name = None;
        each_attribute(attributes, |kind, value| match kind {
            RDMA_NLDEV_ATTR_DEV_INDEX => device.index = u32_of(value),
            RDMA_NLDEV_ATTR_DEV_NAME => name = Some(string_of(value)),
            RDMA_NLDEV_ATTR_DEV_NODE_TYPE => device.node_type = u8_of(value).map(|raw| NodeType(raw.into())),
            RDMA_NLDEV_ATTR_NODE_GUID => device.node_guid = u64_of(value).map(Guid),
            RDMA_NLDEV_ATTR_PORT_INDEX => device.phys_port_cnt = u32_of(value),
            _ => {}
        })?;
        device.name = name.ok_or(NetlinkError::Malformed("a device has no name"))?;
        Ok(device)
    }
}

/// A device's character device in the reply to `RDMA_NLDEV_CMD_GET_CHARDEV`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NlChardev {
    pub(super) dev: Option<DevNum>,
    /// The bytes of the name up to the first NUL, unchecked.
    pub(super) name: Option<Vec<u8>>,
    pub(super) abi_version: Option<u32>,
    pub(super) driver_id: Option<RdmaDriverId>,
}

impl NlChardev {
    /// Parses the attributes of a message about a character device.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] for a truncated attribute.
    pub(super) fn parse(attributes: &[u8]) -> Result<Self, NetlinkError> {
        let mut chardev = Self::default();
        each_attribute(attributes, |kind, value| match kind {
            RDMA_NLDEV_ATTR_CHARDEV => chardev.dev = u64_of(value).map(DevNum::from_huge),
            RDMA_NLDEV_ATTR_CHARDEV_NAME => chardev.name = Some(string_of(value)),
            // The upper half is reserved.
            RDMA_NLDEV_ATTR_CHARDEV_ABI => chardev.abi_version = u64_of(value).map(|abi| abi as u32),
            RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID => {
                chardev.driver_id =
                    u32_of(value).map(RdmaDriverId).filter(|id| *id != RdmaDriverId::RDMA_DRIVER_UNKNOWN);
            }
            _ => {}
        })?;
        Ok(chardev)
    }
}

/// Returns all devices visible to this process, each once, in the kernel's order.
pub(super) fn devices(conversation: &mut Conversation<'_>) -> Result<Vec<NlDevice>, NetlinkError> {
    let message_type = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET);
    let mut devices = conversation.dump(message_type, NlDevice::parse)?;
    // A device moved during the dump can be reported twice.
    let mut seen = BTreeSet::new();
    devices.retain(|device| match device.index {
        Some(index) => seen.insert((Some(index), None)),
        None => seen.insert((None, Some(device.name.clone()))),
    });
    Ok(devices)
}

/// Returns the uverbs character device of the device with this index.
pub(super) fn uverbs(conversation: &mut Conversation<'_>, index: u32) -> Result<NlChardev, NetlinkError> {
    let mut request = attribute(RDMA_NLDEV_ATTR_DEV_INDEX, &index.to_ne_bytes());
    request.extend(attribute(RDMA_NLDEV_ATTR_CHARDEV_TYPE, b"uverbs\0"));
    let message_type = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV);
    conversation.get(message_type, &request, NlChardev::parse)
}

/// Returns the character device of a kind that belongs to no RDMA device, such as `rdma_cm`.
pub(super) fn chardev(conversation: &mut Conversation<'_>, kind: &str) -> Result<NlChardev, NetlinkError> {
    let mut name = kind.as_bytes().to_vec();
    name.push(0);
    let request = attribute(RDMA_NLDEV_ATTR_CHARDEV_TYPE, &name);
    let message_type = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV);
    conversation.get(message_type, &request, NlChardev::parse)
}

/// Returns whether the kernel copies registered pages for a forked child. Kernels before 5.12 lack
/// the attribute.
pub(super) fn copies_on_fork(conversation: &mut Conversation<'_>) -> Result<bool, NetlinkError> {
    let message_type = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET);
    conversation.get(message_type, &[], |attributes| {
        let mut copies = false;
        each_attribute(attributes, |kind, value| {
            if kind == RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK {
                copies = u8_of(value).is_some_and(|value| value != 0);
            }
        })?;
        Ok(copies)
    })
}

fn u8_of(value: &[u8]) -> Option<u8> {
    Some(u8::from_ne_bytes(value.try_into().ok()?))
}

fn u32_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

fn u64_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(value.try_into().ok()?))
}

/// Returns the bytes of a string attribute, up to the first NUL or the end of the attribute.
fn string_of(value: &[u8]) -> Vec<u8> {
    value.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}
