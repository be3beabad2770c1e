//! Tests that send packets from an outbox to an inbox, over loopback.

use std::net::IpAddr;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roce::engine::Path;
use roce::wire::ICRC_LEN;
use roce::wire::icrc::{Flow, Icrc, compute};
use verbs_core::Errno;

use super::address::{Name, address_of, gid_of};
use super::control::Control;
use super::socket::Reach;
use super::sys::{self, Message, Slot};
use super::{Flush, Inbox, Outbox, Socket};

/// Returns two sockets at different addresses with the same port.
fn pair(net: u8) -> (Socket, Socket) {
    let here = Socket::bind_alone([127, 9, net, 1].into(), 0, 0).expect("a free port");
    let there = Socket::bind_alone([127, 9, net, 2].into(), here.port(), 0).expect("the same port beside it");
    there.tell_headers().expect("options");
    (here, there)
}

fn path(from: &Socket, to: &Socket) -> Path {
    Path { local: from.gid(), remote: to.gid(), ..Path::default() }
}

/// Returns a packet of `len` bytes that differs from packets with other marks.
fn packet(len: usize, mark: usize) -> Vec<u8> {
    packet_to(SLOT, len, mark)
}

/// Returns a unique packet for a queue pair whose number has the upper 8 bits `slot`.
fn packet_to(slot: u8, len: usize, mark: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) + mark.wrapping_mul(7919) + len) as u8;
    (0..len).map(|at| if at == 5 { slot } else { byte(at) }).collect()
}

const SLOT: u8 = 0x5a;

fn put(outbox: &mut Outbox, bytes: &[u8], path: &Path) {
    outbox.space().expect("space")[..bytes.len()].copy_from_slice(bytes);
    outbox.push(bytes.len(), path);
}

fn put_all(outbox: &mut Outbox, lengths: &[usize], path: &Path) -> Vec<Vec<u8>> {
    let packets: Vec<_> = lengths.iter().enumerate().map(|(mark, &len)| packet(len, mark)).collect();
    packets.iter().for_each(|bytes| put(outbox, bytes, path));
    packets
}

fn wait(socket: &Socket) {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::from(5000u16)).expect("poll");
    assert_eq!(ready, 1, "nothing arrived within 5 s: {:?}", socket.counters());
}

/// Receives until `count` packets have arrived.
fn take(socket: &Socket, inbox: &mut Inbox, count: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait(socket);
        inbox.receive(socket).expect("receive");
        while let Some(received) = inbox.next(socket) {
            packets.push(received.bytes[..received.bytes.len() - ICRC_LEN].to_vec());
        }
    }
    packets
}

#[test]
fn a_packet_arrives_as_it_was_with_where_it_came_from() {
    let (here, there) = pair(2);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let sent = put_all(&mut outbox, &[20], &path(&here, &there));
    assert!(!outbox.is_empty());
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert!(outbox.is_empty());
    wait(&there);
    assert_eq!(inbox.receive(&there), Ok(1));
    let received = inbox.next(&there).expect("a packet");
    assert_eq!(received.bytes[..received.bytes.len() - ICRC_LEN], sent[0]);
    assert_eq!((received.arrival.remote, received.arrival.local), (here.gid(), there.gid()));
    assert_eq!((received.arrival.traffic_class, received.arrival.hop_limit), (0, here.default_hop_limit()));
    assert!(inbox.next(&there).is_none());
    assert_eq!(inbox.receive(&there), Ok(0), "nothing more, and no waiting for it");
    assert_eq!((here.counters().sent, here.counters().sent_bytes, here.counters().joined), (1, 24, 0));
    assert_eq!((there.counters().received, there.counters().received_bytes), (1, 24));
}

#[test]
fn packets_of_one_length_share_a_datagram_and_part_again() {
    let (here, there) = pair(3);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let sent = put_all(&mut outbox, &[1040, 1040, 1040, 1040, 300], &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 5), sent);
    assert_eq!(here.counters().sends, 1);
    assert_eq!(here.counters().joined, if here.gso() { 5 } else { 0 });
    let counters = there.counters();
    assert_eq!((counters.bad_icrc, counters.other_id), (0, 0), "each segment's identification was foreseen");
}

