//! InfiniBand: the packets that a connected queue pair accepts, with or without a GRH.

use super::*;
use crate::engine::testing::{HERE, THERE};
use crate::engine::{Arrival, Network, Path};

fn heard(path: Path, arrival: &Arrival) -> bool {
    let mut f = Fixture::with(Service::Rc, &AttrChange { path: Some(path), ..AttrChange::default() });
    f.host.post_recv(f.qpn, 1, &[]);
    let headers = f.request(Opcode::RC_SEND_ONLY, &[]);
    f.host.arrive_from(arrival, &headers, &[]);
    !f.host.completions().is_empty()
}

#[test]
fn without_a_grh_peers_know_each_other_by_local_ids() {
    let path = Path { network: Network::Local, slid: 9, dlid: 7, ..Path::default() };
    let arrival = Arrival { network: Network::Local, slid: 7, dlid: 9, ..Arrival::default() };
    assert!(heard(path, &arrival));
    assert!(heard(Path { local: HERE, remote: THERE, ..path }, &arrival), "GIDs do not count");
    assert!(!heard(path, &Arrival { slid: 8, ..arrival }));
    assert!(!heard(path, &Arrival { dlid: 8, ..arrival }));
    assert!(!heard(path, &Arrival { network: Network::Grh, ..arrival }), "a GRH, and the path has none");
}

#[test]
fn with_a_grh_they_know_each_other_by_gids() {
    let path =
        Path { network: Network::Grh, local: HERE, remote: THERE, slid: 9, dlid: 7, ..Path::default() };
    let arrival =
        Arrival { network: Network::Grh, remote: THERE, local: HERE, slid: 3, dlid: 9, ..Arrival::default() };
    assert!(heard(path, &arrival), "routers have their own local ids");
    assert!(!heard(path, &Arrival { remote: HERE, ..arrival }));
    assert!(
        !heard(path, &Arrival { network: Network::Local, slid: 7, ..arrival }),
        "no GRH where one is due"
    );
}

#[test]
fn responses_take_the_path_of_the_queue_pair() {
    let path = Path { network: Network::Local, slid: 9, dlid: 7, remote: THERE, ..Path::default() };
    let mut f = Fixture::with(Service::Rc, &AttrChange { path: Some(path), ..AttrChange::default() });
    f.host.post_recv(f.qpn, 1, &[]);
    let headers = f.request(Opcode::RC_SEND_ONLY, &[]);
    let arrival = Arrival { network: Network::Local, slid: 7, dlid: 9, ..Arrival::default() };
    f.host.arrive_from(&arrival, &headers, &[]);
    let mut buf = [0; 64];
    let (now, urgency) = (f.host.now, crate::engine::Urgency::All);
    let transmit = f.host.engine.poll_transmit(now, urgency, &mut buf, &mut f.host.log).unwrap();
    assert_eq!(transmit.path, path);
}
