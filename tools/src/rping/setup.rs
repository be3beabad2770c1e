//! A session's queue pair and memory. The steps follow the C program's order, because the first
//! failure determines the message.

use std::fmt;

use rdmacm::ConnParam;
use verbs::state::{Init, Rtr, Rts};
use verbs::{Buf, CqInit, Error, InitAttr, Pd, Qp, QpCap, QpInit, QpState, QpType, RemoteAccess, Result};

use super::session::{End, Objects, Session, State};
use super::wire::RdmaInfo;
use crate::cm::perror;

/// The capacity of the send queue.
const SQ_DEPTH: u32 = 16;

/// The result of a step that reports its failure. The error is the C program's return value.
type Step = core::result::Result<(), i32>;

impl Session<'_> {
    /// Creates the queue pair and the memory, then posts the first receive.
    ///
    /// # Errors
    /// Fails if a call fails; the failure has been reported.
    pub(super) fn set_up(&mut self) -> core::result::Result<(), End> {
        self.set_up_qp().map_err(|ret| self.failed("setup_qp failed", ret))?;
        let recv = self.set_up_buffers().map_err(|ret| self.failed("rping_setup_buffers failed", ret))?;
        let qp = self.objects.as_mut().and_then(|objects| objects.init.as_mut());
        if let Some(Err(refused)) = qp.map(|qp| qp.post_recv_buf(recv, ..)) {
            let error = Error::from(refused);
            let end = self.failed("ibv_post_recv failed", error.errno.raw());
            self.console.reason(error);
            return Err(end);
        }
        self.debug("cq_thread started.\n");
        Ok(())
    }

    /// Reports a failed step, which ends the session.
    pub(super) fn failed(&mut self, what: &str, ret: i32) -> End {
        self.console.complain(format_args!("{what}: {ret}"));
        End::Failed(ret)
    }

    fn set_up_qp(&mut self) -> Step {
        let context = self.id.context().map_err(|error| self.refused("ibv_alloc_pd failed", &error))?;
        let pd = context.alloc_pd().map_err(|error| self.refused("ibv_alloc_pd failed", &error))?;
        self.created("pd", &raw const pd);
        let channel = context
            .create_comp_channel()
            .map_err(|error| self.refused("ibv_create_comp_channel failed", &error))?;
        self.created("channel", &raw const channel);
        let init = CqInit { channel: Some(&channel), ..CqInit::new(SQ_DEPTH * 2) };
        let mut cq =
            context.create_cq(&init).map_err(|error| self.refused("ibv_create_cq failed", &error))?;
        self.created("cq", &raw const cq);
        cq.req_notify(false).map_err(|error| self.refused("ibv_create_cq failed", &error))?;
        let cap = QpCap {
            max_send_wr: SQ_DEPTH,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
        let qp = if self.options.own_qp {
            self.create_own_qp(&pd, &init)?
        } else {
            self.id.create_qp(&pd, &init).map_err(|error| {
                perror("rdma_create_qp", &error, self.console);
                -1
            })?
        };
        self.created("qp", &raw const qp);
        self.objects = Some(Objects { init: Some(qp), qp: None, cq, channel, pd });
        Ok(())
    }

    /// Creates a queue pair in INIT, outside the connection manager's control.
    fn create_own_qp(&mut self, pd: &Pd, init: &QpInit) -> core::result::Result<Qp<Init>, i32> {
        let qp = pd.create_qp(init).map_err(|error| {
            perror("ibv_create_qp", &error, self.console);
            -1
        })?;
        let port_num = self.id.port_num().ok().flatten().unwrap_or(1);
        qp.to_init(&InitAttr { port_num, ..InitAttr::default() }).map_err(|refused| {
            perror("ibv_modify_qp", &refused.error, self.console);
            -1
        })
    }

    /// Registers the memory and returns the buffer for the first message.
    fn set_up_buffers(&mut self) -> core::result::Result<Buf, i32> {
        let size = self.options.size;
        let this = format!("{:p}", &raw const *self);
        self.debug(format_args!("rping_setup_buffers called on cb {this}\n"));
        let Some(pd) = self.objects.as_ref().map(|objects| objects.pd.clone()) else { return Err(-1) };
        let recv = pd.alloc_buf(RdmaInfo::LEN);
        let recv = recv.map_err(|error| self.refused("recv_buf reg_mr failed", &error))?;
        let send = pd.alloc_buf(RdmaInfo::LEN);
        self.buffers.sends = vec![send.map_err(|error| self.refused("send_buf reg_mr failed", &error))?];
        let data = pd.alloc_buf(size);
        let data = data.map_err(|error| self.refused("rdma_buf reg_mr failed", &error))?;
        if self.options.server {
            self.buffers.data = Some(data);
        } else {
            let echo = pd.expose(data, RemoteAccess::WRITE).map_err(|failed| failed.error);
            self.buffers.echo = Some(echo.map_err(|error| self.refused("rdma_buf reg_mr failed", &error))?);
            let start = pd.alloc_buf(size).and_then(|buf| Ok(pd.expose(buf, RemoteAccess::READ)?));
            self.buffers.start =
                Some(start.map_err(|error| self.refused("start_buf reg_mr failed", &error))?);
        }
        self.debug("allocated & registered buffers...\n");
        Ok(recv)
    }

    /// Accepts the client's request and waits until the connection is established.
    ///
    /// # Errors
    /// Fails if a call or the connection fails. The failure has been reported.
    pub(super) fn accept(&mut self) -> core::result::Result<(), End> {
        self.debug("accepting client connection request\n");
        let accepted = if self.options.own_qp {
            let param = self.move_to_rts().map_err(|error| {
                self.console.reason(error);
                End::Failed(-1)
            })?;
            self.id.accept_with(&param)
        } else {
            let Some(objects) = &mut self.objects else { return Err(End::Failed(-1)) };
            let Some(qp) = objects.init.take() else { return Err(End::Failed(-1)) };
            let accepted = self.id.accept(qp, &ConnParam::default());
            objects.qp = self.id.take_qp();
            accepted
        };
        if let Err(error) = accepted {
            perror("rdma_accept", &error, self.console);
            return Err(End::Failed(-1));
        }
        self.wait()?;
        if self.state == State::Error {
            self.console.complain(format_args!("wait for CONNECTED state {}", self.state as u8));
            return Err(End::Failed(-1));
        }
        Ok(())
    }

    /// Connects to the server and waits until the connection is established.
    ///
    /// # Errors
    /// Fails if a call or the connection fails. The failure has been reported.
    pub(super) fn connect(&mut self) -> core::result::Result<(), End> {
        let Some(objects) = &mut self.objects else { return Err(End::Failed(-1)) };
        let connected = if self.options.own_qp {
            let qp_num = objects.init.as_ref().map_or(0, Qp::qp_num);
            self.id.connect_with(&param(qp_num))
        } else {
            let Some(qp) = objects.init.take() else { return Err(End::Failed(-1)) };
            self.id.connect(qp, &param(0))
        };
        if let Err(error) = connected {
            perror("rdma_connect", &error, self.console);
            return Err(End::Failed(-1));
        }
        self.wait_for(State::Connected, "wait for CONNECTED")?;
        if self.options.own_qp {
            let fail = |call: &str, error: &Error, session: &mut Self| {
                perror(call, error, session.console);
                End::Failed(-1)
            };
            self.move_to_rts().map_err(|error| fail("rping_modify_qp", &error, self))?;
            self.id.establish().map_err(|error| fail("rdma_establish", &error, self))?;
        } else if let Some(objects) = &mut self.objects {
            objects.qp = self.id.take_qp();
        }
        self.debug("rdma_connect successful\n");
        Ok(())
    }

    /// Moves a queue pair that the program itself manages to RTS, with the connection's attributes.
    fn move_to_rts(&mut self) -> Result<ConnParam<'static>> {
        let gone = || Error::new("modify_qp", "", verbs::Errno::INVAL);
        let objects = self.objects.as_mut().ok_or_else(gone)?;
        let mut qp = objects.init.take().ok_or_else(gone)?;
        let (attr, mask) = self.id.init_qp_attr(QpState::INIT)?;
        qp.modify(&attr, mask)?;
        let (attr, mask) = self.id.init_qp_attr(QpState::RTR)?;
        let qp = qp.modify_to::<Rtr>(&attr, mask)?;
        let (attr, mask) = self.id.init_qp_attr(QpState::RTS)?;
        let qp = qp.modify_to::<Rts>(&attr, mask)?;
        let param = param(qp.qp_num());
        objects.qp = Some(qp);
        Ok(param)
    }

    fn created(&mut self, what: &str, object: impl fmt::Pointer) {
        self.debug(format_args!("created {what} {object:p}\n"));
    }

    fn refused(&mut self, line: &str, error: &Error) -> i32 {
        self.console.complain(line);
        self.console.reason(error);
        error.errno.raw()
    }
}

/// Returns the parameters of a connection with one read at a time.
fn param(qp_num: u32) -> ConnParam<'static> {
    ConnParam { responder_resources: 1, initiator_depth: 1, qp_num, ..ConnParam::default() }
}