#[test]
fn packets_for_processes_that_share_an_address_and_management_datagrams_do_not_share_a_datagram() {
    let (here, there) = pair(24);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let path = path(&here, &there);
    let mut mad = packet_to(0, 280, 5);
    mad[6..8].copy_from_slice(&[0, 1]);
    let sent = [
        packet_to(1, 280, 0),
        packet_to(1, 280, 1),
        packet_to(2, 280, 2),
        packet_to(1, 280, 3),
        mad.clone(),
        mad,
        packet_to(0, 280, 4),
    ];
    sent.iter().for_each(|bytes| put(&mut outbox, bytes, &path));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 7), sent);
    assert_eq!(here.counters().joined, if here.gso() { 2 } else { 0 });
}

#[test]
fn packets_for_another_slot_are_dropped_and_the_kernel_joins_no_more() {
    let address = [127, 9, 25, 1].into();
    let there = Socket::bind_shared(address, 4791, Reach::Network).expect("a free address");
    let here = Socket::bind_alone([127, 9, 25, 2].into(), 4791, 0).expect("a free address");
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let path = path(&here, &there);
    let own = there.slot();
    // Joined as by a network card's driver, which does not know slots.
    let foreign = packet_to(own ^ 0xff, 280, 1);
    for bytes in [packet_to(own, 280, 0), packet_to(own, 280, 1)] {
        put(&mut outbox, &bytes, &path);
    }
    outbox.replace_last(&foreign);
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 1), [packet_to(own, 280, 0)]);
    assert!(inbox.next(&there).is_none());
    assert_eq!(there.counters().unknown_slot, if here.gso() { 1 } else { 0 });
    assert_eq!(sys::option(there.as_fd(), libc::SOL_UDP, libc::UDP_GRO), Ok(if here.gso() { 0 } else { 1 }));
}

#[test]
fn a_receive_never_overwrites_packets_that_were_not_taken_out() {
    let (here, there) = pair(23);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    // One datagram of two packets, if the kernel supports it, and a second datagram.
    for lengths in [&[24, 20][..], &[28]] {
        put_all(&mut outbox, lengths, &path(&here, &there));
        assert_eq!(outbox.flush(&here), Flush::Done);
    }
    wait(&there);
    let mut lengths = Vec::new();
    while lengths.len() < 3 {
        assert!(inbox.receive(&there).expect("receive") > 0, "{lengths:?}");
        assert!(!inbox.is_empty());
        lengths.extend(inbox.next(&there).map(|received| received.bytes.len() - ICRC_LEN));
    }
    assert_eq!(lengths, [24, 20, 28]);
    assert!(inbox.next(&there).is_none() && inbox.is_empty());
}

#[test]
fn a_receiver_without_gro_gets_segments_with_the_same_icrcs() {
    let (here, there) = pair(4);
    sys::set_option(there.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0).expect("UDP_GRO off");
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let sent = put_all(&mut outbox, &[500; 10], &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 10), sent);
    // Each arrives separately now, so only the ICRC determines its identification.
    assert_eq!(there.counters().other_id, if here.gso() { 9 } else { 0 });
    assert_eq!(there.counters().bad_icrc, 0);
}

#[test]
fn any_mix_of_lengths_and_paths_arrives_in_order() {
    let (here, there) = pair(5);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let plain = path(&here, &there);
    let other = Path { traffic_class: 8, hop_limit: 7, ..plain };
    let lengths = [12, 4140, 4140, 4140, 16, 16, 17, 16, 4140, 12, 12, 300, 4140, 4140];
    let mut sent = put_all(&mut outbox, &lengths, &plain);
    sent.extend(put_all(&mut outbox, &lengths, &other));
    sent.extend(put_all(&mut outbox, &lengths, &plain));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, sent.len()), sent);
    assert_eq!(there.counters().other_id, 0);
}

#[test]
fn traffic_class_and_hop_limit_arrive_with_each_segment() {
    let (here, there) = pair(6);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let path = Path { traffic_class: 0x68, hop_limit: 3, ..path(&here, &there) };
    put_all(&mut outbox, &[64, 64, 64], &path);
    assert_eq!(outbox.flush(&here), Flush::Done);
    let mut seen = 0;
    while seen < 3 {
        wait(&there);
        inbox.receive(&there).expect("receive");
        while let Some(received) = inbox.next(&there) {
            assert_eq!((received.arrival.traffic_class, received.arrival.hop_limit), (0x68, 3));
            seen += 1;
        }
    }
}

