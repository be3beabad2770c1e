//! Raw packets: frames, flow rules with counters and work queues that share a queue pair's
//! receives.
//!
//! A device does not deliver frames back to the context that sent them. The sender therefore opens
//! the device a second time, with its provider erased.

use std::net::Ipv6Addr;
use std::time::Instant;

use verbs::state::Rts;
use verbs::{
    Context, CounterAttachAttr, CounterDescription, Counters, Cq, CqInit, CqWcFlags, DeviceCapFlags, Erased,
    Errno, Flow, FlowAttr, FlowEthFilter, FlowIpv6Filter, FlowMatch, FlowSpec, FlowTcpUdpFilter, InitAttr,
    LinkLayer, OpKind, Pd, PostReason, Provider, Qp, QpCap, QpInit, QpType, RateLimit, ReadCountersFlags,
    RecvWr, Rss, RtrAttr, RtsAttr, RxHashConf, RxHashFields, RxHashFunction, SendFlags, SendOp, SendWr,
    WcFlags, WcOpcode, WcStatus, Wq, WqAttr, WqInit, WqState,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    self, Arena, PORT, is_empty, pattern, post_recv, post_send, post_wq_recv, signalled, wait, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_frame_reaches_the_queue_pair_whose_rule_has_its_address,
        frames_are_sent_from_lists_and_inline,
        a_rule_selects_frames_by_their_port,
        a_rule_selects_frames_of_tcp_over_ipv6,
        a_rule_that_drops_frames_comes_before_one_of_less_priority,
        a_completion_carries_the_tag_of_its_rule,
        the_device_computes_the_checksums_of_a_frame,
        a_rule_counts_frames_and_bytes,
        work_queues_share_the_frames_of_a_queue_pair,
        a_work_queue_that_was_reset_starts_anew,
        a_long_segment_leaves_in_frames_of_the_segment_size,
        a_rate_limit_slows_frames_down_and_is_lifted,
        frames_that_cannot_be_are_refused,
    )
}

/// An open device that supports raw packets.
struct End<P: Provider> {
    context: Context<P>,
    pd: Pd<P>,
    cq: Cq<P>,
    arena: Arena<P>,
    mac: [u8; 6],
}

/// The length of a frame and of the memory slot that holds it, in bytes, and the number of slots.
const LEN: usize = 128;
const PLACE: usize = 256;
const PLACES: usize = 64;

const CAP: QpCap =
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 3, max_recv_sge: 1, max_inline_data: 0 };

