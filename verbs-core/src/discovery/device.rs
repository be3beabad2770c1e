//! [`DeviceInfo`]: an RDMA device found by discovery but not yet open.
//!
//! A provider uses its driver's ABI on the file behind a `DeviceInfo` and trusts the replies. Safe
//! code therefore gets a `DeviceInfo` only from [`discover`](super::discover) or from a provider
//! ([`DeviceInfo::brought`]) and cannot change it; [`DeviceInfo::from_parts`] is unsafe.
//!
//! | field | kernel device | a provider's own device |
//! |---|---|---|
//! | `dev`, `index` | the kernel's | `None` |
//! | `ibdev_path`, `cdev_path` | in sysfs and `/dev` | empty, and never opened |
//! | `driver_id` | `enum rdma_driver_id` | an id that no kernel driver uses |
//! | `own` | `None` | the provider's own value |

use core::any::Any;
use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;

use super::sysfs;
use crate::types::{Guid, open_enum};

/// An RDMA device that a program could open.
///
/// It describes the device at the time of [`discover`](super::discover); the device may have
/// disappeared since.
///
/// # References
/// `ibv_get_device_list(3)`
#[doc(alias = "ibv_device")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub(super) name: String,
    pub(super) dev_name: String,
    pub(super) dev: Option<DevNum>,
    pub(super) node_type: NodeType,
    pub(super) node_guid: Guid,
    pub(super) index: Option<u32>,
    pub(super) driver_id: Option<RdmaDriverId>,
    pub(super) abi_version: u32,
    pub(super) phys_port_cnt: Option<u32>,
    pub(super) ibdev_path: PathBuf,
    pub(super) cdev_path: PathBuf,
    pub(super) own: Option<OwnDevice>,
}

/// The properties of a kernel device in a [`DeviceInfo`], for [`DeviceInfo::from_parts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceParts {
    /// The RDMA device's name (`rxe0`, `mlx5_0`): one path component, without control characters.
    pub name: String,
    /// The character device's name (`uverbs0`): one path component, without control characters.
    pub dev_name: String,
    /// The character device's number.
    pub dev: DevNum,
    /// The node type.
    pub node_type: NodeType,
    /// The node's GUID; zero if the kernel does not report it.
    pub node_guid: Guid,
    /// The kernel's device index, which is never reused. `None` if netlink did not report it.
    pub index: Option<u32>,
    /// The kernel driver. `None` if netlink did not report it.
    pub driver_id: Option<RdmaDriverId>,
    /// The version of the driver-specific part of the ABI, which a provider must support.
    pub abi_version: u32,
    /// The number of ports. `None` if netlink did not report it.
    pub phys_port_cnt: Option<u32>,
    /// The device's directory in sysfs (`/sys/class/infiniband/rxe0`).
    pub ibdev_path: PathBuf,
    /// The file to open (`/dev/infiniband/uverbs0`).
    pub cdev_path: PathBuf,
}

impl DeviceInfo {
    /// Creates a kernel device not found by [`discover`](super::discover): from recorded data, from
    /// the caller's own discovery, or for a test.
    ///
    /// # Safety
    /// Either the kernel must have an RDMA device with this name, number, driver and ABI version,
    /// or the program must open the device only with providers that do not open its file.
    ///
    /// Opening the device compares its number and name with sysfs, but not driver and ABI version:
    /// a provider with the wrong driver would interpret that driver's replies as its own queues and
    /// completions.
    #[doc(hidden)]
    #[allow(unsafe_code)]
    pub unsafe fn from_parts(parts: DeviceParts) -> Self {
        Self {
            name: parts.name,
            dev_name: parts.dev_name,
            dev: Some(parts.dev),
            node_type: parts.node_type,
            node_guid: parts.node_guid,
            index: parts.index,
            driver_id: parts.driver_id,
            abi_version: parts.abi_version,
            phys_port_cnt: parts.phys_port_cnt,
            ibdev_path: parts.ibdev_path,
            cdev_path: parts.cdev_path,
            own: None,
        }
    }