#[test]
fn a_full_box_says_so_and_loses_nothing() {
    let (here, there) = pair(7);
    let (mut outbox, mut inbox) = (Outbox::with_size(&here, 64 << 10, 4), Inbox::new(&there));
    let path = path(&here, &there);
    let mut sent = Vec::new();
    while let Some(space) = outbox.space() {
        let bytes = packet(4140, sent.len());
        space[..bytes.len()].copy_from_slice(&bytes);
        outbox.push(bytes.len(), &path);
        sent.push(bytes);
    }
    assert_eq!(sent.len(), 15, "64 KiB hold 15 of the longest packets");
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, sent.len()), sent);

    // Each packet is longer than the previous one, so none can join.
    for len in [20, 24, 28, 32] {
        put(&mut outbox, &packet(len, len), &path);
    }
    assert!(outbox.space().is_none(), "four datagrams are all that fit");
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert!(outbox.space().is_some());
    assert_eq!(take(&there, &mut inbox, 4).len(), 4);
}

#[test]
fn more_packets_than_a_datagram_may_have_leave_in_several() {
    let (here, there) = pair(8);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let sent = put_all(&mut outbox, &[16; 150], &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 150), sent);
    let many = put_all(&mut outbox, &[4140; 40], &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 40), many);
    assert_eq!(here.counters().not_sent + here.counters().too_long, 0);
}

#[test]
fn more_datagrams_than_one_call_takes_leave_in_several() {
    let (here, there) = pair(9);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let lengths: Vec<_> = (0..50).map(|step| 20 + 4 * step).collect();
    let sent = put_all(&mut outbox, &lengths, &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(here.counters().sends, 2, "50 datagrams, {} a call", sys::BATCH);
    assert_eq!(take(&there, &mut inbox, 50), sent);
}

#[test]
fn damaged_packets_are_counted_and_dropped() {
    let (here, there) = pair(10);
    let mut inbox = Inbox::new(&there);
    let icrc = Icrc::new(Flow {
        src: here.address(),
        dst: there.address(),
        src_port: here.port(),
        dst_port: there.port(),
    });
    let send = |bytes: &[u8]| {
        let to = Name::new(there.address(), there.port(), 0);
        sys::send(here.as_fd(), &Message { to: &to, control: &Control::EMPTY, payload: bytes })
            .expect("send");
    };
    let mut good = packet(40, 1);
    let crc = compute(icrc.seed(0, true, 44), &good);
    good.extend(crc.to_le_bytes());
    let mut foreign = packet(40, 2);
    foreign.extend(compute(icrc.seed(4711, true, 44), &foreign).to_le_bytes());
    let mut damaged = good.clone();
    damaged[20] ^= 1;
    send(&damaged);
    send(&good[..15]);
    send(&[]);
    send(&foreign);
    send(&good);
    assert_eq!(take(&there, &mut inbox, 2), [&foreign[..40], &good[..40]]);
    let counters = there.counters();
    assert_eq!((counters.bad_icrc, counters.malformed, counters.other_id), (1, 2, 1), "{counters:?}");
    assert_eq!(counters.received, 2);
}

#[test]
fn a_datagram_that_is_cut_off_is_dropped() {
    let (here, there) = pair(11);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::with_size(&there, 2, 100));
    let path = path(&here, &there);
    put(&mut outbox, &packet(200, 1), &path);
    assert_eq!(outbox.flush(&here), Flush::Done);
    put(&mut outbox, &packet(40, 2), &path);
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 1), [packet(40, 2)]);
    assert_eq!(there.counters().malformed, 1);
}

#[test]
fn ipv6_packets_arrive_with_exact_icrcs() {
    let Ok(socket) = Socket::bind_alone("::1".parse().expect("an address"), 0, 0) else {
        eprintln!("skipped: this host has no IPv6");
        return;
    };
    let (mut outbox, mut inbox) = (Outbox::new(&socket), Inbox::new(&socket));
    let path = Path { traffic_class: 4, hop_limit: 9, ..path(&socket, &socket) };
    let sent = put_all(&mut outbox, &[1040, 1040, 1040, 40], &path);
    assert_eq!(outbox.flush(&socket), Flush::Done);
    assert_eq!(take(&socket, &mut inbox, 4), sent);
    assert_eq!((socket.counters().bad_icrc, socket.counters().other_id), (0, 0));
}

