//! A paper queue pair ready to send, and its parents.

use verbs::state::Rts;
use verbs::{
    Buf, Context, Cq, CqHandle, CqInit, InitAttr, Memory, Pd, Provider, Qp, QpCap, QpInit, QpType, Returned,
    RtrAttr, RtsAttr, SendFlags, SendOp, WcStatus,
};

pub const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 16 };

pub struct Setup<P: Provider> {
    pub pd: Pd<P>,
    pub cq: Cq<P>,
    pub qp: Qp<Rts, P>,
}

pub fn setup<P: Provider>(context: &Context<P>) -> Setup<P> {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    let qp = ready(&pd, &cq);
    Setup { pd, cq, qp }
}

pub fn ready<P: Provider>(pd: &Pd<P>, cq: impl Into<CqHandle<P>>) -> Qp<Rts, P> {
    started(pd.create_qp(&QpInit { cap: CAP, ..QpInit::new(QpType::RC, cq) }).unwrap())
}

pub fn started<P: Provider>(qp: Qp<verbs::state::Reset, P>) -> Qp<Rts, P> {
    let qp = qp.to_init(&InitAttr::default()).unwrap();
    qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap()
}

pub fn buf<P: Provider>(pd: &Pd<P>, bytes: &[u8]) -> Buf {
    let mut buf = pd.alloc_buf(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    buf
}

/// Returns the first byte of each buffer.
pub fn bytes(memory: impl IntoIterator<Item = Memory>) -> Vec<u8> {
    memory.into_iter().map(|memory| memory.into_buf().expect("a buffer")[0]).collect()
}

impl<P: Provider> Setup<P> {
    pub fn buf(&self, bytes: &[u8]) -> Buf {
        buf(&self.pd, bytes)
    }

    pub fn send(&mut self, buf: Buf) -> u64 {
        self.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap()
    }

    /// Posts a send of one byte, signalled or not. Returns the `wr_id`.
    pub fn send_byte(&mut self, byte: u8, is_signaled: bool) -> u64 {
        let (buf, flags) = (self.buf(&[byte]), SendFlags::empty());
        if is_signaled {
            return self.send(buf);
        }
        self.qp.post_send_buf_unsignaled(SendOp::Send, flags, buf, ..).unwrap()
    }

    /// Returns the `wr_id`, status and memory of the next completion.
    pub fn next(&mut self) -> (u64, WcStatus, Option<Returned>) {
        let mut completions = self.cq.poll();
        let mut completion = completions.next().expect("a completion");
        (completion.wr_id(), completion.status(), completion.reclaim())
    }

    pub fn next_buf(&mut self) -> Buf {
        self.cq.poll_one().expect("a completion").into_buf().expect("a buffer")
    }

    /// Returns the first byte of each buffer that the next completion returns.
    pub fn next_bytes(&mut self) -> Vec<u8> {
        bytes(self.cq.poll_one().expect("a completion").returned.into_iter().flatten())
    }
}