impl<P: Provider> End<P> {
    /// Returns the end for an open device. Skips the case on a device without raw packets.
    fn new(context: &Context<P>) -> CaseResult<Self> {
        if context.query_port(PORT)?.link_layer != LinkLayer::ETHERNET {
            return skip("the port is not Ethernet");
        }
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInit::new(256))?;
        if fabric::device()?.driver().name != "mlx5" {
            return match pd.create_qp(&QpInit { cap: CAP, ..QpInit::new(QpType::RAW_PACKET, &cq) }) {
                Err(error) if matches!(error.errno, Errno::OPNOTSUPP | Errno::INVAL) => {
                    skip("the device has no raw packets")
                }
                // rxe on Linux 5.10 checks only the special types.
                Ok(_) if context.query_device_ex()?.raw_packet_caps.is_empty() => {
                    skip("the device has no raw packets, and creates queue pairs of this type")
                }
                other => fail(format_args!("raw packets should be refused: {other:?}")),
            };
        }
        // The first GID of a port contains its Ethernet address.
        let gid = context.query_gid(PORT, 0)?.0;
        let mac = [gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]];
        let arena = Arena::new(&pd, 2 * PLACE * PLACES)?;
        Ok(Self { context: context.clone(), pd, cq, arena, mac })
    }

    /// Creates a queue pair for sends and receives, with space for inline data.
    fn qp(&self, max_inline_data: u32) -> CaseResult<Qp<Rts, P>> {
        let cap = QpCap { max_inline_data, ..CAP };
        self.qp_with(QpInit { cap, ..QpInit::new(QpType::RAW_PACKET, &self.cq) })
    }

    /// Creates a queue pair that is ready to send.
    fn qp_with(&self, init: QpInit<P>) -> CaseResult<Qp<Rts, P>> {
        let qp = self.pd.create_qp(&init)?;
        let init = InitAttr { port_num: PORT, ..InitAttr::default() };
        let qp = qp.to_init(&init)?.to_rtr(&RtrAttr::unconnected())?;
        Ok(qp.to_rts(&RtsAttr::default())?)
    }

    /// Creates a work queue in the ready state.
    fn wq(&self, cq: &Cq<P>) -> CaseResult<Wq<P>> {
        let mut wq = self.pd.create_wq(&WqInit { max_wr: 64, ..WqInit::new(cq) })?;
        move_to(&mut wq, WqState::RDY)?;
        Ok(wq)
    }

    /// Posts a receive into a slot in the upper half of the memory.
    fn receive(&self, qp: &mut Qp<Rts, P>, place: usize) -> CaseResult {
        let sge = [self.arena.sge(received_at(place)..received_at(place) + PLACE)];
        Ok(post_recv(qp, &[RecvWr { wr_id: place as u64, sge: &sge }])?)
    }

    /// Returns the bytes of a completed receive.
    fn received(&self, place: usize) -> Vec<u8> {
        self.arena.read(received_at(place)..received_at(place) + LEN)
    }

    /// Sends a frame from a slot in the memory and waits for the completion.
    fn send(&mut self, qp: &mut Qp<Rts, P>, place: usize, frame: &[u8]) -> CaseResult {
        self.arena.write(place * PLACE, frame);
        let sge = [self.arena.sge(place * PLACE..place * PLACE + frame.len())];
        post_send(qp, &[signalled(place as u64, SendOp::Send, &sge)])?;
        wait_for(&mut self.cq, place as u64, WcOpcode::SEND)?;
        Ok(())
    }

    /// Returns a rule that matches frames to this device's address.
    fn rule<'a>(&self) -> FlowAttr<&'a verbs::FlowAction<P>, &'a Counters<P>> {
        let val = FlowEthFilter { dst_mac: self.mac, ..FlowEthFilter::default() };
        let mask = FlowEthFilter { dst_mac: [0xff; 6], ..FlowEthFilter::default() };
        FlowAttr::new(PORT).with(FlowSpec::Eth { fields: FlowMatch { val, mask }, is_inner: false })
    }
}

const fn received_at(place: usize) -> usize {
    (PLACES + place) * PLACE
}

fn move_to<P: Provider>(wq: &mut Wq<P>, state: WqState) -> verbs::Result<()> {
    wq.modify(&WqAttr { wq_state: Some(state), ..WqAttr::default() })
}

/// Returns a frame with an IPv4 UDP datagram, without checksums.
fn frame(mac: [u8; 6], ports: (u16, u16), seed: u32) -> Vec<u8> {
    let mut frame = [mac, [2, 0, 0, 0, 0, 1]].concat();
    frame.extend([0x08, 0x00]);
    let length = (LEN - 14) as u16;
    frame.extend([0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 1, 1, 10, 1, 1, 2]);
    frame.extend([ports.0, ports.1, length - 20, 0].into_iter().flat_map(u16::to_be_bytes));
    frame.extend(pattern(seed, LEN - frame.len()));
    frame
}

/// Returns the IP checksum over 16-bit words: 0 if they contain the correct checksum.
fn sum(words: impl Iterator<Item = u16>) -> u16 {
    let sum = words.fold(0_u32, |sum, word| sum + u32::from(word));
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

fn a_frame_reaches_the_queue_pair_whose_rule_has_its_address<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(0)?, other.qp(0)?);
    let flow = one.context.create_flow(&own, one.rule())?;
    for place in 0..PLACES {
        one.receive(&mut own, place)?;
        let sent = frame(one.mac, (1, 2), place as u32);
        other.send(&mut theirs, place, &sent)?;
        let wc = wait_for(&mut one.cq, place as u64, WcOpcode::RECV)?;
        assert_eq!(wc.byte_len as usize, LEN);
        assert_eq!(one.received(place), sent);
    }
    // The other direction, with a rule in the other context.
    flow.close()?;
    let _flow: Flow = other.context.create_flow(&theirs, other.rule())?;
    for place in 0..PLACES {
        other.receive(&mut theirs, place)?;
        let sent = frame(one.mac, (3, 4), place as u32);
        one.send(&mut own, place, &sent)?;
        wait_for(&mut other.cq, place as u64, WcOpcode::RECV)?;
        assert_eq!(other.received(place), sent);
    }
    Ok(())
}