#[test]
fn what_cannot_be_sent_is_lost_and_the_rest_is_not() {
    let (here, there) = pair(12);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let good = path(&here, &there);
    let v6 = Path { remote: gid_of("2001:db8::1".parse().expect("an address")), ..good };
    // Packets from a loopback address cannot leave the host.
    let outside = Path { remote: gid_of(IpAddr::from([192, 0, 2, 1])), ..good };
    put(&mut outbox, &packet(20, 1), &good);
    put(&mut outbox, &packet(20, 2), &v6);
    put_all(&mut outbox, &[40, 40, 20], &outside);
    put(&mut outbox, &packet(20, 3), &good);
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 2), [packet(20, 1), packet(20, 3)]);
    let counters = here.counters();
    assert_eq!(counters.sent, 2);
    assert_eq!(counters.unreachable + counters.not_sent + counters.forbidden, 4, "{counters:?}");
}

#[test]
fn a_datagram_that_the_device_refuses_leaves_packet_by_packet() {
    let (here, there) = pair(13);
    if !here.gso() {
        eprintln!("skipped: no UDP GSO here");
        return;
    }
    // Without checksums the kernel does not split datagrams, as if the device could not compute
    // checksums.
    sys::set_option(here.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("SO_NO_CHECK");
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let path = Path { hop_limit: 5, ..path(&here, &there) };
    let sent = put_all(&mut outbox, &[400, 400, 400, 100], &path);
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 4), sent);
    assert_eq!((here.counters().sent, here.counters().joined), (4, 0));
    let counters = there.counters();
    assert_eq!((counters.other_id, counters.bad_icrc), (0, 0), "ICRCs were made again, for identification 0");
}

#[test]
fn what_the_kernel_and_network_cards_send_over_ipv6_has_no_udp_checksum_and_arrives() {
    // Only IPv6 drops datagrams without a checksum, unless the socket accepts them.
    let address = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
    let Ok(there) = Socket::bind_alone(address, 0, 0) else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let sender = sys::datagram_socket(libc::AF_INET6).expect("a socket");
    sys::set_option(sender.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).expect("UDP_NO_CHECK6_TX");
    let (to, bytes) = (Name::new(address, there.port(), 0), packet(64, 1));
    sys::send(sender.as_fd(), &Message { to: &to, control: &Control::EMPTY, payload: &bytes }).expect("send");
    wait(&there);
    let mut slot = Slot::new(8192);
    sys::receive(there.as_fd(), &mut slot).expect("receive");
    assert_eq!(slot.payload[..slot.len], bytes);
}

#[test]
fn a_box_that_was_put_off_goes_on_where_it_was() {
    // On loopback a datagram is in the receiver's buffer when the call returns, so no send buffer
    // fills up: the test simulates EAGAIN.
    let (here, there) = pair(14);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let path = path(&here, &there);
    let mut sent = put_all(&mut outbox, &[64, 64, 64], &path);
    outbox.be_refused_for_now();
    sent.extend(put_all(&mut outbox, &[64, 64], &path));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 5), sent);
    assert_eq!(there.counters().other_id, 0, "two datagrams, each counted from 0");
}

#[test]
fn a_long_queue_is_taken_in_few_calls() {
    let (here, there) = pair(15);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let lengths: Vec<_> = (0..40).map(|step| 20 + 4 * step).collect();
    let sent = put_all(&mut outbox, &lengths, &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut inbox, 40), sent);
    assert!(there.counters().receives <= 6, "1 + 4 + 16 + 16 + 3: {:?}", there.counters());
    assert!(!inbox.more(), "the last call found room for more than there was");
}

