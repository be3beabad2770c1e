//! A process short of memory.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};
use rdmacm::{EventChannel, Listener, PortSpace};
use verbs::{Cause, Errno, Result};

use crate::process::{Process, start};
use crate::support::Host;

#[test]
#[cfg_attr(verbs_portable_copies, ignore = "sanitizers end a process that is short of memory")]
fn channels_ids_and_listeners_are_enomem_where_memory_is_short_and_work_again_later() {
    let mut process = Process(start("memory"));
    assert!(process.0.wait().unwrap().success());
}

/// The test's body, which runs in a separate process.
pub(crate) fn of_memory() {
    let host = Host::new();
    // Threads start while there is memory.
    let first = Listener::bind(host.at(0)).unwrap();
    let channel = EventChannel::new().unwrap();
    // Each amount makes a different allocation fail.
    for spare in [16, 60, 70, 80, 100, 200, 400].map(|kib| kib << 10) {
        until_refused(spare, || channel.create_id(PortSpace::TCP));
        until_refused(spare, EventChannel::new);
        until_refused(spare, || Listener::bind(host.at(0)));
        let id = channel.create_id(PortSpace::TCP).unwrap();
        id.bind_addr(host.at(0)).unwrap();
        Listener::bind(host.at(0)).unwrap();
    }
    drop(first);
}

/// Creates objects until creating one fails, in a process with at most `spare` bytes of free
/// memory.
fn until_refused<T>(spare: usize, mut create: impl FnMut() -> Result<T>) {
    /// A number of objects that does not fit into memory.
    const MOST: usize = 100_000;
    let mut objects = Vec::with_capacity(MOST);
    let mut taken = Vec::<Vec<u8>>::with_capacity(MOST);
    let kept = Vec::<u8>::with_capacity(spare);
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let page = sysconf(SysconfVar::PAGE_SIZE).unwrap().unwrap() as u64;
    setrlimit(Resource::RLIMIT_AS, pages * page, hard).unwrap();
    // The allocator still holds memory of earlier objects. Small pieces remain for errors.
    let mut size = 1 << 22;
    while size >= 64 && taken.len() < taken.capacity() {
        let mut piece = Vec::new();
        match piece.try_reserve_exact(size) {
            Ok(()) => taken.push(piece),
            Err(_) => size /= 2,
        }
    }
    drop(kept);
    let error = loop {
        match create() {
            Ok(object) if objects.len() < objects.capacity() => objects.push(object),
            Ok(_) => panic!("the limit has no effect"),
            Err(error) => break error,
        }
    };
    // Destroying objects works even when creating fails.
    objects.clear();
    taken.clear();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    assert_eq!(error.errno, Errno::NOMEM, "{error}");
    assert!(matches!(error.cause, Cause::Allocation { .. }), "{error}");
}
