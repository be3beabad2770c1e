//! Changes to a queue pair beyond the steps to RTS: draining and resuming its send queue, pacing,
//! and ECE options.
//!
//! ```text
//!          to_sqd(notify)                     a failed send (UC, UD)
//!   Rts ───────────────────► Sqd       Rts ─────────────────────────► Rts, in SQE
//!       ◄───────────────────                ◄─────────────────────────
//!              resume                             recover_sq
//! ```
//!
//! # References
//! IBTA volume 1, sections 10.3.1.5 (SQD) and 10.3.1.6 (SQE)

use verbs_core::provider::{Provider, QpOps};
use verbs_core::types::{DataInOrder, Ece, OpKind, QpAttr, QpAttrMask, QpState, RateLimit};
use verbs_core::{Cause, Errno, Error, Result};

use super::Qp;
use super::state::{Init, Reset, Rts, Sqd, State};
use crate::handle::error::HandleError;

impl<P: Provider> Qp<Rts, P> {
    /// Moves the queue pair from RTS to SQD. Started sends complete, other sends wait, and messages
    /// still arrive. With `notify`, the device raises
    /// [`SQ_DRAINED`](crate::AsyncEventType::SQ_DRAINED) once the last started send has ended;
    /// [`is_drained`](Qp::is_drained) polls for that.
    ///
    /// A drained queue pair can change attributes that are fixed in RTS, such as its path:
    ///
    /// ```no_run
    /// # fn f(qp: verbs::Qp<verbs::state::Rts>, path: verbs::AhAttr) -> verbs::Result<()> {
    /// use verbs::{QpAttr, QpAttrMask};
    ///
    /// let mut qp = qp.to_sqd(false)?;
    /// while !qp.is_drained()? {
    ///     std::thread::yield_now();
    /// }
    /// qp.modify(&QpAttr { ah_attr: path, ..QpAttr::default() }, QpAttrMask::AV)?;
    /// let qp = qp.resume()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the queue pair and any errno the kernel returns; notably `EINVAL` if the device has
    /// moved it to the error state.
    ///
    /// # References
    /// `ibv_modify_qp(3)`; IBTA volume 1, section 10.3.1.5
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
    pub fn to_sqd(self, notify: bool) -> Result<Qp<Sqd, P>, HandleError<Self>> {
        let attr = QpAttr { en_sqd_async_notify: notify, ..QpAttr::default() };
        self.modify_to(&attr, QpAttrMask::EN_SQD_ASYNC_NOTIFY)
    }

    /// Returns the queue pair from SQE to RTS. A failed send moves a UC or UD queue pair to SQE:
    /// its later sends are flushed, but messages still arrive. Does nothing in RTS.
    ///
    /// rxe lacks this state: there a failed send moves the queue pair to the error state.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::IllegalTransition`] in any other state; any errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_qp(3)`; IBTA volume 1, section 10.3.1.6
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_CUR_STATE")]
    #[doc(alias = "IBV_QPS_SQE")]
    pub fn recover_sq(&mut self) -> Result<()> {
        // The state is queried first, because some kernels trust a wrong `cur_qp_state`.
        match self.state()? {
            QpState::RTS => Ok(()),
            QpState::SQE => {
                let attr = QpAttr { cur_qp_state: QpState::SQE, qp_state: QpState::RTS, ..QpAttr::default() };
                self.modify(&attr, QpAttrMask::CUR_STATE | QpAttrMask::STATE)
            }
            from => {
                let cause = Cause::IllegalTransition { qp_type: self.qp_type(), from, to: QpState::RTS };
                Err(self.error("modify_qp", Errno::INVAL).because(cause))
            }
        }
    }

    /// Sets the queue pair's send rate.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no packet pacing (rxe and soft devices); `EINVAL` for a rate
    /// beyond the limits in [`packet_pacing_caps`](crate::DeviceAttrEx::packet_pacing_caps); any
    /// other errno the kernel returns.
    ///
    /// # References
    /// `ibv_modify_qp_rate_limit(3)`
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn modify_rate_limit(&mut self, attr: &RateLimit) -> Result<()> {
        let result = self.core.get_mut().modify_rate_limit(attr);
        result.map_err(|error| self.of_device(error))
    }
}