#[test]
fn the_receive_buffer_holds_what_it_says() {
    let (here, there) = pair(16);
    let to = Name::new(there.address(), there.port(), 0);
    let bytes = packet(4140, 0);
    // The kernel charges at most 9 KiB for one packet.
    let fit = there.rcvbuf() / (9 << 10);
    for _ in 0..fit {
        sys::send(here.as_fd(), &Message { to: &to, control: &Control::EMPTY, payload: &bytes })
            .expect("send");
    }
    let mut slot = Slot::new(8192);
    let mut held = 0;
    loop {
        match sys::receive(there.as_fd(), &mut slot) {
            Ok(()) => held += 1,
            Err(Errno::AGAIN) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    assert_eq!(held, fit);
}

#[test]
fn a_remote_gid_is_its_address() {
    let (here, _there) = pair(17);
    assert_eq!(address_of(here.gid()), here.address());
}

/// Sends short packets one by one until receives are plain.
fn make_plain(outbox: &mut Outbox, inbox: &mut Inbox, (here, there): (&Socket, &Socket)) {
    for mark in 0..64 {
        let bytes = packet(28, mark);
        put(outbox, &bytes, &path(here, there));
        assert_eq!(outbox.flush(here), Flush::Done);
        assert_eq!(take(there, inbox, 1), [bytes]);
        assert_eq!(inbox.receive(there), Ok(0));
    }
}

/// Returns two sockets at different addresses with the same port, which do not report headers.
fn plain_pair(net: u8) -> (Socket, Socket) {
    let here = Socket::bind_alone([127, 9, net, 1].into(), 0, 0).expect("a free port");
    let there = Socket::bind_alone([127, 9, net, 2].into(), here.port(), 0).expect("the same port beside it");
    (here, there)
}

#[test]
fn joined_packets_after_single_ones_are_split() {
    let (here, there) = plain_pair(40);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    for lengths in [&[36, 16][..], &[12; 9], &[3000, 3000, 3000], &[4108; 15], &[400, 400, 12]] {
        make_plain(&mut outbox, &mut inbox, (&here, &there));
        let packets = put_all(&mut outbox, lengths, &path(&here, &there));
        assert_eq!(outbox.flush(&here), Flush::Done);
        assert_eq!(take(&there, &mut inbox, packets.len()), packets);
    }
    let counters = there.counters();
    assert_eq!((counters.bad_icrc, counters.other_id, counters.malformed), (0, 0, 0));
}

#[test]
fn damaged_packets_after_good_ones_are_dropped() {
    let (here, there) = plain_pair(41);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    for round in 1..=3 {
        make_plain(&mut outbox, &mut inbox, (&here, &there));
        let bytes = packet(200, 1);
        outbox.space().expect("space")[..bytes.len()].copy_from_slice(&bytes);
        outbox.push_damaged(bytes.len(), &path(&here, &there), Some(300));
        let good = packet(28, 2);
        assert_eq!(outbox.flush(&here), Flush::Done);
        put(&mut outbox, &good, &path(&here, &there));
        assert_eq!(outbox.flush(&here), Flush::Done);
        assert_eq!(take(&there, &mut inbox, 1), [good]);
        assert_eq!(there.counters().bad_icrc, round);
    }
}

#[test]
fn packets_to_this_host_leave_from_a_connected_socket() {
    let (here, there) = pair(42);
    let (mut outbox, mut inbox) = (Outbox::new(&here), Inbox::new(&there));
    let sender = here.sender_to(there.gid()).expect("a socket");
    let port = sender.port;
    assert!(outbox.connected.begin(there.gid(), true) && !outbox.connected.begin(there.gid(), false));
    assert!(outbox.connected.begin([9; 16], true), "another address");
    outbox.connected.add(there.gid(), Some(sender));
    let packets = put_all(&mut outbox, &[4108, 4108, 20], &path(&here, &there));
    assert_eq!(outbox.flush(&here), Flush::Done);
    wait(&there);
    inbox.receive(&there).expect("a datagram");
    for bytes in packets {
        let received = inbox.next(&there).expect("a packet");
        assert_eq!((&received.bytes[..bytes.len()], received.arrival.src_port), (&bytes[..], Some(port)));
    }
    assert_ne!(port, here.port());
}

#[test]
fn a_peer_that_was_away_gets_the_first_packet_after_its_return() {
    let (here, there) = pair(43);
    let mut outbox = Outbox::new(&here);
    outbox.connected.add(there.gid(), here.sender_to(there.gid()));
    let (address, port, path) = (there.address(), there.port(), path(&here, &there));
    drop(there);
    for mark in 0..3 {
        put(&mut outbox, &packet(28, mark), &path);
        assert_eq!(outbox.flush(&here), Flush::Done);
    }
    let there = Socket::bind_alone(address, port, 0).expect("the same port");
    let bytes = packet(28, 3);
    put(&mut outbox, &bytes, &path);
    assert_eq!(outbox.flush(&here), Flush::Done);
    assert_eq!(take(&there, &mut Inbox::new(&there), 1), [bytes]);
    assert_eq!(here.counters().unreachable, 0);
}