fn frames_are_sent_from_lists_and_inline<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(LEN as u32)?, other.qp(0)?);
    let _flow = other.context.create_flow(&theirs, other.rule())?;
    let splits = [[LEN, LEN], [18, LEN], [6, 14], [10, 18], [0, 17], [19, 19], [1, 127]];
    for (place, [first, second]) in splits.into_iter().enumerate() {
        for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::INLINE] {
            other.receive(&mut theirs, place)?;
            let sent = frame(one.mac, (1, 2), place as u32);
            one.arena.write(0, &sent);
            let sge = [one.arena.sge(0..first), one.arena.sge(first..second), one.arena.sge(second..LEN)];
            post_send(&mut own, &[SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags }])?;
            wait_for(&mut one.cq, 1, WcOpcode::SEND)?;
            wait_for(&mut other.cq, place as u64, WcOpcode::RECV)?;
            assert_eq!(other.received(place), sent, "{first} {second} {flags:?}");
        }
    }
    Ok(())
}

fn a_rule_selects_frames_by_their_port<P: Provider>(context: &Context<P>) -> CaseResult {
    let one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let mut theirs = other.qp(0)?;
    let mut ends = Vec::new();
    for port in [1000_u16, 2000, 3000] {
        let end = End::new(context)?;
        let mut qp = end.qp(0)?;
        let ports = |dst_port| FlowTcpUdpFilter { dst_port, src_port: 0 };
        let fields = FlowMatch { val: ports(port), mask: ports(0xffff) };
        let ipv4 = FlowSpec::Ipv4 { fields: FlowMatch::default(), is_inner: false };
        let rule = end.rule().with(ipv4).with(FlowSpec::Udp { fields, is_inner: false });
        let flow = end.context.create_flow(&qp, rule)?;
        end.receive(&mut qp, 0)?;
        ends.push((port, end, qp, flow));
    }
    for port in [2000, 4000, 3000, 1000] {
        let sent = frame(one.mac, (7, port), port.into());
        other.send(&mut theirs, 0, &sent)?;
    }
    for (port, end, ..) in &mut ends {
        wait_for(&mut end.cq, 0, WcOpcode::RECV)?;
        assert_eq!(end.received(0), frame(one.mac, (7, *port), (*port).into()));
    }
    Ok(())
}

/// Returns a frame with an IPv6 TCP segment, without checksums.
fn tcp_frame(mac: [u8; 6], destination: Ipv6Addr, ports: (u16, u16), seed: u32) -> Vec<u8> {
    let mut frame = [mac, [2, 0, 0, 0, 0, 1]].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(((LEN - 54) as u16).to_be_bytes());
    frame.extend([6, 64]);
    frame.extend(Ipv6Addr::LOCALHOST.octets());
    frame.extend(destination.octets());
    frame.extend([ports.0, ports.1].into_iter().flat_map(u16::to_be_bytes));
    frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x10, 0x20, 0, 0, 0, 0, 0]);
    frame.extend(pattern(seed, LEN - frame.len()));
    frame
}

