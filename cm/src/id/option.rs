//! Options of an id.

use verbs::Result;

use super::{CmId, qp};
use crate::cmd::option::IdOption;
#[cfg(doc)]
use crate::types::ConnParam;
use crate::types::PathRecord;

impl CmId {
    /// Sets the type of service of the connection's packets: the TOS/DSCP field of the IP header,
    /// which is the traffic class. Set it before [`resolve_addr`](Self::resolve_addr).
    ///
    /// # Errors
    /// Any errno the kernel returns.
    ///
    /// # References
    /// `rdma_set_option(3)`
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set_option(IdOption::Tos(tos))
    }

    /// Sets whether the id may share a port with another id. Both ids must permit it.
    ///
    /// # Errors
    /// `EINVAL` for a bound id; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_set_option(3)`
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&self, on: bool) -> Result<()> {
        self.set_option(IdOption::ReuseAddr(on))
    }

    /// Sets whether a listener on the unspecified IPv6 address excludes IPv4 connections.
    ///
    /// # Errors
    /// `EINVAL` for a bound id; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_set_option(3)`
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_af_only(&self, on: bool) -> Result<()> {
        self.set_option(IdOption::AfOnly(on))
    }

    /// Sets the acknowledgement time-out of the connection: 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, where `timeout`
    /// has 5 bits. On a listener, the time-out applies to the listener's connections. Soft devices
    /// ignore higher bits.
    ///
    /// # Errors
    /// `EINVAL` for a service other than RC; `ENOSYS` from kernels without the option; any other
    /// errno the kernel returns.
    ///
    /// # References
    /// `rdma_set_option(3)`
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<()> {
        self.set_option(IdOption::AckTimeout(timeout))
    }

    /// Sets the time after which a peer repeats a message that found no receive here, as a 5-bit
    /// code ([`ConnParam::MIN_RNR_TIMER`] by default). On a listener, the timer applies to the
    /// listener's connections. [`ConnParam::min_rnr_timer`] takes precedence.
    ///
    /// The value applies to the id's queue pair when it moves to RTR and to the attributes from
    /// [`init_qp_attr`](Self::init_qp_attr). No connection message carries the value.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](verbs::Cause::Limit) for a value above 31.
    ///
    /// # References
    /// `ibv_modify_qp(3)`, `min_rnr_timer`
    pub fn set_min_rnr_timer(&self, timer: u8) -> Result<()> {
        let mut connection = self.inner.connection();
        connection.min_rnr_timer =
            qp::rnr_timer("set_option", Some(timer)).map_err(|error| self.inner.named(error))?;
        Ok(())
    }

    /// Sets the path of the connection, which replaces [`resolve_route`](Self::resolve_route). The
    /// outcome is [`RouteResolved`](crate::EventKind::RouteResolved).
    ///
    /// # Errors
    /// `EINVAL` for an empty slice or an id whose address is not resolved; any other errno the
    /// kernel returns.
    ///
    /// # References
    /// `rdma_set_option(3)`
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_ib_path(&self, paths: &[PathRecord]) -> Result<()> {
        self.set_option(IdOption::IbPath(paths))
    }

    fn set_option(&self, option: IdOption<'_>) -> Result<()> {
        self.inner.explained(self.inner.backend.set_option(option))
    }
}
