//! Connections: private data, data, rejects, backlogs.

use crate::support::{Host, Server, connect};

#[test]
fn both_ends_of_a_connection_are_established() {
    let host = Host::new();
    let server = Server::new(&host);
    let pair = connect(&server);
    assert_eq!(pair.client.peer_addr().unwrap(), Some(server.address.into()));
}