fn a_rule_selects_frames_of_tcp_over_ipv6<P: Provider>(context: &Context<P>) -> CaseResult {
    let [here, elsewhere] = [1, 2].map(|host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host));
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(0)?, other.qp(0)?);
    let address = |dst_ip| FlowIpv6Filter { dst_ip, ..FlowIpv6Filter::default() };
    let ipv6 = FlowMatch { val: address(here), mask: address(Ipv6Addr::from([0xff; 16])) };
    let ports = |dst_port| FlowTcpUdpFilter { dst_port, src_port: 0 };
    let tcp = FlowMatch { val: ports(80), mask: ports(0xffff) };
    let rule = one
        .rule()
        .with(FlowSpec::Ipv6 { fields: ipv6, is_inner: false })
        .with(FlowSpec::Tcp { fields: tcp, is_inner: false });
    let _flow = one.context.create_flow(&own, rule)?;
    one.receive(&mut own, 0)?;
    for (destination, port) in [(elsewhere, 80), (here, 81), (here, 80)] {
        other.send(&mut theirs, 0, &tcp_frame(one.mac, destination, (7, port), port.into()))?;
    }
    // Only the last frame arrives.
    wait_for(&mut one.cq, 0, WcOpcode::RECV)?;
    assert_eq!(one.received(0), tcp_frame(one.mac, here, (7, 80), 80));
    Ok(())
}

fn a_rule_that_drops_frames_comes_before_one_of_less_priority<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(0)?, other.qp(0)?);
    let _all = one.context.create_flow(&own, FlowAttr { priority: 1, ..one.rule() })?;
    let ports = |dst_port| FlowTcpUdpFilter { dst_port, src_port: 0 };
    let fields = FlowMatch { val: ports(1000), mask: ports(0xffff) };
    let ipv4 = FlowSpec::Ipv4 { fields: FlowMatch::default(), is_inner: false };
    let udp = FlowSpec::Udp { fields, is_inner: false };
    let drops = one.rule().with(ipv4).with(udp).with(FlowSpec::ActionDrop);
    let drops = one.context.create_flow(&own, drops)?;
    for place in 0..2 {
        one.receive(&mut own, place)?;
    }
    for port in [1000, 2000] {
        other.send(&mut theirs, 0, &frame(one.mac, (7, port), port.into()))?;
    }
    wait_for(&mut one.cq, 0, WcOpcode::RECV)?;
    assert_eq!(one.received(0), frame(one.mac, (7, 2000), 2000), "the first frame was dropped");
    drops.close()?;
    other.send(&mut theirs, 0, &frame(one.mac, (7, 1000), 3))?;
    wait_for(&mut one.cq, 1, WcOpcode::RECV)?;
    assert_eq!(one.received(1), frame(one.mac, (7, 1000), 3), "the rule is gone");
    Ok(())
}

fn a_completion_carries_the_tag_of_its_rule<P: Provider>(context: &Context<P>) -> CaseResult {
    let one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let mut theirs = other.qp(0)?;
    let wc_flags = CqWcFlags::STANDARD | CqWcFlags::FLOW_TAG | CqWcFlags::CVLAN;
    let mut cq = context.create_cq(&CqInit { wc_flags, ..CqInit::new(16) })?;
    let mut own = one.qp_with(QpInit { cap: CAP, ..QpInit::new(QpType::RAW_PACKET, &cq) })?;
    for (place, tag) in [0x12_3456, 1].into_iter().enumerate() {
        let flow = one.context.create_flow(&own, one.rule().with(FlowSpec::ActionTag(tag)))?;
        one.receive(&mut own, place)?;
        other.send(&mut theirs, 0, &frame(one.mac, (1, 2), tag))?;
        let deadline = Instant::now() + fabric::PATIENCE;
        loop {
            let mut completions = cq.poll();
            if let Some(completion) = completions.next() {
                assert_eq!((completion.wr_id(), completion.status()), (place as u64, WcStatus::SUCCESS));
                assert_eq!(completion.flow_tag(), Some(tag));
                assert_eq!(completion.cvlan(), Some(0), "the frame has no VLAN tag");
                break;
            }
            assert!(Instant::now() < deadline, "no completion of the frame with the tag {tag:#x}");
            std::thread::yield_now();
        }
        assert_eq!(one.received(place), frame(one.mac, (1, 2), tag));
        flow.close()?;
    }
    // A tag has 24 bits.
    let beyond = one.rule().with(FlowSpec::ActionTag(1 << 24));
    assert_eq!(one.context.create_flow(&own, beyond).unwrap_err().errno, Errno::INVAL);
    Ok(())
}