    /// Returns the properties of a kernel device; `None` for a provider's own device.
    #[doc(hidden)]
    pub fn parts(&self) -> Option<DeviceParts> {
        let dev = self.dev?;
        Some(DeviceParts {
            name: self.name.clone(),
            dev_name: self.dev_name.clone(),
            dev,
            node_type: self.node_type,
            node_guid: self.node_guid,
            index: self.index,
            driver_id: self.driver_id,
            abi_version: self.abi_version,
            phys_port_cnt: self.phys_port_cnt,
            ibdev_path: self.ibdev_path.clone(),
            cdev_path: self.cdev_path.clone(),
        })
    }

    /// Creates a provider's own device, with one port and without a kernel driver.
    ///
    /// `driver_id` is the provider's own id ([`Driver::driver_id`](crate::provider::Driver)),
    /// outside the kernel's range. The ABI version is 0, meaning none.
    pub fn brought(name: &str, driver_id: u32, node_guid: Guid, own: OwnDevice) -> Self {
        Self {
            name: name.into(),
            dev_name: name.into(),
            dev: None,
            node_type: NodeType::CA,
            node_guid,
            index: None,
            driver_id: Some(RdmaDriverId(driver_id)),
            abi_version: 0,
            phys_port_cnt: Some(1),
            ibdev_path: PathBuf::new(),
            cdev_path: PathBuf::new(),
            own: Some(own),
        }
    }

    /// Returns the RDMA device's name (`rxe0`, `mlx5_0`): one path component, without control
    /// characters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the character device's name (`uverbs0`): one path component, without control
    /// characters. For a provider's own device, returns the RDMA device's name.
    pub fn dev_name(&self) -> &str {
        &self.dev_name
    }

    /// Returns the character device's number; `None` for a provider's own device.
    pub const fn dev(&self) -> Option<DevNum> {
        self.dev
    }

    /// Returns the node type.
    pub const fn node_type(&self) -> NodeType {
        self.node_type
    }

    /// Returns the transport, which the node type determines.
    pub const fn transport_type(&self) -> TransportType {
        self.node_type.transport_type()
    }

    /// Returns the node's GUID; zero if the kernel does not report it.
    pub const fn node_guid(&self) -> Guid {
        self.node_guid
    }

    /// Returns the kernel's device index, which is never reused; `None` if netlink did not report
    /// it.
    #[doc(alias = "ibv_get_device_index")]
    pub const fn index(&self) -> Option<u32> {
        self.index
    }

    /// Returns the kernel driver; `None` if netlink did not report it.
    pub const fn driver_id(&self) -> Option<RdmaDriverId> {
        self.driver_id
    }

    /// Returns the version of the driver-specific part of the ABI, which a provider must support.
    pub const fn abi_version(&self) -> u32 {
        self.abi_version
    }

    /// Returns the number of ports; `None` if netlink did not report it.
    pub const fn phys_port_cnt(&self) -> Option<u32> {
        self.phys_port_cnt
    }

    /// Returns the device's directory in sysfs (`/sys/class/infiniband/rxe0`). Empty for a
    /// provider's own device.
    pub fn ibdev_path(&self) -> &Path {
        &self.ibdev_path
    }

    /// Returns the file to open (`/dev/infiniband/uverbs0`). Empty for a provider's own device.
    pub fn cdev_path(&self) -> &Path {
        &self.cdev_path
    }

    /// Returns the value that the provider of a soft device attached; `None` for kernel devices.
    pub const fn own(&self) -> Option<&OwnDevice> {
        self.own.as_ref()
    }

    /// Returns the bus's description of the device (`pci:v000015B3d00001017sv...`); `None` for a
    /// device without a bus, such as rxe.
    ///
    /// Read from sysfs on every call, because it is needed only by drivers that match neither by id
    /// nor by name.
    pub fn modalias(&self) -> Option<String> {
        if self.ibdev_path.as_os_str().is_empty() {
            return None;
        }
        let bytes = sysfs::read(&self.ibdev_path.join("device/modalias")).ok()?;
        String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }
}

/// A provider's value for its own device. Opaque to all other code.
///
/// Clones refer to the same device and are equal. Every open of the device returns the same value
/// to the provider.
#[derive(Clone)]
pub struct OwnDevice(Arc<dyn Any + Send + Sync>);

impl OwnDevice {
    /// Wraps a provider's value.
    pub fn new<T: Any + Send + Sync>(device: T) -> Self {
        Self(Arc::new(device))
    }

