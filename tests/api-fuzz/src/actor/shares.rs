//! Memory with more than one owner: read-only, exposed and posted, or the program's.
#![forbid(unsafe_code)]

use std::ops::Bound;
use std::sync::Arc;

use verbs::{HandleError, RemoteAccess};
use verbs_harness::pattern::filled;
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::super::handle::{AnyPd, AnyRange};
use super::super::memory::{ANYBODY, Frozen, Held, Plain, PlainBytes, Posted, What, message, resolve};
use super::super::tally::Kind;
use super::super::world::Station;
use super::post::{Op, into_any};
use super::{Actor, PLAIN};

impl Actor<'_> {
    /// Posts a request with a share of read-only memory. The operation usually only reads the
    /// memory.
    pub(super) fn post_frozen(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let result = self.post_frozen_on(&mut station);
        self.stations.push(station);
        result
    }

    fn post_frozen_on(&mut self, station: &mut Station) -> CaseResult {
        let fits = |frozen: &Frozen| frozen.context == station.context;
        let Some(at) = self.frozen.iter().position(fits) else { return Ok(()) };
        let frozen = self.frozen.swap_remove(at);
        let (mut op, range) = self.operation(station, frozen.len());
        let is_recv = self.rarely(20);
        if !is_recv && !matches!(op.what(), What::Out) && !self.rarely(10) {
            op = Op::Send;
        }
        let is_message = matches!(op, Op::Send | Op::SendImm(_) | Op::UdSend { .. } | Op::UdSendImm { .. });
        // A message is always posted whole: the receiver checks bytes written before the freeze.
        if is_message && !is_recv && !frozen.is_message() {
            self.frozen.push(frozen);
            return Ok(());
        }
        let range = if is_message { (Bound::Unbounded, Bound::Unbounded) } else { range };
        let resolved = resolve(range, frozen.len());
        let (memory, piece) = frozen.share(resolved.clone().unwrap_or(0..0));
        let result = if is_recv {
            let posted = Posted::one(station.recv(), piece);
            let result = into_any(station.qp.post_recv(memory, range));
            if result.is_ok() {
                return fail("read-only memory was accepted for a receive");
            }
            self.posted(station, Kind::PostRecv, result, posted, resolved.is_none(), station.context)
        } else {
            self.tally.add(Kind::PostFrozen);
            self.send(station, memory, Posted::one(op.what(), piece), &op, range, station.context)
        };
        self.frozen.push(frozen);
        result
    }

    /// Freezes, shares, slices or thaws memory.
    pub(super) fn change_frozen(&mut self) -> CaseResult {
        let at = self.place(self.frozen.len());
        match (self.choices.below(8), at) {
            (0..3, _) => {
                let context = self.choices.below(self.world.contexts.len() as u64) as usize;
                let Some(mut held) = self.take_held(context)? else { return Ok(()) };
                self.checked(&held)?;
                // Usually short enough for a datagram.
                if held.len() > 900 && !self.rarely(3) {
                    let tail = held.split_off(900);
                    self.keep(tail)?;
                }
                self.write_message(&mut held);
                self.tally.add(Kind::Freeze);
                self.keep_frozen(held.freeze())
            }
            (3, Some(at)) => {
                self.tally.add(Kind::FrozenClone);
                let clone = self.frozen[at].clone();
                self.keep_frozen(clone)
            }
            (4, Some(at)) => {
                // A part is not a message, so it is never posted.
                let len = self.frozen[at].len() as u64;
                let start = self.choices.below(len + 1);
                let end = start + self.choices.below(len - start + 1);
                let part = self.frozen[at].slice(start as usize..end as usize);
                self.tally.add(Kind::FrozenSlice);
                part.check().map_err(Stop::Failed)
            }
            (_, Some(at)) => {
                let frozen = self.frozen.swap_remove(at);
                frozen.check().map_err(Stop::Failed)?;
                match frozen.thaw() {
                    Ok(held) => {
                        self.tally.add(Kind::Thaw);
                        self.checked(&held)?;
                        self.keep(held)
                    }
                    Err(frozen) => {
                        self.tally.add(Kind::ThawRefused);
                        match frozen.into_plain() {
                            Ok(plain) => {
                                self.tally.add(Kind::IntoMemory);
                                self.keep_plain(plain)
                            }
                            Err(frozen) => self.keep_frozen(frozen),
                        }
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// Writes a message that any station may send. A short message names no sender.
    fn write_message(&mut self, held: &mut Held) {
        let (seed, len) = (self.choices.any(), held.len());
        held.write(0, &message(ANYBODY, seed, len));
    }

    /// Posts exposed memory to send, read into or receive into, while peers may read and write it.
    pub(super) fn post_exposed(&mut self) -> CaseResult {
        let Some(at) = self.regions.iter().position(super::super::memory::Region::is_posted) else {
            return Ok(());
        };
        let region = self.regions.swap_remove(at);
        let context = region.target.context;
        let result = match self.take_station(|one| one.context == context && one.qp.can_send()) {
            None => Ok(()),
            Some(mut station) => {
                let len = region.len();
                let (op, range) = self.operation(&station, len);
                let is_message =
                    matches!(op, Op::Send | Op::SendImm(_) | Op::UdSend { .. } | Op::UdSendImm { .. });
                let resolved = resolve(range, len);
                let posts = if is_message {
                    // Where peers can write, they could change a message in flight, which its
                    // receiver would report.
                    match &resolved {
                        Some(range) if region.takes_message() => {
                            let seed = self.choices.any();
                            region.write_message(range.start, &message(station.number, seed, range.len()));
                            true
                        }
                        _ => false,
                    }
                } else {
                    // A read or a receive changes the memory, which may be in flight as a message.
                    matches!(op.what(), What::Out) || !region.target.is_closed()
                };
                let result = if posts {
                    let (memory, piece) = region.share(resolved.unwrap_or(0..0));
                    self.tally.add(Kind::PostExposed);
                    self.send(&mut station, memory, Posted::one(op.what(), piece), &op, range, context)
                } else if region.target.access.contains(RemoteAccess::WRITE) {
                    let whole: AnyRange = (Bound::Unbounded, Bound::Unbounded);
                    let (memory, piece) = region.share(0..len);
                    let posted = Posted::one(station.recv(), piece);
                    let result = into_any(station.qp.post_recv(memory, whole));
                    self.tally.add(Kind::PostExposedRecv);
                    self.posted(&mut station, Kind::PostRecv, result, posted, false, context)
                } else {
                    Ok(())
                };
                self.stations.push(station);
                result
            }
        };
        region.look();
        self.regions.push(region);
        result
    }

    /// Registers or deregisters the program's memory.
    pub(super) fn change_plain(&mut self) -> CaseResult {
        match self.choices.below(4) {
            0 => {
                let len = 64 + self.choices.below(4000) as usize;
                let bytes = filled(self.choices.any(), len);
                let bytes =
                    if self.rarely(2) { PlainBytes::Vec(bytes) } else { PlainBytes::Box(bytes.into()) };
                self.keep_plain(Plain::new(bytes, true))
            }
            1 | 2 => self.register(),
            _ => {
                let Some(at) = self.place(self.held.len()) else { return Ok(()) };
                let held = self.held.swap_remove(at);
                self.unregister(held)
            }
        }
    }

    /// Deregisters the program's memory behind a buffer.
    fn unregister(&mut self, held: Held) -> CaseResult {
        self.checked(&held)?;
        match held.into_plain() {
            Ok(plain) => {
                self.tally.add(Kind::IntoMemory);
                self.keep_plain(plain)
            }
            Err(held) => {
                self.tally.add(Kind::IntoMemoryRefused);
                self.checked(&held)?;
                self.keep(held)
            }
        }
    }

    /// Keeps a buffer of registered memory, or deregisters the memory at once, so that most held
    /// buffers are of other kinds.
    fn keep_registered(&mut self, held: Held) -> CaseResult {
        if self.rarely(4) { self.unregister(held) } else { self.keep(held) }
    }

    fn register(&mut self) -> CaseResult {
        let Some(at) = self.place(self.plain.len()) else { return Ok(()) };
        let plain = self.plain.swap_remove(at);
        plain.check().map_err(Stop::Failed)?;
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let pd = self.world.pds[context].clone();
        let pd = if self.rarely(3) { AnyPd::named(pd) } else { AnyPd::Erased(pd) };
        let seed = self.choices.any();
        match plain.bytes {
            PlainBytes::Vec(bytes) if self.rarely(3) => match pd.register_bytes(bytes) {
                Ok(buf) => {
                    self.tally.add(Kind::RegisterBytes);
                    let frozen = Frozen::registered(buf, context);
                    let shared: Arc<[u8]> = filled(seed, 512).into();
                    if let Ok(shared) = pd.register_bytes(shared) {
                        drop(shared);
                    }
                    match frozen.thaw() {
                        Ok(_) => fail("memory that was registered read-only became writable"),
                        Err(frozen) => match frozen.into_plain() {
                            Ok(plain) => self.keep_plain(plain),
                            Err(frozen) => fail(format_args!("{frozen:?} did not come back")),
                        },
                    }
                }
                Err(HandleError { handle, .. }) => self.keep_plain(Plain::new(PlainBytes::Vec(handle), true)),
            },
            PlainBytes::Vec(bytes) => match pd.register(bytes) {
                Ok(buf) => {
                    self.tally.add(Kind::Register);
                    self.keep_registered(Held::new(buf, context, seed))
                }
                Err(HandleError { handle, .. }) => self.keep_plain(Plain::new(PlainBytes::Vec(handle), true)),
            },
            PlainBytes::Box(bytes) => match pd.register(bytes) {
                Ok(buf) => {
                    self.tally.add(Kind::Register);
                    self.keep_registered(Held::new(buf, context, seed))
                }
                Err(HandleError { handle, .. }) => self.keep_plain(Plain::new(PlainBytes::Box(handle), true)),
            },
        }
    }

    /// Keeps the program's memory. If too many pieces are kept, drops one at random.
    pub(super) fn keep_plain(&mut self, plain: Plain) -> CaseResult {
        plain.check().map_err(Stop::Failed)?;
        self.plain.push(plain);
        if self.plain.len() > PLAIN
            && let Some(at) = self.place(self.plain.len())
        {
            self.tally.add(Kind::CheckedPlain);
            self.plain.swap_remove(at).check().map_err(Stop::Failed)?;
        }
        Ok(())
    }
}