fn the_device_computes_the_checksums_of_a_frame<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(0)?, other.qp(0)?);
    let _flow = other.context.create_flow(&theirs, other.rule())?;
    other.receive(&mut theirs, 0)?;
    one.arena.write(0, &frame(one.mac, (1, 2), 5));
    let sge = [one.arena.sge(0..LEN)];
    let flags = SendFlags::SIGNALED | SendFlags::IP_CSUM;
    let posted = post_send(&mut own, &[SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags }]);
    if !context.query_device()?.device_cap_flags.contains(DeviceCapFlags::RAW_IP_CSUM) {
        let refused = PostReason::UnsupportedFlags { op: OpKind::SEND, flags: SendFlags::IP_CSUM };
        assert_eq!(posted.unwrap_err().reason, refused);
        return skip("the device computes no checksums");
    }
    posted?;
    wait_for(&mut one.cq, 1, WcOpcode::SEND)?;
    let wc = wait_for(&mut other.cq, 0, WcOpcode::RECV)?;
    assert!(wc.wc_flags.contains(WcFlags::IP_CSUM_OK), "the receiver looks at them: {wc:?}");
    let got = other.received(0);
    assert_ne!(got[24..26], [0; 2]);
    assert_eq!(sum(words(&got[14..34])), 0, "the checksum of IPv4");
    assert_ne!(got[40..42], [0; 2]);
    // The pseudo-header: addresses, protocol and length.
    let pseudo = words(&got[26..34]).chain([17, (LEN - 34) as u16]);
    assert_eq!(sum(pseudo.chain(words(&got[34..]))), 0, "the checksum of UDP");
    Ok(())
}

fn a_rule_counts_frames_and_bytes<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 10;
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let (mut own, mut theirs) = (one.qp(0)?, other.qp(0)?);
    let counters = match one.context.create_counters() {
        Err(error) if error.errno == Errno::OPNOTSUPP => return skip("the kernel has no counters"),
        counters => counters?,
    };
    // A set needs at least one counter before a rule can use it.
    assert_eq!(one.context.create_flow(&own, counting(&one, &counters)).unwrap_err().errno, Errno::INVAL);
    let attach =
        |counter_desc, index| counters.attach_point_flow(&CounterAttachAttr { counter_desc, index }, None);
    attach(CounterDescription::BYTES, 0)?;
    attach(CounterDescription::PACKETS, 1)?;
    assert_eq!(attach(CounterDescription(7), 2).unwrap_err().errno, Errno::OPNOTSUPP);
    let flow = one.context.create_flow(&own, counting(&one, &counters))?;
    assert_eq!(attach(CounterDescription::PACKETS, 2).unwrap_err().errno, Errno::BUSY);
    for place in 0..COUNT {
        one.receive(&mut own, place)?;
        other.send(&mut theirs, place, &frame(one.mac, (1, 2), 0))?;
    }
    wait(&mut one.cq, COUNT)?;
    let mut values = [0; 2];
    counters.read(&mut values, ReadCountersFlags::empty())?;
    let [bytes, packets] = values;
    assert_eq!(packets, COUNT as u64);
    // Devices may count the frame check sequence.
    assert!((COUNT * LEN..=COUNT * (LEN + 4)).contains(&(bytes as usize)), "{bytes} bytes");
    flow.close()?;
    // Counters can be attached to the set again. A rule can then use the set.
    attach(CounterDescription::PACKETS, 2)?;
    let flow = one.context.create_flow(&own, counting(&one, &counters))?;
    flow.close()?;
    counters.close()?;
    Ok(())
}

/// Returns a rule that matches and counts the frames to a device's address.
fn counting<'a, P: Provider>(
    end: &End<P>,
    counters: &'a Counters<P>,
) -> FlowAttr<&'a verbs::FlowAction<P>, &'a Counters<P>> {
    end.rule().with(FlowSpec::ActionCount(counters))
}