    /// Returns the wrapped value if it is a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for OwnDevice {
    fn eq(&self, other: &Self) -> bool {
        // Compares only addresses: two vtables of one type can differ.
        core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl Eq for OwnDevice {}

impl fmt::Debug for OwnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnDevice({:p})", Arc::as_ptr(&self.0))
    }
}

/// The number of a character device.
#[doc(alias = "dev_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevNum {
    /// The major number, which identifies the kernel driver.
    pub major: u32,
    /// The minor number: the device's number within its driver.
    pub minor: u32,
}

impl DevNum {
    /// Decodes the kernel's 64-bit encoding (`huge_encode_dev`): 12 bits of major, 20 of minor.
    /// Other bits are ignored.
    ///
    /// # References
    /// `huge_encode_dev` in the kernel's `include/linux/kdev_t.h`; `RDMA_NLDEV_ATTR_CHARDEV`
    pub const fn from_huge(encoded: u64) -> Self {
        let low = encoded as u32;
        Self { major: (low >> 8) & 0xfff, minor: (low & 0xff) | ((low >> 12) & 0xf_ff00) }
    }

    /// Decodes the C library's encoding, which `stat(2)` returns as `st_rdev`.
    pub const fn from_rdev(rdev: u64) -> Self {
        Self {
            major: libc::major(rdev as libc::dev_t) as u32,
            minor: libc::minor(rdev as libc::dev_t) as u32,
        }
    }

    /// Parses text such as `231:192`, the content of a device's file `dev` in sysfs; `None` for any
    /// other text.
    pub fn from_sysfs(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: sysfs::parse_number(major)?, minor: sysfs::parse_number(minor)? })
    }
}

/// Writes the major and minor numbers as sysfs and `/dev/char` do, such as `231:192`.
impl fmt::Display for DevNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

open_enum! {
    /// The type of a node, with the names of `ibv_node_type_str(3)`.
    ///
    /// # References
    /// `RDMA_NODE_*` in `rdma/rdma_netlink.h`
    #[doc(alias = "ibv_node_type")]
    #[doc(alias = "ibv_node_type_str")]
    pub enum NodeType(u32) {
        /// The kernel did not report the node type.
        #[doc(alias = "IBV_NODE_UNKNOWN")]
        UNKNOWN = 0, "unknown";
        /// A channel adapter: InfiniBand and RoCE.
        #[doc(alias = "IBV_NODE_CA")]
        CA = 1, "InfiniBand channel adapter";
        /// A switch.
        #[doc(alias = "IBV_NODE_SWITCH")]
        SWITCH = 2, "InfiniBand switch";
        /// A router.
        #[doc(alias = "IBV_NODE_ROUTER")]
        ROUTER = 3, "InfiniBand router";
        /// An iWARP network interface.
        #[doc(alias = "IBV_NODE_RNIC")]
        RNIC = 4, "iWARP NIC";
        /// usNIC.
        #[doc(alias = "IBV_NODE_USNIC")]
        USNIC = 5, "usNIC";
        /// usNIC over UDP.
        #[doc(alias = "IBV_NODE_USNIC_UDP")]
        USNIC_UDP = 6, "usNIC UDP";
        /// Other types, such as EFA.
        #[doc(alias = "IBV_NODE_UNSPECIFIED")]
        UNSPECIFIED = 7, "unspecified";
    }
}

impl NodeType {
    /// Returns the transport of the node type.
    pub const fn transport_type(self) -> TransportType {
        match self {
            Self::CA | Self::SWITCH | Self::ROUTER => TransportType::IB,
            Self::RNIC => TransportType::IWARP,
            Self::USNIC => TransportType::USNIC,
            Self::USNIC_UDP => TransportType::USNIC_UDP,
            Self::UNSPECIFIED => TransportType::UNSPECIFIED,
            _ => TransportType::UNKNOWN,
        }
    }
}

