//! The message exchange and its timing.

use std::fmt;
use std::time::{Duration, Instant};

use verbs::state::Rts;
use verbs::{CompChannel, Context, Cq, Wc, WcStatus};

use super::endpoint::{Endpoint, RECV_WRID, SEND_WRID};
use super::options::{Options, Program};
use super::peer::Peer;
use super::setup::Setup;
use super::stamps::Stamps;
use crate::console::{Console, Failed};
use crate::ctext::Fixed2;

/// The state of a ping-pong.
#[derive(Debug)]
struct Game<'a> {
    context: &'a Context,
    endpoint: &'a mut Endpoint<Rts>,
    /// The work requests that must complete before the next send: a bit mask for each queue pair.
    pending: Vec<u64>,
    /// The number of posted receives. As in C, it can become negative with `--rx-depth=0`.
    routs: i32,
    rx_depth: i32,
    iters: u32,
    /// The number of messages sent.
    scnt: u32,
    /// The number of messages received.
    rcnt: u32,
    /// With `--verify`: the number of this side's next message. The numbers in between belong to
    /// the peer's messages.
    verify: Option<u32>,
    /// The statistics of `-t`.
    stamps: Option<Stamps>,
}

/// A failure: the C program's message and the reason.
type Trouble = (String, String);

/// Runs the ping-pong and returns its duration and, with `-t`, the times between messages. All
/// receives must have been posted, but not the first send.
///
/// # Errors
/// Fails if a verb, a completion or a message's check fails. The failure has been reported.
pub fn play(
    endpoint: &mut Endpoint<Rts>,
    setup: &mut Setup,
    peer: &mut Peer,
    options: &Options,
    console: &mut Console,
) -> Result<(Duration, Option<Stamps>), Failed> {
    let Setup { context, cq, channel, timestamp_mask, .. } = setup;
    let stamps = timestamp_mask.map(Stamps::new);
    let rx_depth = options.rx_depth as i32;
    let iters = options.iters;
    // The client's messages have even numbers, the server's messages odd numbers.
    let verify = options.verify.then_some(u32::from(options.server.is_none()));
    let qps = endpoint.qps();
    let pending = vec![RECV_WRID; qps];
    let mut game = Game {
        context,
        endpoint,
        pending,
        routs: rx_depth,
        rx_depth,
        iters,
        scnt: 0,
        rcnt: 0,
        verify,
        stamps,
    };
    if options.server.is_some() {
        (0..qps).try_for_each(|qp| game.send(qp)).map_err(|(line, reason)| {
            console.complain(line);
            console.because(reason)
        })?;
    }
    let start = Instant::now();
    let wcs = if options.program == Program::Srq { cq.cqe() as usize } else { 2 };
    let mut wcs = vec![Wc::default(); wcs];
    let mut times = vec![0; wcs.len()];
    while game.rcnt < iters || game.scnt < iters {
        if let Some(channel) = &*channel {
            wait_for_event(channel, cq, |console| peer.look(console), console)?;
        }
        let mut empty: u32 = 0;
        let count = loop {
            let count = match game.stamps {
                None => cq.poll_into(&mut wcs),
                Some(_) => poll_with_times(cq, &mut wcs, &mut times),
            };
            if count > 0 || channel.is_some() {
                break count;
            }
            empty = empty.wrapping_add(1);
            if empty.is_multiple_of(LOOK_EVERY) {
                peer.look(console)?;
            }
        };
        for (wc, time) in wcs[..count].iter().zip(&times) {
            game.take(wc, *time).map_err(|(line, reason)| {
                console.complain(line);
                // As in C, where a separate loop reads timestamps.
                if options.program == Program::Rc && !options.timestamps {
                    console.complain(format_args!("parse WC failed {count}"));
                }
                console.because(reason)
            })?;
        }
    }
    Ok((start.elapsed(), game.stamps))
}

/// Copies completions and their timestamps, and returns their number. If the completion of an event
/// was already polled with the previous one, the C program fails with the status `ENOENT`. Our
/// program continues.
fn poll_with_times(cq: &mut Cq, wcs: &mut [Wc], times: &mut [u64]) -> usize {
    let mut completions = cq.poll();
    let mut count = 0;
    for (wc, time) in wcs.iter_mut().zip(times) {
        let Some(mut completion) = completions.next() else { break };
        *time = completion.completion_ts().unwrap_or_default();
        *wc = completion.to_wc();
        count += 1;
    }
    count
}

