//! State changes of queue pairs: connections to each other or to an arbitrary queue pair number,
//! resets, error states and random modifications.
#![forbid(unsafe_code)]

use verbs::{AccessFlags, InitAttr, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, RtsAttr};
use verbs_harness::runner::{CaseResult, fail};

use super::super::tally::Kind;
use super::super::world::{PORT, QKEY, Station, rtr_attr};
use super::Actor;

/// The destination of a queue pair's connection.
#[derive(Clone, Copy, Debug)]
struct Path {
    context: usize,
    qp_num: u32,
    /// The first packet sequence numbers, sent and expected.
    psns: [u32; 2],
    mtu: Mtu,
}

impl Actor<'_> {
    /// Connects two queue pairs of the same type to each other.
    pub(super) fn connect_two(&mut self) -> CaseResult {
        self.connect_those(|_| true)
    }

    /// Reconnects two queue pairs that are in the error state.
    pub(super) fn mend(&mut self) -> CaseResult {
        self.connect_those(|station| station.is_broken)
    }

    fn connect_those(&mut self, which: impl Fn(&Station) -> bool) -> CaseResult {
        let Some(at) = self.stations.iter().position(&which) else { return Ok(()) };
        let one = self.stations.swap_remove(at);
        let qp_type = one.qp.qp_type();
        if qp_type == QpType::UD {
            let one = self.raise_datagram(one)?;
            self.stations.push(one);
            return Ok(());
        }
        let other = self.stations.iter().position(|other| other.qp.qp_type() == qp_type && which(other));
        let Some(other) = other else {
            self.stations.push(one);
            return Ok(());
        };
        let other = self.stations.swap_remove(other);
        let psns = [self.choices.any() as u32 & 0xff_ffff, self.choices.any() as u32 & 0xff_ffff];
        let mtu = self.choices.one_of(&[Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024]);
        let to_other = Path { context: other.context, qp_num: other.qp.qp_num(), psns, mtu };
        let to_one = Path { context: one.context, qp_num: one.qp.qp_num(), psns: [psns[1], psns[0]], mtu };
        let (one_number, other_number) = (one.number, other.number);
        let (one, is_up) = self.raise(one, to_other, Some(other_number))?;
        let (other, other_is_up) = self.raise(other, to_one, Some(one_number))?;
        if is_up && other_is_up {
            self.tally.add(Kind::QpPair);
        }
        self.stations.push(one);
        self.stations.push(other);
        Ok(())
    }

    /// Connects a queue pair to an arbitrary queue pair number.
    pub(super) fn connect_to_anything(&mut self) -> CaseResult {
        let Some(one) = self.take_station(|_| true) else { return Ok(()) };
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let qp_num = match self.place(self.stations.len()) {
            Some(at) if !self.rarely(3) => self.stations[at].qp.qp_num(),
            _ if self.rarely(2) => one.qp.qp_num(),
            _ => self.choices.any() as u32 & 0xff_ffff,
        };
        let psns = [self.choices.any() as u32 & 0xff_ffff, self.choices.any() as u32 & 0xff_ffff];
        let (one, _) = self.raise(one, Path { context, qp_num, psns, mtu: Mtu::MTU_1024 }, None)?;
        self.tally.add(Kind::QpOdd);
        self.stations.push(one);
        Ok(())
    }

    /// Moves a queue pair to RESET and then up to RTS. Returns whether it reached RTS.
    fn raise(&mut self, station: Station, path: Path, peer: Option<u32>) -> CaseResult<(Station, bool)> {
        let mut station = self.down(station)?;
        station.peer = Some((path.context, peer));
        let [sq_psn, rq_psn] = path.psns;
        let access = if self.rarely(40) { AccessFlags::REMOTE_READ } else { all_access() };
        let init = InitAttr { port_num: PORT, pkey_index: 0, access, qkey: QKEY };
        let reads = 1 + self.choices.below(4) as u8;
        let rnr_timer = 1 + self.choices.below(6) as u8;
        let ah_attr = self.world.path(station.context, path.context);
        let rtr = rtr_attr(ah_attr, path.qp_num, rq_psn, path.mtu, [4, rnr_timer]);
        let rts = RtsAttr {
            sq_psn: Some(sq_psn),
            timeout: 9 + self.choices.below(4) as u8,
            retry_cnt: 1 + self.choices.below(4) as u8,
            rnr_retry: self.choices.one_of(&[0, 3, 6, 7, 7]),
            max_rd_atomic: reads,
        };
        let stop_at = if self.rarely(12) { self.choices.below(3) } else { 3 };
        let Station { qp, .. } = station;
        let (mut qp, error) = qp.to_init(&init);
        let mut is_up = error.is_none() && stop_at == 3;
        if stop_at > 0 && error.is_none() {
            let (next, error) = qp.to_rtr(&rtr);
            is_up &= error.is_none();
            qp = next;
            if stop_at > 1 && error.is_none() {
                let (next, error) = qp.to_rts(&rts);
                is_up &= error.is_none();
                qp = next;
            }
        }
        station = Station { qp, ..station };
        Ok((station, is_up))
    }

    /// Makes a UD queue pair ready and publishes it.
    fn raise_datagram(&mut self, one: Station) -> CaseResult<Station> {
        let path = Path { context: one.context, qp_num: one.qp.qp_num(), psns: [0, 0], mtu: Mtu::MTU_1024 };
        let (one, is_up) = self.raise(one, path, None)?;
        if is_up {
            self.world.publish_datagram(one.context, one.qp.qp_num());
        }
        Ok(one)
    }

    /// Moves a queue pair to RESET and usually reclaims its memory in flight.
    fn down(&mut self, station: Station) -> CaseResult<Station> {
        let Station { qp, .. } = station;
        let (qp, error) = qp.to_reset();
        let mut station = Station { qp, ..station };
        if error.is_none() {
            self.tally.add(Kind::QpReset);
            station.is_broken = false;
            station.unsignaled = None;
            if !self.rarely(5)
                && let Some(memory) = station.qp.reclaim_all()
            {
                self.tally.add(Kind::QpReclaimAll);
                self.accept_forgotten(&mut station, memory)?;
            }
        }
        Ok(station)
    }

    pub(super) fn reset(&mut self) -> CaseResult {
        let Some(station) = self.take_station(|_| true) else { return Ok(()) };
        let station = self.down(station)?;
        self.stations.push(station);
        Ok(())
    }

    pub(super) fn error(&mut self) -> CaseResult {
        let Some(station) = self.take_station(|_| true) else { return Ok(()) };
        let Station { qp, .. } = station;
        let (qp, error) = qp.to_error();
        if error.is_none() {
            self.tally.add(Kind::QpError);
        }
        self.stations.push(Station { qp, is_broken: true, ..station });
        Ok(())
    }

    pub(super) fn drain_and_back(&mut self) -> CaseResult {
        let Some(station) = self.take_station(|one| one.qp.can_send() && !one.is_broken) else {
            return Ok(());
        };
        let Station { qp, .. } = station;
        let (mut qp, error) = qp.to_sqd();
        // Linux's mlx5 rejects the state.
        let is_refused = self.world.is_mlx5();
        if error.is_none() && is_refused {
            return fail("a queue pair of ConnectX was drained");
        }
        if error.is_none() || is_refused {
            self.tally.add(Kind::QpSqd);
        }
        if !self.rarely(3) {
            (qp, _) = qp.back_to_rts();
        }
        self.stations.push(Station { qp, ..station });
        Ok(())
    }

    /// Changes random attributes to random values. Afterwards the handle's type may not match the
    /// state.
    pub(super) fn modify_at_random(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|_| true) else { return Ok(()) };
        let states = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];
        let number = |actor: &mut Self| actor.choices.any() as u32;
        let attr = QpAttr {
            qp_state: self.choices.one_of(&states),
            cur_qp_state: self.choices.one_of(&states),
            path_mtu: Mtu(self.choices.below(7) as u8),
            qkey: number(self),
            rq_psn: number(self) & 0xff_ffff,
            sq_psn: number(self) & 0xff_ffff,
            dest_qp_num: number(self) & 0xff_ffff,
            qp_access_flags: AccessFlags::from_bits_retain(number(self) & 0xf),
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 1,
            },
            ah_attr: self.world.path(station.context, 0),
            max_rd_atomic: number(self) as u8,
            max_dest_rd_atomic: number(self) as u8,
            min_rnr_timer: number(self) as u8,
            port_num: self.choices.below(3) as u8,
            timeout: self.choices.below(12) as u8,
            retry_cnt: number(self) as u8,
            rnr_retry: number(self) as u8,
            ..QpAttr::default()
        };
        let masks = [
            QpAttrMask::STATE,
            QpAttrMask::CUR_STATE,
            QpAttrMask::ACCESS_FLAGS,
            QpAttrMask::PORT,
            QpAttrMask::QKEY,
            QpAttrMask::AV,
            QpAttrMask::PATH_MTU,
            QpAttrMask::TIMEOUT,
            QpAttrMask::RETRY_CNT,
            QpAttrMask::RNR_RETRY,
            QpAttrMask::RQ_PSN,
            QpAttrMask::MAX_QP_RD_ATOMIC,
            QpAttrMask::MIN_RNR_TIMER,
            QpAttrMask::SQ_PSN,
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            QpAttrMask::CAP,
            QpAttrMask::DEST_QPN,
        ];
        let mut mask = QpAttrMask::empty();
        for _ in 0..self.choices.below(4) {
            mask |= self.choices.one_of(&masks);
        }
        if self.world.believes_states() {
            mask -= QpAttrMask::CUR_STATE;
        }
        // Rejections are fine too.
        let modified = station.qp.modify(&attr, mask);
        if modified.is_ok() && mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            station.unsignaled = None;
        }
        self.tally.add(Kind::QpModify);
        if mask.intersects(QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::DEST_QPN) {
            // The sender to this queue pair is no longer known.
            station.peer = station.peer.map(|(context, _)| (context, None));
        }
        if station.qp.query(QpAttrMask::STATE | QpAttrMask::CAP).is_ok() {
            self.tally.add(Kind::QpQuery);
        }
        self.stations.push(station);
        Ok(())
    }
}

pub(super) fn all_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC
}