impl<P: Provider> Qp<Sqd, P> {
    /// Returns whether every started send has ended.
    ///
    /// On newer kernels (7.2, not 6.1), rxe never reports the end if the queue was idle at the move
    /// to SQD and its ring had wrapped around before.
    ///
    /// # Errors
    /// Same as [`query`](Self::query).
    #[doc(alias = "ibv_query_qp")]
    pub fn is_drained(&self) -> Result<bool> {
        self.query(QpAttrMask::STATE).map(|(attr, _)| !attr.sq_draining)
    }

    /// Returns the queue pair to RTS, where it executes the waiting sends.
    ///
    /// # Errors
    /// Returns the queue pair and any errno the kernel returns; notably `EINVAL` from rxe while the
    /// queue is not [drained](Self::is_drained).
    ///
    /// # References
    /// `ibv_modify_qp(3)`; IBTA volume 1, section 10.3.1.5
    #[doc(alias = "ibv_modify_qp")]
    pub fn resume(self) -> Result<Qp<Rts, P>, HandleError<Self>> {
        self.modify_to(&QpAttr::default(), QpAttrMask::empty())
    }
}

impl<P: Provider> Qp<Reset, P> {
    /// Sets the ECE options negotiated with the peer, for use in the steps to INIT and RTR.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no ECE options (rxe and soft); `EINVAL` for options of
    /// another vendor.
    ///
    /// # References
    /// `ibv_set_ece(3)`
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        let result = self.core.get_mut().set_ece(ece);
        result.map_err(|error| self.of_device(error))
    }
}

impl<P: Provider> Qp<Init, P> {
    /// Sets the ECE options negotiated with the peer, for use in the step to RTR.
    ///
    /// # Errors
    /// As in RESET: `EOPNOTSUPP` if the provider has no ECE options (rxe and soft); `EINVAL` for
    /// options of another vendor.
    ///
    /// # References
    /// `ibv_set_ece(3)`
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: &Ece) -> Result<()> {
        let result = self.core.get_mut().set_ece(ece);
        result.map_err(|error| self.of_device(error))
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    /// Returns the ECE options: in RESET, the options offered by the device; from RTR on, the
    /// options in use. Between [`set_ece`](Qp::set_ece) and the next step, returns no options.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no ECE options (rxe and soft).
    ///
    /// # References
    /// `ibv_query_ece(3)`
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.get().query_ece().map_err(|error| self.of_device(error))
    }

    /// Returns the order in which the data of a message transferred by `op` becomes visible to the
    /// program's threads. Empty if no order is guaranteed: on rxe and soft devices, and on
    /// processors other than x86-64, which may reorder a thread's loads.
    ///
    /// # References
    /// `ibv_query_qp_data_in_order(3)`
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_in_order(&self, op: OpKind) -> DataInOrder {
        if cfg!(target_arch = "x86_64") { self.device_data_in_order(op) } else { DataInOrder::empty() }
    }

    /// Returns the order in which the device writes the data of a message transferred by `op`, on
    /// any processor. A thread that reads the data before the completion must load it in this
    /// order, with acquire fences.
    ///
    /// # References
    /// `ibv_query_qp_data_in_order(3)`
    #[doc(alias = "ibv_query_qp_data_in_order")]
    #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY")]
    pub fn device_data_in_order(&self, op: OpKind) -> DataInOrder {
        self.core.get().data_in_order(op)
    }

    pub(super) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        self.core.dependencies().registry.error(verb, errno)
    }

    /// Adds the device's name to an error, because the contract's default methods do not know the
    /// name.
    fn of_device(&self, error: Error) -> Error {
        Error { device: self.core.dependencies().registry.device().into(), ..error }
    }
}