/// Returns a hash configuration over the addresses and ports of UDP over IPv4.
fn hash() -> RxHashConf {
    RxHashConf {
        rx_hash_function: RxHashFunction::TOEPLITZ,
        rx_hash_key: core::array::from_fn::<u8, 40, _>(|byte| (byte * 37 + 11) as u8).into(),
        rx_hash_fields_mask: RxHashFields::SRC_IPV4
            | RxHashFields::DST_IPV4
            | RxHashFields::SRC_PORT_UDP
            | RxHashFields::DST_PORT_UDP,
    }
}

/// Posts receives into these slots to a work queue.
fn receive_by<P: Provider>(end: &End<P>, wq: &mut Wq<P>, places: core::ops::Range<usize>) -> CaseResult {
    for place in places {
        let sge = [end.arena.sge(received_at(place)..received_at(place) + PLACE)];
        post_wq_recv(wq, &[RecvWr { wr_id: place as u64, sge: &sge }])?;
    }
    Ok(())
}

/// Creates a queue pair that receives through an indirection table.
fn spread<P: Provider>(end: &End<P>, wqs: &[&Wq<P>]) -> CaseResult<Qp<verbs::state::Reset, P>> {
    let table = end.context.create_rwq_ind_table(wqs)?;
    let init = QpInit {
        cap: QpCap::default(),
        rss: Some(Rss::new(&table, hash())),
        ..QpInit::new(QpType::RAW_PACKET, &end.cq)
    };
    Ok(end.pd.create_qp(&init)?)
}

fn work_queues_share_the_frames_of_a_queue_pair<P: Provider>(context: &Context<P>) -> CaseResult {
    const FLOWS: usize = 16;
    let one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let mut theirs = other.qp(0)?;
    let mut cqs = [context.create_cq(&CqInit::new(64))?, context.create_cq(&CqInit::new(64))?];
    let mut wqs = [one.wq(&cqs[0])?, one.wq(&cqs[1])?];
    let qp = spread(&one, &[&wqs[0], &wqs[1]])?;
    let _flow = one.context.create_flow(&qp, one.rule())?;
    receive_by(&one, &mut wqs[0], 0..32)?;
    receive_by(&one, &mut wqs[1], 32..64)?;
    // Two frames per flow.
    for n in 0..2 * FLOWS {
        let port = 5000 + (n % FLOWS) as u16;
        other.send(&mut theirs, 0, &frame(one.mac, (port, 2), n as u32))?;
    }
    let deadline = Instant::now() + fabric::PATIENCE;
    let mut taken = [Vec::new(), Vec::new()];
    while taken[0].len() + taken[1].len() < 2 * FLOWS {
        for (cq, taken) in cqs.iter_mut().zip(&mut taken) {
            while let Some(mut completion) = cq.poll().next() {
                let wc = completion.to_wc();
                assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RECV, LEN), "{wc:?}");
                taken.push(wc.wr_id as usize);
            }
        }
        if Instant::now() > deadline {
            return fail(format_args!("{taken:?} of {} frames", 2 * FLOWS));
        }
    }
    let port = |place: usize| u16::from_be_bytes([one.received(place)[34], one.received(place)[35]]);
    let mut ports =
        taken.each_ref().map(|places| places.iter().map(|place| port(*place)).collect::<Vec<_>>());
    for (ports, (places, first)) in ports.iter_mut().zip(taken.iter().zip([0, 32])) {
        assert!(!ports.is_empty(), "one queue took everything");
        assert_eq!(*places, (first..first + places.len()).collect::<Vec<_>>());
        ports.sort_unstable();
        let (pairs, rest) = ports.as_chunks::<2>();
        assert!(
            rest.is_empty() && pairs.iter().all(|[one, other]| one == other),
            "flows are split: {ports:?}"
        );
    }
    Ok(())
}

