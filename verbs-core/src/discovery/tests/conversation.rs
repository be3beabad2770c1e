//! Netlink replies, and messages that do not belong to the reply.

use super::*;

/// Returns a netlink that reports one device in full.
fn one() -> Canned {
    Canned::new(&[&[device(0, "rxe0"), done()], &[chardev("uverbs0", 192)]])
}

fn files() -> Files {
    Files::nodes(&["uverbs0", "uverbs1"])
}

/// Returns the devices and the netlink error that discovery over `wire` reports, with files in
/// `/dev` and no sysfs.
fn outcome(mut wire: Canned) -> (Vec<String>, Option<NetlinkError>) {
    let found = files().discover(&mut wire);
    (found.devices.into_iter().map(|device| device.name).collect(), found.netlink_error)
}

fn only_rxe0() -> (Vec<String>, Option<NetlinkError>) {
    (vec!["rxe0".into()], None)
}

#[test]
fn several_messages_fit_into_one_datagram() {
    let all = [device(0, "rxe0"), device(1, "rxe1"), done()];
    // Canned patches only the first message of a datagram.
    let mut datagram = all.concat();
    let (second, third) = (all[0].len(), all[0].len() + all[1].len());
    datagram[second + 8] = 1;
    datagram[third + 8] = 1;
    let wire = Canned::new(&[&[datagram], &[chardev("uverbs0", 192)], &[chardev("uverbs1", 193)]]);
    assert_eq!(outcome(wire), (vec!["rxe0".into(), "rxe1".into()], None));
}

#[test]
fn no_devices_is_an_answer() {
    let found = files().discover(&mut Canned::new(&[&[done()]]));
    assert_eq!((found.devices.len(), found.source, found.netlink_error), (0, Source::Netlink, None));
}

#[test]
fn a_dump_may_end_without_an_error_code() {
    let mut wire = one();
    wire.replies[0][1].1 = message(NLMSG_DONE, MULTI, &[]);
    assert_eq!(outcome(wire), only_rxe0());
}

#[test]
fn datagrams_of_others_and_answers_to_other_questions_are_passed_over() {
    let mut wire = one();
    let mut stale = device(7, "stale");
    stale[8] = 77;
    let mut stale_end = done();
    stale_end[8] = 77;
    wire.replies[0].insert(0, (4242, device(8, "forged")));
    wire.replies[0].insert(1, (4242, done()));
    wire.replies[0].insert(2, (0, stale));
    wire.replies[0].insert(3, (0, stale_end));
    wire.replies[0].insert(4, (0, message(NLMSG_NOOP, 0, &[])));
    wire.replies[0].insert(5, (0, message(0x7777, MULTI, b"who knows")));
    let forged = message(NLMSG_ERROR, 0, &(-5_i32).to_ne_bytes());
    wire.replies[1].insert(0, (4242, forged));
    assert_eq!(outcome(wire), only_rxe0());
}

#[test]
fn an_interrupted_dump_is_asked_for_again() {
    let interrupted = message(GET, MULTI | DUMP_INTR, &device_attrs(9, b"gone").concat());
    let mut wire = one();
    for _ in 0..3 {
        wire.replies.push_front(vec![(0, interrupted.clone()), (0, done())]);
    }
    assert_eq!(outcome(wire), only_rxe0());
}

#[test]
fn a_dump_that_is_always_interrupted_is_given_up() {
    let interrupted = message(NLMSG_DONE, MULTI | DUMP_INTR, &0_i32.to_ne_bytes());
    let mut wire = one();
    for _ in 0..100 {
        wire.replies.push_front(vec![(0, interrupted.clone())]);
    }
    assert_eq!(outcome(wire), (vec![], Some(NetlinkError::Interrupted)));
}

#[test]
fn errors_of_the_kernel_come_through() {
    for (reply, error) in [
        (refusal(Errno::INVAL), NetlinkError::Refused(Errno::INVAL)),
        (message(NLMSG_DONE, MULTI, &(-1_i32).to_ne_bytes()), NetlinkError::Refused(Errno::PERM)),
        (message(NLMSG_ERROR, 0, &i32::MIN.to_ne_bytes()), NetlinkError::Refused(Errno::IO)),
        (message(NLMSG_ERROR, 0, &[1, 2, 3]), NetlinkError::Malformed("an error is cut off")),
        (message(NLMSG_OVERRUN, 0, &[]), NetlinkError::Malformed("data was lost")),
        (vec![0; 40_000], NetlinkError::Malformed("a datagram is too long")),
        (vec![], NetlinkError::Malformed("a datagram is empty")),
    ] {
        assert_eq!(outcome(Canned::new(&[&[reply]])), (vec![], Some(error)));
    }
}

#[test]
fn an_acknowledgement_is_no_character_device() {
    let mut wire = one();
    wire.replies[1][0].1 = message(NLMSG_ERROR, 0, &0_i32.to_ne_bytes());
    let found = files().discover(&mut wire);
    assert_eq!(reasons(&found), [("rxe0", &SkipReason::NoChardev { errno: None })]);
}

#[test]
fn a_kernel_that_says_nothing_is_not_waited_for_twice() {
    let expected = Some(NetlinkError::Io(Errno::TIMEDOUT));
    assert_eq!(outcome(Canned::default()), (vec![], expected));
}

#[test]
fn an_answer_without_end_is_given_up() {
    struct Endless(Vec<u8>, u32);
    impl Wire for Endless {
        fn send(&mut self, _: &[u8]) -> Result<(), Errno> {
            Ok(())
        }
        fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
            buffer[..self.0.len()].copy_from_slice(&self.0);
            Ok((self.0.len(), self.1))
        }
    }
    let mut ours = device(0, "rxe0");
    ours[8] = 1;
    for mut endless in [Endless(ours.clone(), 0), Endless(ours, 4242), Endless(device(0, "stale"), 0)] {
        let found = files().discover(&mut endless);
        assert_eq!(found.netlink_error, Some(NetlinkError::Malformed("it does not end")));
        assert_eq!(found.devices, []);
    }
}

#[test]
fn a_device_that_comes_twice_is_listed_once_where_it_came_first() {
    let dump = [device(3, "rxe3"), device(1, "rxe1"), device(3, "rxe3"), done()];
    let mut wire = Canned::new(&[&dump, &[chardev("uverbs0", 192)], &[chardev("uverbs1", 193)]]);
    let found = files().discover(&mut wire);
    assert_eq!(names(&found), ["rxe3", "rxe1"]);
    assert_eq!(found.skipped, []);
}