/// Sleeps until a completion arrives, then requests the next notification. Calls `look` from time
/// to time while waiting.
pub(super) fn wait_for_event(
    channel: &CompChannel,
    cq: &mut Cq,
    mut look: impl FnMut(&mut Console) -> Result<(), Failed>,
    console: &mut Console,
) -> Result<(), Failed> {
    let fail = |line: &str, reason: &dyn fmt::Display, console: &mut Console| {
        console.complain(line);
        console.because(reason)
    };
    let event = loop {
        match channel.wait(Some(LOOK_AFTER)) {
            Ok(Some(event)) => break event,
            Ok(None) => look(console)?,
            Err(error) => return Err(fail("Failed to get cq_event", &error, console)),
        }
    };
    if event.cq != cq.id() {
        return Err(fail(
            "CQ event for unknown CQ",
            &format_args!("{:?}, not {:?}", event.cq, cq.id()),
            console,
        ));
    }
    cq.req_notify(false).map_err(|error| fail("Couldn't request CQ notification", &error, console))
}

impl Game<'_> {
    /// Handles a completion and its timestamp. If it is this side's turn, sends the next message.
    #[inline]
    fn take(&mut self, wc: &Wc, time: u64) -> Result<(), Trouble> {
        if wc.status != WcStatus::SUCCESS {
            return Err(failed_status(wc, self.context.vendor_err_text(wc.vendor_err)));
        }
        let Some(qp) = self.endpoint.find_qp(wc.qp_num) else {
            let line = format!("Couldn't find QPN {:06x}", wc.qp_num);
            return Err((line, format!("it completes {}", wc.opcode)));
        };
        match wc.wr_id {
            SEND_WRID => self.scnt += 1,
            RECV_WRID => {
                self.routs -= 1;
                if self.routs <= self.pending.len() as i32 {
                    self.refill()?;
                }
                if let Some(next) = self.verify {
                    self.look_at_message(next)?;
                }
                self.rcnt += 1;
                if let Some(stamps) = &mut self.stamps {
                    stamps.receive(time);
                }
            }
            other => {
                let line = format!("Completion for unknown wr_id {}", other as i32);
                return Err((line, format!("it completes {} of queue pair {:#x}", wc.opcode, wc.qp_num)));
            }
        }
        self.pending[qp] &= !wc.wr_id;
        if self.scnt < self.iters && self.pending[qp] == 0 { self.send(qp) } else { Ok(()) }
    }

    fn refill(&mut self) -> Result<(), Trouble> {
        let missing = self.rx_depth.saturating_sub(self.routs).max(0);
        let (posted, refused) = self.endpoint.post_recv(missing as u32);
        self.routs += posted as i32;
        match refused {
            None => Ok(()),
            Some(error) => Err((format!("Couldn't post receive ({})", self.routs), error.to_string())),
        }
    }

    /// Checks that the peer's message before our message `next` has arrived intact.
    #[cold]
    fn look_at_message(&mut self, next: u32) -> Result<(), Trouble> {
        let message = next.wrapping_sub(1);
        let received = self.endpoint.message();
        received.copy_from_device().map_err(|error| (NOT_COPIED_FROM.to_owned(), error.to_string()))?;
        match received.buffer().first_wrong(message) {
            None => Ok(()),
            Some((at, byte)) => Err((
                format!("invalid data in message {message}, byte {at}"),
                format!(
                    "{byte:#04x} is not what the peer sent; with --verify both sides must be run with it"
                ),
            )),
        }
    }

    #[inline]
    fn send(&mut self, qp: usize) -> Result<(), Trouble> {
        if let Some(next) = &mut self.verify {
            let message = self.endpoint.message();
            message.buffer().fill(*next);
            message.copy_to_device().map_err(|error| (NOT_COPIED_TO.to_owned(), error.to_string()))?;
            *next = next.wrapping_add(2);
        }
        let posted = self.endpoint.post_send(qp);
        posted.map_err(|error| ("Couldn't post send".to_owned(), error.to_string()))?;
        self.pending[qp] = RECV_WRID | SEND_WRID;
        Ok(())
    }
}

/// The C program's message for a failed copy to device memory.
pub(super) const NOT_COPIED_TO: &str = "Copy to dm buffer failed";

/// The C program's message for a failed copy from device memory.
pub(super) const NOT_COPIED_FROM: &str = "Copy from DM buffer failed";

/// The number of empty polls after which the program checks whether its peer has ended.
pub(super) const LOOK_EVERY: u32 = 1 << 14;