open_enum! {
    /// The transport of a device, with the numbers and names printed by `ibv_devinfo`.
    #[doc(alias = "ibv_transport_type")]
    pub enum TransportType(i32) {
        /// The node type is unknown.
        #[doc(alias = "IBV_TRANSPORT_UNKNOWN")]
        UNKNOWN = -1, "invalid transport";
        /// InfiniBand, also over Ethernet (RoCE).
        #[doc(alias = "IBV_TRANSPORT_IB")]
        IB = 0, "InfiniBand";
        /// iWARP.
        #[doc(alias = "IBV_TRANSPORT_IWARP")]
        IWARP = 1, "iWARP";
        /// usNIC.
        #[doc(alias = "IBV_TRANSPORT_USNIC")]
        USNIC = 2, "usNIC";
        /// usNIC over UDP.
        #[doc(alias = "IBV_TRANSPORT_USNIC_UDP")]
        USNIC_UDP = 3, "usNIC UDP";
        /// Other transports, such as EFA.
        #[doc(alias = "IBV_TRANSPORT_UNSPECIFIED")]
        UNSPECIFIED = 4, "unspecified";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_huge_encoding_keeps_twenty_bits_of_minor() {
        assert_eq!(DevNum::from_huge(0xe7c0), DevNum { major: 231, minor: 192 });
        assert_eq!(DevNum::from_huge(0xabcf_edef), DevNum { major: 0xfed, minor: 0xa_bcef });
        assert_eq!(DevNum::from_huge(0xffff_ffff_0000_e7c0), DevNum { major: 231, minor: 192 });
    }

    #[test]
    fn st_rdev_and_sysfs_say_the_same_number() {
        let number = DevNum { major: 231, minor: 0xa_bcef };
        assert_eq!(DevNum::from_rdev(libc::makedev(231, 0xa_bcef)), number);
        assert_eq!(DevNum::from_sysfs(&number.to_string()), Some(number));
    }

    #[test]
    fn text_that_is_no_device_number_is_none() {
        for text in ["", ":", "231", "231:", ":192", "231:-1", "231:+1", "231:192:0", "231:4294967296", "a:b"]
        {
            assert_eq!(DevNum::from_sysfs(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_brought_device_has_no_place_in_the_kernel_and_keeps_its_providers_value() {
        let device = DeviceInfo::brought("soft0", 0x736f_6674, Guid(7), OwnDevice::new(41u32));
        assert_eq!((device.dev(), device.index(), device.modalias()), (None, None, None));
        assert_eq!((device.transport_type(), device.parts()), (TransportType::IB, None));
        let own = device.own().unwrap();
        assert_eq!((own.downcast_ref::<u32>(), own.downcast_ref::<i32>()), (Some(&41), None));
    }

    #[test]
    fn brought_devices_are_equal_when_they_are_the_same_not_when_they_look_the_same() {
        let of = |value: u32| DeviceInfo::brought("soft0", 1, Guid(7), OwnDevice::new(value));
        let device = of(1);
        assert_eq!(device, device.clone());
        assert_ne!(device, of(1));
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_device_is_the_same_after_it_was_taken_apart() {
        let parts = DeviceParts {
            name: "rxe0".into(),
            dev_name: "uverbs3".into(),
            dev: DevNum { major: 231, minor: 195 },
            node_type: NodeType::CA,
            node_guid: Guid(9),
            index: Some(4),
            driver_id: Some(RdmaDriverId::RDMA_DRIVER_RXE),
            abi_version: 2,
            phys_port_cnt: Some(1),
            ibdev_path: "/sys/class/infiniband/rxe0".into(),
            cdev_path: "/dev/infiniband/uverbs3".into(),
        };
        // SAFETY: no provider opens it.
        let device = unsafe { DeviceInfo::from_parts(parts.clone()) };
        assert_eq!(device.parts(), Some(parts));
        assert_eq!((device.name(), device.dev_name(), device.index()), ("rxe0", "uverbs3", Some(4)));
        assert_eq!(device.cdev_path(), Path::new("/dev/infiniband/uverbs3"));
        assert_eq!(device.ibdev_path(), Path::new("/sys/class/infiniband/rxe0"));
        assert_eq!((device.node_type(), device.node_guid()), (NodeType::CA, Guid(9)));
        assert_eq!((device.abi_version(), device.phys_port_cnt()), (2, Some(1)));
        assert!(device.own().is_none());
    }

    #[test]
    fn the_transport_follows_from_the_node_type() {
        assert_eq!(NodeType::CA.transport_type(), TransportType::IB);
        assert_eq!(NodeType::RNIC.transport_type().to_string(), "iWARP");
        assert_eq!(NodeType::UNSPECIFIED.transport_type().0, 4);
        assert_eq!(NodeType(77).transport_type(), TransportType::UNKNOWN);
        assert_eq!(NodeType(77).to_string(), "unknown (77)");
    }
}
