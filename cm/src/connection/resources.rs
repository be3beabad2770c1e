//! [`Resources`]: the objects around a queue pair, created for one connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use verbs::state::Init;
use verbs::{Cause, CompChannel, Completed, Cq, CqInit, Errno, Error, Pd, Qp, QpCap, QpInit, QpType, Result};

use crate::id::CmId;

/// The default resources of a connection: a protection domain with the completion queues of its
/// queue pair.
///
/// Sends and receives complete in separate queues, so that waiting for a send does not affect
/// receives.
#[derive(Debug)]
pub struct Resources {
    /// The protection domain, for registering memory.
    pub pd: Pd,
    /// The completion queue for sends.
    pub send_cq: Cq,
    /// The completion queue for receives.
    pub recv_cq: Cq,
    /// The channel of both queues. A waiting thread has exclusive access, so an event can wake only
    /// that thread.
    channel: CompChannel,
}

impl Resources {
    /// The default capacity of queue pairs: 16 sends and 16 receives with one memory segment each.
    pub const CAP: QpCap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

    /// Creates an RC queue pair for the id, in the state INIT. The resources get a new protection
    /// domain on the id's device.
    ///
    /// # Errors
    /// The errors of [`CmId::create_qp`], [`CmId::context`],
    /// [`Context::create_cq`](verbs::Context::create_cq) and
    /// [`Context::create_comp_channel`](verbs::Context::create_comp_channel).
    pub fn create(id: &CmId, cap: QpCap) -> Result<(Qp<Init>, Self)> {
        Self::create_in(id, &id.context()?.alloc_pd()?, cap)
    }

    /// Creates an RC queue pair for the id, in the state INIT. The resources use an existing
    /// protection domain, which connections may share. The domain must be on the id's device; the
    /// program may have opened the context.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create); `EINVAL` with [`Cause::Foreign`] for a domain of
    /// another device.
    pub fn create_in(id: &CmId, pd: &Pd, cap: QpCap) -> Result<(Qp<Init>, Self)> {
        let (context, pd) = (pd.context(), pd.clone());
        let channel = context.create_comp_channel()?;
        let queue =
            |cqe: u32| context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(cqe.max(1)) });
        let (send_cq, recv_cq) = (queue(cap.max_send_wr)?, queue(cap.max_recv_wr)?);
        let init = QpInit { recv_cq: recv_cq.handle(), cap, ..QpInit::new(QpType::RC, &send_cq) };
        let qp = id.create_qp(&pd, &init)?;
        Ok((qp, Self { pd, send_cq, recv_cq, channel }))
    }

    /// Returns the channel of both queues, for event loops. After [`req_notify`](Cq::req_notify) on
    /// a queue, its next completion makes the channel's descriptor readable; [`AsFd`] of the
    /// resources returns the same descriptor. The loop reads the events
    /// ([`CompChannel::next_event`]) and polls the queue. [`next_send`](Self::next_send) and
    /// [`next_recv`](Self::next_recv) use the same channel.
    pub fn channel(&self) -> &CompChannel {
        &self.channel
    }

    /// Waits for the next completion of a send without busy polling. [`Completed::ok`] returns the
    /// error of a failed request.
    ///
    /// # Errors
    /// `ETIMEDOUT` with [`Cause::NoCompletion`] on timeout; the errors of [`Cq::req_notify`] and
    /// [`CompChannel::wait`].
    ///
    /// # References
    /// `rdma_get_send_comp(3)`
    #[doc(alias = "rdma_get_send_comp")]
    pub fn next_send(&mut self, timeout: Duration) -> Result<Completed> {
        next(&mut self.send_cq, &self.channel, timeout, &self.pd)
    }

    /// Waits for the next completion of a receive without busy polling. [`Completed::ok`] returns
    /// the error of a failed request.
    ///
    /// # Errors
    /// Same as [`next_send`](Self::next_send).
    ///
    /// # References
    /// `rdma_get_recv_comp(3)`
    #[doc(alias = "rdma_get_recv_comp")]
    pub fn next_recv(&mut self, timeout: Duration) -> Result<Completed> {
        next(&mut self.recv_cq, &self.channel, timeout, &self.pd)
    }
}

/// Returns the descriptor of the [channel](Resources::channel).
impl AsFd for Resources {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The raw descriptor for event loops. The resources keep ownership.
impl AsRawFd for Resources {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

fn next(cq: &mut Cq, channel: &CompChannel, timeout: Duration, pd: &Pd) -> Result<Completed> {
    // A deadline beyond the clock's range means no deadline.
    let deadline = Instant::now().checked_add(timeout);
    loop {
        if let Some(completed) = cq.poll_one() {
            return Ok(completed);
        }
        // The queue is armed before the second poll, so that a completion in between raises an
        // event.
        cq.req_notify(false)?;
        if let Some(completed) = cq.poll_one() {
            return Ok(completed);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            let error = Error::new("poll_cq", pd.context().device_name(), Errno::TIMEDOUT);
            return Err(error.because(Cause::NoCompletion { within: timeout }));
        }
        channel.wait(left)?;
    }
}
