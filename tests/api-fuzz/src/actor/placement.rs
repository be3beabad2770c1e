//! Flushes and atomic writes, which are posted without local memory. They may change only the bytes
//! they name, and only while the memory is exposed.
#![forbid(unsafe_code)]

use verbs::{DeviceCapFlags, FlushPlacement, PostBufReason, PostReason, RemoteAccess, SendFlags, WcStatus};
use verbs_harness::pattern::filled;
use verbs_harness::runner::{CaseResult, fail};

use super::super::tally::Kind;
use super::Actor;
use super::windows::{End, next};

const LEN: usize = 64;

impl Actor<'_> {
    /// Posts flushes and atomic writes to exposed memory and then compares the memory with the
    /// expected contents.
    pub(super) fn placement(&mut self) -> CaseResult {
        let at = self.choices.below(self.world.contexts.len() as u64) as usize;
        let (context, pd) = (&self.world.contexts[at], self.world.pds[at].clone());
        let caps = DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE;
        let has_them = context.query_device_ex()?.device_cap_flags_ex.contains(caps);
        let (End { qp: mut near, cq: mut near_cq }, End { qp: far, .. }) = self.two_ends(at)?;
        let mut expected = filled(self.choices.any(), LEN);
        let mut buf = pd.alloc_buf(LEN)?;
        buf.copy_from_slice(&expected);
        let rights = if has_them { RemoteAccess::FLUSH_GLOBAL } else { RemoteAccess::empty() };
        let exposed = pd.expose(buf, RemoteAccess::WRITE | rights)?;
        let remote = exposed.remote();
        let mut count = 0;
        for _ in 0..self.choices.below(12) {
            let offset = self.choices.below(LEN as u64 / 8) as usize * 8;
            let wr_id = self.choices.any() >> 1;
            let data = self.choices.any().to_ne_bytes();
            let is_misaligned = self.rarely(8);
            let (kind, op) = match self.choices.below(5) {
                0 => (Kind::PostFlush, remote.slice(offset..)?.flush(FlushPlacement::GLOBAL)?),
                1 => (Kind::PostFlush, remote.flush_region(FlushPlacement::GLOBAL)),
                _ if is_misaligned => (Kind::RefusedOther, remote.slice(1..)?.atomic_write(data)),
                _ => (Kind::PostAtomicWrite, remote.slice(offset..)?.atomic_write(data)),
            };
            match near.post_send_op(wr_id, op, SendFlags::SIGNALED) {
                Ok(()) if kind == Kind::RefusedOther => return fail("a misaligned atomic write was posted"),
                Ok(()) => {
                    count += 1;
                    if kind == Kind::PostAtomicWrite {
                        expected[offset..offset + 8].copy_from_slice(&data);
                    }
                }
                Err(PostBufReason::Post(PostReason::UnsupportedOp { .. })) if !has_them => {}
                Err(_) if kind == Kind::RefusedOther => {}
                Err(reason) => return fail(format_args!("a request without memory: {reason}")),
            }
            // A device without these operations rejects them, which counts as well.
            self.tally.add(kind);
        }
        let is_early = self.rarely(3);
        if is_early {
            // Requests are still in flight: a byte not yet written must stay unchanged.
            let buf = exposed.unexpose()?;
            let before = buf.to_vec();
            for _ in 0..count {
                drop(next(&mut near_cq)?);
            }
            return if buf[..] == before[..] { Ok(()) } else { fail("memory changed when it was plain") };
        }
        for _ in 0..count {
            let status = next(&mut near_cq)?.status;
            if status != WcStatus::SUCCESS {
                return fail(format_args!("a request without memory ends with {status}"));
            }
        }
        drop(far);
        let buf = exposed.unexpose()?;
        if buf[..] == expected[..] {
            Ok(())
        } else {
            fail("other bytes than those of the atomic writes changed")
        }
    }
}