fn a_work_queue_that_was_reset_starts_anew<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut one = End::new(context)?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let mut theirs = other.qp(0)?;
    let mut wq = one.wq(&one.cq)?;
    let qp = spread(&one, &[&wq, &wq])?;
    let _flow = one.context.create_flow(&qp, one.rule())?;
    for round in 0..3_usize {
        let first = round * 8;
        receive_by(&one, &mut wq, first..first + 4)?;
        for n in 0..2 {
            let sent = frame(one.mac, (n as u16, 2), first as u32 + n as u32);
            other.send(&mut theirs, 0, &sent)?;
            wait_for(&mut one.cq, (first + n) as u64, WcOpcode::RECV)?;
            assert_eq!(one.received(first + n), sent);
        }
        // Two receives are left and never complete.
        move_to(&mut wq, WqState::RESET)?;
        assert_eq!(wq.state(), WqState::RESET);
        let refused = post_wq_recv(&mut wq, &[RecvWr { wr_id: 1, sge: &[] }]).unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (0, PostReason::InvalidState));
        move_to(&mut wq, WqState::RDY)?;
        assert!(is_empty(&mut one.cq));
    }
    Ok(())
}

/// Returns the headers of a TCP segment over IPv4, with lengths for an empty segment.
fn tcp_headers(mac: [u8; 6], seq: u32) -> Vec<u8> {
    let mut headers = [mac, [2, 0, 0, 0, 0, 1]].concat();
    headers.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 1, 1, 1, 10, 1, 1, 2]);
    headers.extend([1000, 2000].into_iter().flat_map(u16::to_be_bytes));
    headers.extend(seq.to_be_bytes());
    headers.extend([0, 0, 0, 7]);
    // 5 words; ACK and PSH; the window; no checksum; no urgent data.
    headers.extend([0x50, 0x18, 0x10, 0, 0, 0, 0, 0]);
    headers
}

fn a_long_segment_leaves_in_frames_of_the_segment_size<P: Provider>(context: &Context<P>) -> CaseResult {
    const HEADERS: usize = 54;
    const MSS: usize = 100;
    const SEQ: u32 = 0xffff_ff80;
    let mut one = End::new(context)?;
    let tso = context.query_device_ex()?.tso_caps;
    if !tso.is_qpt_supported(QpType::RAW_PACKET) {
        return skip("the device does not segment");
    }
    let ex = verbs::QpCreateAttr { max_tso_header: HEADERS as u16, ..Default::default() };
    let mut own = one.qp_with(QpInit { cap: CAP, ex, ..QpInit::new(QpType::RAW_PACKET, &one.cq) })?;
    let mut other: End<Erased> = End::new(&fabric::open()?)?;
    let mut theirs = other.qp(0)?;
    let _flow = other.context.create_flow(&theirs, other.rule())?;
    let hdr = tcp_headers(one.mac, SEQ);
    for (length, frames) in [(1, 1), (MSS, 1), (MSS + 1, 2), (5 * MSS - 3, 5)] {
        for place in 0..frames {
            other.arena.write(received_at(place), &[0; PLACE]);
            other.receive(&mut theirs, place)?;
        }
        let payload = pattern(length as u32, length);
        one.arena.write(0, &payload);
        let cut = length / 2;
        let sge = [one.arena.sge(0..cut), one.arena.sge(cut..length)];
        let op = SendOp::Tso { hdr: &hdr, mss: MSS as u16 };
        let flags = SendFlags::SIGNALED | SendFlags::IP_CSUM;
        post_send(&mut own, &[SendWr { wr_id: 1, op, sge: &sge, flags }])?;
        wait_for(&mut one.cq, 1, WcOpcode::TSO)?;
        for (place, part) in payload.chunks(MSS).enumerate() {
            let wc = wait_for(&mut other.cq, place as u64, WcOpcode::RECV)?;
            // Short frames are padded to the minimum length, which excludes the check sequence.
            let len = (HEADERS + part.len()).max(60);
            assert_eq!(wc.byte_len as usize, len, "{length} bytes, frame {place}");
            let got = other.arena.read(received_at(place)..received_at(place) + HEADERS + part.len());
            assert!(got[..14] == hdr[..14] && got[26..38] == hdr[26..38], "addresses and ports: {got:x?}");
            assert_eq!(got[16..18], (40 + part.len() as u16).to_be_bytes(), "the length of IPv4");
            let seq = SEQ.wrapping_add((place * MSS) as u32);
            assert_eq!(got[38..42], seq.to_be_bytes(), "{length} bytes, frame {place}");
            let is_last = place + 1 == frames;
            assert_eq!(got[47], if is_last { 0x18 } else { 0x10 }, "PSH is that of the last frame");
            assert_eq!(sum(words(&got[14..34])), 0, "the checksum of IPv4");
            let pseudo = words(&got[26..34]).chain([6, 20 + part.len() as u16]);
            assert_eq!(sum(pseudo.chain(words(&got[34..]))), 0, "the checksum of TCP");
            assert_eq!(got[HEADERS..], *part, "{length} bytes, frame {place}");
        }
        assert!(is_empty(&mut other.cq));
    }
    Ok(())
}

