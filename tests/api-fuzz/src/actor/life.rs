//! Object lifecycles: creating, dropping, leaking, closing, naming, swapping, exposing and passing
//! between threads.
#![forbid(unsafe_code)]

use std::mem;

use verbs::{Cause, CqInit, HandleError, ParentDomainInit, Pd, QpCap, QpType, RemoteAccess};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::super::handle::{AnyCq, AnyCqHandle, AnyPd, AnyQp};
use super::super::memory::{Held, Region};
use super::super::tally::Kind;
use super::super::world::{Poller, Station, Thing};
use super::{Actor, POLLERS, REGIONS, STATIONS};

impl Actor<'_> {
    /// Creates a held buffer in a context; returns `None` if the device rejects it.
    pub(super) fn make_held(&mut self, context: usize) -> CaseResult<Option<Held>> {
        let len = match self.choices.below(20) {
            0 => self.choices.below(9),
            1..6 => 64 + self.choices.below(1000),
            6..18 => 1024 + self.choices.below(7000),
            _ => 16_000 + self.choices.below(20_000),
        };
        let pd = self.world.pds[context].clone();
        let pd = if self.rarely(3) {
            self.tally.add(Kind::PdDowncast);
            AnyPd::named(pd)
        } else {
            AnyPd::Erased(pd)
        };
        let Ok(buf) = pd.alloc_buf(len as usize) else { return Ok(None) };
        if buf.iter().any(|byte| *byte != 0) {
            return fail("a new buffer is not zero");
        }
        self.tally.add(Kind::BufAlloc);
        Ok(Some(Held::new(buf, context, self.choices.any())))
    }

    /// Splits, joins, drops, closes, leaks or swaps held buffers.
    pub(super) fn change_buffers(&mut self) -> CaseResult {
        let Some(at) = self.place(self.held.len()) else { return Ok(()) };
        let mut one = self.held.swap_remove(at);
        self.checked(&one)?;
        match self.choices.below(12) {
            0..4 if one.len() > 16 => {
                let middle = self.choices.below(one.len() as u64 + 1) as usize;
                let tail = one.split_off(middle);
                self.tally.add(Kind::BufSplit);
                self.keep(tail)?;
                self.keep(one)?;
            }
            4..7 => self.join(one)?,
            7 => {
                self.tally.add(Kind::BufDrop);
                drop(one);
            }
            8 | 9 => {
                let Held { buf, .. } = one;
                match buf.close() {
                    Ok(()) => self.tally.add(Kind::BufClose),
                    Err(HandleError { handle: buf, .. }) => {
                        self.tally.add(Kind::BufCloseRefused);
                        drop(buf);
                    }
                }
            }
            10 if self.world.may_forget() => {
                self.tally.add(Kind::BufForget);
                mem::forget(one);
            }
            _ => {
                if let Some(at) = self.place(self.held.len()) {
                    mem::swap(&mut one, &mut self.held[at]);
                    self.tally.add(Kind::BufSwap);
                }
                self.keep(one)?;
            }
        }
        Ok(())
    }

    /// Joins a piece with its successor if the thread holds the successor; otherwise tries another
    /// piece.
    fn join(&mut self, mut one: Held) -> CaseResult {
        let follows = one.buf.addr() + one.len() as u64;
        let next = self.held.iter().position(|held| held.buf.addr() == follows && held.len() > 0);
        if let Some(at) = next.or_else(|| self.place(self.held.len())) {
            let other = self.held.swap_remove(at);
            match one.unsplit(other) {
                Ok(()) => self.tally.add(Kind::BufUnsplit),
                Err(other) => {
                    self.tally.add(Kind::BufUnsplitRefused);
                    self.keep(other)?;
                }
            }
        }
        self.checked(&one)?;
        self.keep(one)
    }

    /// Exposes memory, or unexposes, writes, drops or leaks exposed memory.
    pub(super) fn change_exposed(&mut self) -> CaseResult {
        let at = self.place(self.regions.len());
        match (self.choices.below(10), at) {
            (0..4, _) if self.regions.len() < REGIONS => self.expose(),
            (4..7, Some(at)) => {
                let seed = self.choices.any();
                let offset = self.choices.below(self.regions[at].len() as u64 + 1) as usize;
                if self.regions[at].write(offset, &seed.to_ne_bytes()[..self.choices.below(9) as usize]) {
                    self.tally.add(Kind::ExposedWrite);
                }
                Ok(())
            }
            (choice @ 7.., Some(at)) => {
                let region = self.regions.swap_remove(at);
                region.check().map_err(Stop::Failed)?;
                self.tally.add(Kind::CheckedRegion);
                let back = if choice == 8 {
                    self.tally.add(Kind::ExposedDrop);
                    Vec::from(region.drop_exposed())
                } else if choice == 9 && self.rarely(3) && self.world.may_forget() {
                    self.tally.add(Kind::ExposedForget);
                    Vec::from(region.forget())
                } else {
                    match region.unexpose() {
                        Ok(back) => {
                            self.tally.add(Kind::Unexpose);
                            Vec::from(back)
                        }
                        Err((region, _)) => {
                            self.regions.push(region);
                            Vec::new()
                        }
                    }
                };
                back.into_iter().try_for_each(|held| self.keep(held))
            }
            _ => Ok(()),
        }
    }

    fn expose(&mut self) -> CaseResult {
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let Some(held) = self.take_held(context)? else { return Ok(()) };
        if held.len() < 256 {
            return self.keep(held);
        }
        self.checked(&held)?;
        let all = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let access =
            self.choices.one_of(&[RemoteAccess::READ, RemoteAccess::READ, RemoteAccess::WRITE, all, all]);
        let is_posted = self.rarely(2);
        match Region::expose(&self.world.pds[context], held, access, is_posted, self.choices.any()) {
            Ok(region) => {
                self.tally.add(Kind::Expose);
                self.world.publish(&region.target);
                self.regions.push(region);
                Ok(())
            }
            Err(pieces) => pieces.into_iter().try_for_each(|held| self.keep(held)),
        }
    }

    pub(super) fn make_poller(&mut self) -> CaseResult {
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        self.make_poller_in(context)
    }

    fn make_poller_in(&mut self, context: usize) -> CaseResult {
        if self.pollers.len() >= 2 * POLLERS {
            return Ok(());
        }
        let channel = if self.rarely(2) { self.channel_in(context) } else { None };
        let cqe = self.choices.one_of(&[1, 16, 256, 256, 256, 256, 256, 256, 256, 256]);
        let cqe = if self.world.stops_at_overruns() { cqe.max(256) } else { cqe };
        let parent = if self.rarely(4) { self.parent_domain_in(context) } else { None };
        let channel = channel.map(|at| &self.channels[at].1);
        let init = CqInit { channel, parent_domain: parent.as_ref(), ..CqInit::new(cqe) };
        if let Ok(cq) = self.world.contexts[context].create_cq(&init) {
            self.tally.add(Kind::CqCreate);
            let cq = AnyCq::Erased(cq);
            self.world.publish_handle(context, cq.handle());
            self.pollers.push(Poller { id: cq.id(), cq, context, polled: Vec::new(), spent: Vec::new() });
        }
        Ok(())
    }

    /// Allocates a parent domain that only the object using it keeps alive. rxe has no parent
    /// domains.
    fn parent_domain_in(&self, context: usize) -> Option<Pd> {
        let pd = self.world.contexts[context].alloc_pd().ok()?;
        pd.alloc_parent_domain(&ParentDomainInit::default()).ok()
    }

    /// Returns the index of a channel in a context, which it creates if there is none.
    fn channel_in(&mut self, context: usize) -> Option<usize> {
        let found = self.channels.iter().position(|(of, _)| *of == context);
        found.or_else(|| {
            let channel = self.world.contexts[context].create_comp_channel().ok()?;
            self.channels.push((context, channel));
            Some(self.channels.len() - 1)
        })
    }

    pub(super) fn make_station(&mut self) -> CaseResult {
        if self.stations.len() >= STATIONS {
            return Ok(());
        }
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let of_context = |poller: &&Poller| poller.context == context;
        while self.pollers.iter().filter(of_context).count() < 2 {
            let before = self.pollers.len();
            self.make_poller_in(context)?;
            if self.pollers.len() == before {
                return Ok(());
            }
        }
        let own = self.pollers.iter().filter(|one| one.context == context).map(|one| one.cq.handle());
        let mut fitting: Vec<AnyCqHandle> = own.collect();
        // Sometimes uses queues owned by other threads, or closed queues.
        let is_elsewhere = self.rarely(3);
        if is_elsewhere {
            let all = self.world.handles().into_iter().filter(|(of, _)| *of == context);
            fitting = all.map(|(_, handle)| handle).collect();
        }
        let Some(_) = fitting.first() else { return Ok(()) };
        let cqs = [(); 2].map(|()| fitting[self.choices.below(fitting.len() as u64) as usize].clone());
        let qp_type = self.choices.one_of(&[QpType::RC, QpType::RC, QpType::RC, QpType::UC, QpType::UD]);
        let wr = |actor: &mut Self| 1 + actor.choices.below(24) as u32;
        let cap = QpCap {
            max_send_wr: wr(self),
            max_recv_wr: wr(self),
            max_send_sge: 1 + self.choices.below(4) as u32,
            max_recv_sge: 1 + self.choices.below(4) as u32,
            max_inline_data: self.choices.below(128) as u32,
        };
        let pd = self.world.pds[context].clone();
        let pd = if matches!(cqs[0], AnyCqHandle::Erased(_)) { AnyPd::Erased(pd) } else { AnyPd::named(pd) };
        let ids = [cqs[0].id(), cqs[1].id()];
        let sq_sig_all = self.choices.below(4) == 0;
        let made = AnyQp::create(&pd, cqs, qp_type, cap, sq_sig_all);
        match &made {
            Some(Ok(_)) if is_elsewhere => self.tally.add(Kind::QpElsewhere),
            Some(Err(error)) if matches!(error.cause, Cause::Closed { .. }) => {
                if !is_elsewhere {
                    return fail(format_args!("a queue that is open is called closed: {error}"));
                }
                self.tally.add(Kind::QpOnClosed);
            }
            _ => {}
        }
        if let Some(Ok(qp)) = made {
            self.tally.add(match qp.qp_type() {
                QpType::UC => Kind::QpUc,
                QpType::UD => Kind::QpUd,
                _ => Kind::QpRc,
            });
            let station = self.world.station(qp, context, ids);
            self.stations.push(station);
        }
        Ok(())
    }

    /// Drops, closes, dismantles or leaks a queue pair, with or without requests in flight.
    pub(super) fn end_station(&mut self) -> CaseResult {
        let Some(at) = self.place(self.stations.len()) else { return Ok(()) };
        let mut station = self.stations.swap_remove(at);
        if !station.posted.is_empty() {
            self.tally.add(Kind::QpPostedLost);
        }
        match self.choices.below(8) {
            0 | 1 => {
                self.tally.add(Kind::QpDrop);
                drop(station);
            }
            2 => {
                let Station { qp, .. } = station;
                match qp.split() {
                    Ok(halves) => {
                        self.tally.add(Kind::HalvesDrop);
                        halves.drop_in_order(self.rarely(2));
                    }
                    Err(qp) => drop(qp),
                }
            }
            3 => {
                let Station { qp, .. } = station;
                match qp.close() {
                    Ok(()) => self.tally.add(Kind::QpClose),
                    Err(HandleError { handle: qp, .. }) => self.stations.push(Station { qp, ..station }),
                }
            }
            4 if self.world.may_forget() => {
                self.tally.add(Kind::QpForget);
                mem::forget(station);
            }
            _ => {
                let Station { qp, .. } = station;
                match qp.dismantle() {
                    Ok(memory) => {
                        self.tally.add(Kind::QpDismantle);
                        let mut posted = station.posted;
                        posted.extend(station.kept);
                        return self.accept_dismantled(posted, station.dropped, station.has_unknown, memory);
                    }
                    Err(HandleError { handle: qp, .. }) => station = Station { qp, ..station },
                }
                self.stations.push(station);
            }
        }
        Ok(())
    }

    pub(super) fn end_poller(&mut self) -> CaseResult {
        if self.pollers.len() < 4 {
            return Ok(());
        }
        let Some(at) = self.place(self.pollers.len()) else { return Ok(()) };
        let Poller { cq, id, context, polled, spent } = self.pollers.swap_remove(at);
        let handle = cq.handle();
        match self.choices.below(6) {
            0..3 => match cq.close() {
                Ok(()) => {
                    self.tally.add(Kind::CqClose);
                    return self.is_closed(context, handle);
                }
                Err(HandleError { handle: cq, .. }) => {
                    self.tally.add(Kind::CqCloseRefused);
                    self.pollers.push(Poller { cq, id, context, polled, spent });
                }
            },
            3 if self.world.may_forget() => {
                self.tally.add(Kind::CqForget);
                mem::forget(cq);
            }
            _ => {
                self.tally.add(Kind::CqDrop);
                drop(cq);
                return self.is_closed(context, handle);
            }
        }
        Ok(())
    }

    /// Checks that a closed or dropped queue accepts no queue pair.
    fn is_closed(&mut self, context: usize, handle: AnyCqHandle) -> CaseResult {
        let pd = self.world.pds[context].clone();
        let pd = if matches!(handle, AnyCqHandle::Erased(_)) { AnyPd::Erased(pd) } else { AnyPd::named(pd) };
        let cap =
            QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        match AnyQp::create(&pd, [handle.clone(), handle], QpType::RC, cap, false) {
            Some(Err(error)) if matches!(error.cause, Cause::Closed { .. }) => {
                self.tally.add(Kind::QpOnClosed);
                Ok(())
            }
            other => fail(format_args!("a queue pair on a closed queue: {other:?}")),
        }
    }

    /// Names the provider of a queue pair or of a completion queue.
    pub(super) fn name_one(&mut self) -> CaseResult {
        if self.rarely(2) {
            if let Some(at) = self.place(self.stations.len()) {
                let station = self.stations.swap_remove(at);
                let Station { qp, .. } = station;
                let id = qp.id();
                let qp = qp.downcast();
                if qp.id() != id {
                    return fail("a queue pair is another one by its provider's name");
                }
                self.tally.add(Kind::QpDowncast);
                self.stations.push(Station { qp, ..station });
            }
        } else if let Some(at) = self.place(self.pollers.len()) {
            let Poller { cq, id, context, polled, spent } = self.pollers.swap_remove(at);
            let cq = cq.downcast();
            if cq.id() != id {
                return fail("a completion queue is another one by its provider's name");
            }
            if !matches!(cq, AnyCq::Erased(_)) || !self.world.is_named() {
                self.tally.add(Kind::CqDowncast);
            }
            self.pollers.push(Poller { cq, id, context, polled, spent });
        }
        Ok(())
    }

    /// Swaps two queue pairs, or two completion queues, in place.
    pub(super) fn swap_two(&mut self) -> CaseResult {
        if self.rarely(2) {
            if let [first, .., last] = &mut self.stations[..] {
                mem::swap(first, last);
                self.tally.add(Kind::QpSwap);
            }
        } else if let [first, .., last] = &mut self.pollers[..] {
            mem::swap(first, last);
            self.tally.add(Kind::CqSwap);
        }
        Ok(())
    }

    /// Offers an object to other threads, or removes and keeps an object that another thread
    /// offered.
    pub(super) fn trade(&mut self) -> CaseResult {
        if self.rarely(2) {
            let choice = self.choices.any();
            let Some(thing) = self.world.take(choice) else { return Ok(()) };
            self.tally.add(Kind::MarketTake);
            return self.own(thing);
        }
        // The next owner of a queue pair finds the memory already polled for it.
        self.world.give_strays(&mut self.strays);
        let thing = match self.choices.below(9) {
            0..4 => {
                let Some(at) = self.place(self.stations.len()) else { return Ok(()) };
                let station = self.stations.swap_remove(at);
                let mut pollers = Vec::new();
                // Usually gives away its completion queues as well.
                if !self.rarely(4) {
                    while let Some(at) = self
                        .pollers
                        .iter()
                        .position(|one| one.context == station.context && station.cqs.contains(&one.id))
                    {
                        pollers.push(self.pollers.swap_remove(at));
                    }
                }
                Thing::Station(Box::new(station), pollers)
            }
            4 => {
                let Some(at) = self.place(self.pollers.len()) else { return Ok(()) };
                Thing::Poller(self.pollers.swap_remove(at))
            }
            5 => {
                let Some(at) = self.place(self.regions.len()) else { return Ok(()) };
                Thing::Region(Box::new(self.regions.swap_remove(at)))
            }
            6 => {
                let Some(at) = self.place(self.frozen.len()) else { return Ok(()) };
                Thing::Frozen(self.frozen.swap_remove(at))
            }
            _ => {
                let Some(at) = self.place(self.held.len()) else { return Ok(()) };
                Thing::Held(self.held.swap_remove(at))
            }
        };
        match self.world.put(thing) {
            Ok(()) => {
                self.tally.add(Kind::MarketPut);
                Ok(())
            }
            Err(thing) => self.own(thing),
        }
    }

    fn own(&mut self, thing: Thing) -> CaseResult {
        match thing {
            Thing::Station(station, mut pollers) => {
                self.stations.push(*station);
                self.pollers.append(&mut pollers);
            }
            Thing::Poller(poller) => self.pollers.push(poller),
            Thing::Frozen(frozen) => self.keep_frozen(frozen)?,
            Thing::Region(region) => self.regions.push(*region),
            Thing::Held(held) => {
                self.checked(&held)?;
                self.keep(held)?;
            }
        }
        Ok(())
    }

    /// Arms a completion queue and, without blocking, reads the pending events of a channel.
    pub(super) fn listen(&mut self) -> CaseResult {
        if let Some(at) = self.place(self.pollers.len()) {
            let solicited_only = self.rarely(4);
            if self.pollers[at].cq.req_notify(solicited_only).is_ok() {
                self.tally.add(Kind::CqNotify);
            }
        }
        if let Some(at) = self.place(self.channels.len()) {
            while let Ok(Some(_)) = self.channels[at].1.next_event() {
                self.tally.add(Kind::CqEvent);
            }
        }
        Ok(())
    }

    /// Opens a device again, creates objects of every kind and destroys them in random order.
    pub(super) fn open_and_close(&mut self) -> CaseResult {
        let Some(at) = self.place(self.world.devices.len()) else { return Ok(()) };
        let context = self.world.devices[at].open()?;
        self.tally.add(Kind::ContextOpen);
        let pd = context.alloc_pd()?;
        self.tally.add(Kind::PdAlloc);
        let cq = context.create_cq(&CqInit::new(4))?;
        let buf = pd.alloc_buf(100)?;
        let events = context.async_events()?;
        if events.next_event()?.is_some() {
            return fail("a device that was just opened has an event");
        }
        let context = match context.close() {
            Ok(()) => return fail("a context was closed while things were made of it"),
            Err(failed) => failed.handle,
        };
        self.tally.add(Kind::ContextCloseRefused);
        let pd = match pd.close() {
            Ok(()) => return fail("a domain was closed while a buffer was registered in it"),
            Err(failed) => failed.handle,
        };
        self.tally.add(Kind::PdCloseRefused);
        let mut ends: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(move || drop(context)),
            Box::new(move || drop(pd)),
            Box::new(move || drop(cq)),
            Box::new(move || drop(buf)),
            Box::new(move || drop(events)),
        ];
        while let Some(at) = self.place(ends.len()) {
            ends.swap_remove(at)();
        }
        Ok(())
    }
}
