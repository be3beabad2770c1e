//! Properties of the device and its ports, from the kernel and from the driver.
//!
//! # References
//! `ibv_query_device_ex(3)`; rdma-core `providers/mlx5/verbs.c` (`mlx5_query_device_ex`)

use core::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};

use uverbs_abi::mlx5_abi::Mlx5IbQueryDeviceResp;
use verbs_core::Result;
use verbs_core::channel::Uhw;
use verbs_core::kernel::KernelContext;
use verbs_core::provider::DeviceOps;
use verbs_core::types::{
    CompCntrCaps, DeviceAttr, DeviceAttrEx, GidEntry, PacketPacingCaps, PortAttr, RssCaps, TsoCaps,
};
use zerocopy::IntoBytes;

use crate::device::Device;

impl Device {
    fn context(&self) -> &KernelContext {
        &self.kernel
    }

    /// Returns the attributes of the device, and the driver-specific part, if any.
    ///
    /// # Errors
    /// Same as [`DeviceOps::query_device_ex`].
    pub(crate) fn query_all(&self) -> Result<(DeviceAttrEx, Mlx5IbQueryDeviceResp)> {
        let mut reply = Mlx5IbQueryDeviceResp::default();
        let uhw = if self.has_own_attrs() { Uhw::reply(reply.as_mut_bytes()) } else { Uhw::none() };
        let attr = self.context().query_device_ex_uhw(uhw)?;
        Ok((attr, reply))
    }
}

impl DeviceOps for Device {
    fn device_name(&self) -> &str {
        self.context().device_name()
    }

    fn num_comp_vectors(&self) -> u32 {
        self.context().num_comp_vectors()
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        self.context().query_device()
    }

    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        let (attr, reply) = self.query_all()?;
        let (tso, rss, pacing) = (&reply.tso_caps, &reply.rss_caps, &reply.packet_pacing_caps);
        Ok(DeviceAttrEx {
            tso_caps: TsoCaps { max_tso: tso.max_tso, supported_qpts: tso.supported_qpts },
            rss_caps: RssCaps {
                rx_hash_fields_mask: rss.rx_hash_fields_mask,
                rx_hash_function: rss.rx_hash_function,
                ..attr.rss_caps
            },
            packet_pacing_caps: PacketPacingCaps {
                qp_rate_limit_min: pacing.qp_rate_limit_min,
                qp_rate_limit_max: pacing.qp_rate_limit_max,
                supported_qpts: pacing.supported_qpts,
            },
            ..attr
        })
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.context().query_port(port_num)
    }

    fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        self.context().query_port_speed(port_num)
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        self.context().query_gid_table()
    }

    fn visit_gids(&self, port_num: u8, visit: &mut dyn FnMut(GidEntry) -> ControlFlow<()>) -> Result<()> {
        self.context().visit_gids(port_num, visit)
    }

    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.context().query_gid_entry(port_num, gid_index)
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.context().query_pkey(port_num, index)
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.context().async_fd()
    }

    fn create_comp_channel(&self) -> Result<OwnedFd> {
        self.context().create_comp_channel()
    }

    fn query_comp_cntr_caps(&self) -> Result<CompCntrCaps> {
        self.context().query_comp_cntr_caps()
    }
}

#[cfg(test)]
mod tests {
    use uverbs_abi::ib_user_verbs::IbUverbsExQueryDeviceResp;
    use verbs_core::channel::{Expect, Reply};
    use verbs_core::types::QpType;

    use super::*;
    use crate::device::tests::device;

    #[test]
    fn properties_that_the_driver_alone_reports_are_among_those_of_the_device() {
        let (device, script) = device();
        let mut common = IbUverbsExQueryDeviceResp { max_dm_size: 7, ..Default::default() };
        common.response_length = size_of_val(&common) as u32;
        common.rss_caps.max_rwq_indirection_tables = 5;
        let mut own = Mlx5IbQueryDeviceResp::default();
        (own.tso_caps.max_tso, own.tso_caps.supported_qpts) = (1 << 18, 1 << QpType::RAW_PACKET.0);
        (own.rss_caps.rx_hash_fields_mask, own.rss_caps.rx_hash_function) = (0x8000_000f, 1);
        own.packet_pacing_caps.qp_rate_limit_min = 1;
        own.packet_pacing_caps.qp_rate_limit_max = 100_000_000;
        script.expect([Expect::anything(Reply::outputs([common.as_bytes(), own.as_bytes()]))]);
        let attr = device.query_device_ex().unwrap();
        assert_eq!((attr.max_dm_size, attr.tso_caps.max_tso), (7, 1 << 18));
        assert!(attr.tso_caps.is_qpt_supported(QpType::RAW_PACKET));
        let rss = attr.rss_caps;
        assert_eq!((rss.max_rwq_indirection_tables, rss.rx_hash_fields_mask), (5, 0x8000_000f));
        assert_eq!(attr.packet_pacing_caps.qp_rate_limit_max, 100_000_000);
    }
}