fn a_rate_limit_slows_frames_down_and_is_lifted<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 10;
    const KBITS: u32 = 100;
    let mut one = End::new(context)?;
    let caps = context.query_device_ex()?.packet_pacing_caps;
    if !caps.is_qpt_supported(QpType::RAW_PACKET) {
        return skip("the device has no rate limits");
    }
    assert!((caps.qp_rate_limit_min..=caps.qp_rate_limit_max).contains(&KBITS));
    let mut own = one.qp(0)?;
    let sent = frame(one.mac, (1, 2), 0);
    let mut time = |own: &mut Qp<Rts, P>| {
        let start = Instant::now();
        for place in 0..COUNT {
            one.send(own, place, &sent)?;
        }
        Ok::<_, verbs_harness::runner::Stop>(start.elapsed())
    };
    own.modify_rate_limit(&RateLimit { rate_limit: KBITS, ..RateLimit::default() })?;
    // A device may send the first frame at once.
    let least = std::time::Duration::from_micros(((COUNT - 1) * LEN * 8 * 1000) as u64 / u64::from(KBITS));
    let paced = time(&mut own)?;
    assert!(paced >= least, "{COUNT} frames in {paced:?}, which are {least:?} at {KBITS} kbit/s");
    let error =
        own.modify_rate_limit(&RateLimit { rate_limit: caps.qp_rate_limit_max + 1, ..RateLimit::default() });
    assert_eq!(error.unwrap_err().errno, Errno::INVAL);
    // Lifts the limit. With the limit, the device never takes less time. Without it, one of a few
    // attempts takes less, however busy the machine is.
    own.modify_rate_limit(&RateLimit::default())?;
    for _ in 0..20 {
        if time(&mut own)? < least {
            return Ok(());
        }
    }
    panic!("{COUNT} frames still take {least:?}: the limit was not lifted");
}

fn frames_that_cannot_be_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let one = End::new(context)?;
    let mut qp = one.qp(0)?;
    let post = |qp: &mut Qp<Rts, P>, op, length| {
        post_send(qp, &[signalled(1, op, &[one.arena.sge(0..length)])]).unwrap_err().reason
    };
    let refused = post(&mut qp, SendOp::Send, 13);
    assert!(matches!(refused, PostReason::FrameTooShort { given: 13, min: 14 | 18 }), "{refused}");
    for op in [
        SendOp::SendWithImm { imm_data: 1 },
        SendOp::RdmaWrite { remote_addr: 0, rkey: 0 },
        SendOp::Tso { hdr: &[0; 54], mss: 64 },
    ] {
        let refused = post(&mut qp, op, LEN);
        assert_eq!(refused, PostReason::UnsupportedOp { op: op.kind(), qp_type: QpType::RAW_PACKET });
    }
    let wq = one.wq(&one.cq)?;
    let error = one.context.create_rwq_ind_table(&[&wq, &wq, &wq]).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    let error = one.pd.create_wq(&WqInit { max_wr: 1 << 30, ..WqInit::new(&one.cq) }).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    // A queue pair with a table cannot send.
    let table = one.context.create_rwq_ind_table(&[&wq])?;
    let rss = Some(Rss::new(&table, hash()));
    let init = QpInit { rss, ..QpInit::new(QpType::RAW_PACKET, &one.cq) };
    assert_eq!(one.pd.create_qp(&init).unwrap_err().errno, Errno::INVAL);
    Ok(())
}