/// The time without an event after which the program checks whether its peer has ended.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// Describes a failed work request. `vendor` explains its vendor error.
#[cold]
fn failed_status(wc: &Wc, vendor: Option<&str>) -> Trouble {
    let Wc { status, wr_id, .. } = wc;
    let name = status.name().unwrap_or("unknown");
    let line = format!("Failed status {name} ({}) for wr_id {}", status.0, *wr_id as i32);
    let advice = match *status {
        WcStatus::RETRY_EXC_ERR => {
            "the peer does not answer: it has ended, has fewer queue pairs (-q), or packets do not reach it (another -g, a \
             firewall on UDP port 4791, an -m larger than the path's)"
        }
        WcStatus::RNR_RETRY_EXC_ERR => "the peer has no receive posted: run it with a larger -r",
        // The error depends on the device. For example, rxe reports 2 here and 11 on the other
        // side.
        WcStatus::LOC_LEN_ERR
        | WcStatus::LOC_QP_OP_ERR
        | WcStatus::REM_INV_REQ_ERR
        | WcStatus::REM_OP_ERR => {
            "a packet may have been larger than the peer's path MTU, or a message larger than its receive: run both sides \
             with the same -m and the same -s"
        }
        WcStatus::WR_FLUSH_ERR => "the queue pair is in the error state",
        _ => "see ibv_poll_cq(3)",
    };
    (line, format!("{advice} ({})", vendor_err(wc, vendor)))
}

/// Returns the vendor error of a failed work request. Includes the meaning if it is public.
pub(super) fn vendor_err(wc: &Wc, meaning: Option<&str>) -> String {
    let number = format!("vendor_err {:#x}", wc.vendor_err);
    meaning.map_or(number.clone(), |meaning| format!("{number}, {meaning}"))
}

/// The number of bytes on the wire and the rate, with the same float types as in C.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The length of a message, in bytes.
    pub size: u32,
    /// The number of round trips.
    pub iters: u32,
    /// The duration.
    pub elapsed: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, iters, elapsed } = *self;
        let usec = elapsed.as_micros() as f32;
        let bytes = i64::from(size).wrapping_mul(i64::from(iters)).wrapping_mul(2);
        let seconds = Fixed2(f64::from(usec) / 1_000_000.0);
        let mbits = Fixed2(bytes as f64 * 8.0 / f64::from(usec));
        let each = Fixed2(f64::from(usec / iters as f32));
        writeln!(f, "{bytes} bytes in {seconds} seconds = {mbits} Mbit/sec")?;
        writeln!(f, "{} iters in {seconds} seconds = {each} usec/iter", iters as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(size: u32, iters: u32, micros: u64) -> String {
        Summary { size, iters, elapsed: Duration::from_micros(micros) }.to_string()
    }

    #[test]
    fn a_packet_that_the_peer_did_not_take_may_be_due_to_either_option() {
        for status in [WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR, WcStatus::REM_OP_ERR] {
            let (_, advice) = failed_status(&Wc { status, ..Wc::default() }, None);
            assert!(advice.contains("the same -m and the same -s"), "{advice}");
        }
    }

    #[test]
    fn a_run_is_summed_up_as_c_does() {
        // These lines are from rdma-core 44.
        assert_eq!(
            summary(4096, 1000, 5_562_310),
            "8192000 bytes in 5.56 seconds = 11.78 Mbit/sec\n1000 iters in 5.56 seconds = 5562.31 usec/iter\n"
        );
        assert_eq!(
            summary(1 << 20, 100, 17_381_088),
            "209715200 bytes in 17.38 seconds = 96.53 Mbit/sec\n100 iters in 17.38 seconds = 173810.88 usec/iter\n"
        );
        assert_eq!(
            summary(4096, 0, 3),
            "0 bytes in 0.00 seconds = 0.00 Mbit/sec\n0 iters in 0.00 seconds = inf usec/iter\n"
        );
    }

    #[test]
    fn a_failed_completion_is_said_as_c_says_it_and_what_to_do() {
        let wc = Wc { wr_id: 2, status: WcStatus::RETRY_EXC_ERR, ..Wc::default() };
        let (line, reason) = failed_status(&wc, None);
        assert_eq!(line, "Failed status transport retry counter exceeded (12) for wr_id 2");
        assert!(reason.starts_with("the peer does not answer"));
        let wc = Wc { wr_id: 1, status: WcStatus(99), ..Wc::default() };
        assert_eq!(failed_status(&wc, None).0, "Failed status unknown (99) for wr_id 1");
    }

    #[test]
    fn a_vendor_error_has_its_meaning_beside_it_where_that_is_public() {
        let wc = Wc { vendor_err: 0x93, status: WcStatus::WR_FLUSH_ERR, ..Wc::default() };
        let flushed = "the queue pair is in the error state";
        assert_eq!(failed_status(&wc, None).1, format!("{flushed} (vendor_err 0x93)"));
        assert_eq!(
            failed_status(&wc, Some("page fault")).1,
            format!("{flushed} (vendor_err 0x93, page fault)")
        );
    }
}
