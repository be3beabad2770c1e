//! [`Ports`]: the ports used by the soft ids of this process.
//!
//! A port belongs to a port space and an address. Unspecified addresses and addresses of the other
//! family collide as in the Linux function `cma_check_port`, with the same errno: `EADDRNOTAVAIL`
//! if one of two addresses is unspecified, and otherwise `EADDRINUSE`.
//!
//! Soft ports are independent of socket ports. None is privileged.
//!
//! # References
//! linux `cma_use_port`, `cma_alloc_any_port`

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;

use verbs::Errno;

use super::key::Key;

/// The ports in use in all port spaces, with the ids that use them.
#[derive(Debug, Default)]
pub(super) struct Ports {
    owners: BTreeMap<(u16, u16), Vec<Owner>>,
    /// The file with the system's range of ephemeral ports. The range may change.
    range: Option<File>,
}

/// The properties of an id that determine whether another id may use its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) key: Key,
    pub(super) ip: IpAddr,
    /// The interface of a link-local IPv6 address; 0 for other addresses.
    pub(super) scope: u32,
    /// Whether the port may be shared with other ids that also allow reuse.
    pub(super) reuse: bool,
    /// Whether the address covers only its own family.
    pub(super) af_only: bool,
}

impl Owner {
    /// Checks that this id may use the same port as another id.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the ids collide and one of the addresses is unspecified; `EADDRINUSE` if
    /// the addresses are equal.
    fn check(&self, other: &Self) -> Result<(), Errno> {
        if self.key == other.key || self.reuse && other.reuse {
            return Ok(());
        }
        if self.af_only && other.af_only && self.ip.is_ipv4() != other.ip.is_ipv4() {
            return Ok(());
        }
        if self.ip.is_unspecified() || other.ip.is_unspecified() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let is_same = (self.ip, self.scope) == (other.ip, other.scope);
        if is_same { Err(Errno::ADDRINUSE) } else { Ok(()) }
    }
}

impl Ports {
    /// Assigns a port to an id; 0 stands for a free ephemeral port. Other processes may use some
    /// ephemeral ports.
    ///
    /// # Errors
    /// `EADDRINUSE` or `EADDRNOTAVAIL` if the port is taken; `EADDRNOTAVAIL` if no ephemeral port
    /// is free; `ENOMEM` if memory is short.
    pub(super) fn take(
        &mut self,
        space: u16,
        port: u16,
        owner: Owner,
        is_taken: impl Fn(u16) -> bool,
    ) -> Result<u16, Errno> {
        let port = if port == 0 { self.draw(space, is_taken)? } else { port };
        let owners = self.owners.entry((space, port)).or_default();
        owners.iter().try_for_each(|other| owner.check(other))?;
        if owners.try_reserve(1).is_err() {
            if owners.is_empty() {
                self.owners.remove(&(space, port));
            }
            return Err(Errno::NOMEM);
        }
        owners.push(owner);
        Ok(port)
    }

    /// Makes a port exclusive to a listener.
    ///
    /// # Errors
    /// `EADDRINUSE` or `EADDRNOTAVAIL` if another id uses the port as well.
    pub(super) fn claim(&mut self, space: u16, port: u16, key: Key) -> Result<(), Errno> {
        let owners = self.owners.entry((space, port)).or_default();
        let Some(at) = owners.iter().position(|owner| owner.key == key) else { return Ok(()) };
        let owner = Owner { reuse: false, ..owners[at] };
        owners.iter().try_for_each(|other| owner.check(other))?;
        owners[at] = owner;
        Ok(())
    }

    /// Records the address assigned to an id when the id resolved its peer's address.
    pub(super) fn move_to(&mut self, space: u16, port: u16, key: Key, (ip, scope): (IpAddr, u32)) {
        let owners = self.owners.get_mut(&(space, port));
        if let Some(owner) = owners.into_iter().flatten().find(|owner| owner.key == key) {
            (owner.ip, owner.scope) = (ip, scope);
        }
    }

    /// Frees the port of an id.
    pub(super) fn release(&mut self, space: u16, port: u16, key: Key) {
        if let Some(owners) = self.owners.get_mut(&(space, port)) {
            owners.retain(|owner| owner.key != key);
            if owners.is_empty() {
                self.owners.remove(&(space, port));
            }
        }
    }

    /// Returns a free ephemeral port. The search starts at a random port.
    fn draw(&mut self, space: u16, is_taken: impl Fn(u16) -> bool) -> Result<u16, Errno> {
        let (first, last) = self.ephemeral();
        let count = u32::from(last - first) + 1;
        let start = verbs_core::random::draw()? % count;
        (0..count)
            .map(|step| first + ((start + step) % count) as u16)
            .find(|port| !self.owners.contains_key(&(space, *port)) && !is_taken(*port))
            .ok_or(Errno::ADDRNOTAVAIL)
    }

    /// Returns the first and the last of the system's ephemeral ports.
    fn ephemeral(&mut self) -> (u16, u16) {
        if self.range.is_none() {
            self.range = File::open("/proc/sys/net/ipv4/ip_local_port_range").ok();
        }
        let mut text = [0; 32];
        let read = self.range.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = read.and_then(|len| str::from_utf8(&text[..len]).ok());
        text.and_then(range).unwrap_or((32768, 60999))
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    let (first, last) = (numbers.next()?, numbers.next()?);
    (first > 0 && first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const TCP: u16 = 0x106;

    fn owner(key: u64, ip: impl Into<IpAddr>) -> Owner {
        Owner { key: Key(key), ip: ip.into(), scope: 0, reuse: false, af_only: true }
    }

    /// Stands for a check that finds no other process using a port.
    fn nobody(_: u16) -> bool {
        false
    }

    #[test]
    fn a_port_has_one_id_at_an_address_and_the_unspecified_one_is_every_address() {
        let mut ports = Ports::default();
        assert_eq!(ports.take(TCP, 80, owner(1, [127, 0, 0, 2]), nobody), Ok(80));
        assert_eq!(ports.take(TCP, 80, owner(2, [127, 0, 0, 2]), nobody), Err(Errno::ADDRINUSE));
        assert_eq!(ports.take(TCP, 80, owner(3, Ipv4Addr::UNSPECIFIED), nobody), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(ports.take(TCP, 80, owner(4, [127, 0, 0, 3]), nobody), Ok(80));
        assert_eq!(ports.take(0x111, 80, owner(5, [127, 0, 0, 2]), nobody), Ok(80));
        ports.release(TCP, 80, Key(1));
        assert_eq!(ports.take(TCP, 80, owner(2, [127, 0, 0, 2]), nobody), Ok(80));
    }

    #[test]
    fn a_link_local_address_is_one_of_an_interface() {
        let mut ports = Ports::default();
        let on = |key, scope| Owner { scope, ..owner(key, "fe80::1".parse::<Ipv6Addr>().unwrap()) };
        assert_eq!(ports.take(TCP, 80, on(1, 2), nobody), Ok(80));
        assert_eq!(ports.take(TCP, 80, on(2, 2), nobody), Err(Errno::ADDRINUSE));
        assert_eq!(ports.take(TCP, 80, on(2, 3), nobody), Ok(80));
    }

    #[test]
    fn an_id_that_has_resolved_has_its_port_at_one_address() {
        let mut ports = Ports::default();
        assert_eq!(ports.take(TCP, 80, owner(1, Ipv4Addr::UNSPECIFIED), nobody), Ok(80));
        ports.move_to(TCP, 80, Key(1), ([127, 0, 0, 2].into(), 0));
        assert_eq!(ports.take(TCP, 80, owner(2, [127, 0, 0, 2]), nobody), Err(Errno::ADDRINUSE));
        assert_eq!(ports.take(TCP, 80, owner(3, [127, 0, 0, 3]), nobody), Ok(80));
    }

    #[test]
    fn families_are_apart_only_where_both_say_so() {
        let mut ports = Ports::default();
        assert_eq!(ports.take(TCP, 80, owner(1, Ipv4Addr::UNSPECIFIED), nobody), Ok(80));
        let both = Owner { af_only: false, ..owner(2, Ipv6Addr::UNSPECIFIED) };
        assert_eq!(ports.take(TCP, 80, both, nobody), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(ports.take(TCP, 80, owner(2, Ipv6Addr::UNSPECIFIED), nobody), Ok(80));
    }

    #[test]
    fn a_shared_port_belongs_to_one_listener() {
        let mut ports = Ports::default();
        let shared = |key| Owner { reuse: true, ..owner(key, [127, 0, 0, 2]) };
        assert_eq!(ports.take(TCP, 80, shared(1), nobody), Ok(80));
        assert_eq!(ports.take(TCP, 80, shared(2), nobody), Ok(80));
        assert_eq!(ports.claim(TCP, 80, Key(1)), Err(Errno::ADDRINUSE));
        ports.release(TCP, 80, Key(2));
        assert_eq!(ports.claim(TCP, 80, Key(1)), Ok(()));
        assert_eq!(ports.take(TCP, 80, shared(3), nobody), Err(Errno::ADDRINUSE));
    }

    #[test]
    fn drawn_ports_are_distinct_and_ephemeral() {
        let mut ports = Ports::default();
        let (first, last) = ports.ephemeral();
        let drawn: std::collections::BTreeSet<_> = (1..100)
            .map(|key| ports.take(TCP, 0, owner(key, Ipv4Addr::UNSPECIFIED), nobody).unwrap())
            .collect();
        assert_eq!(drawn.len(), 99);
        assert!(drawn.iter().all(|port| (first..=last).contains(port)));
    }

    #[test]
    fn ports_of_other_processes_are_not_drawn() {
        let mut ports = Ports::default();
        let (first, last) = ports.ephemeral();
        let any = Ipv4Addr::UNSPECIFIED;
        assert_eq!(ports.take(TCP, 0, owner(1, any), |port| port != first), Ok(first));
        assert_eq!(ports.take(TCP, 0, owner(2, any), |port| port != last), Ok(last));
        assert_eq!(ports.take(TCP, 0, owner(3, any), |port| port != last), Err(Errno::ADDRNOTAVAIL));
    }

    #[test]
    fn a_malformed_range_is_the_usual_one() {
        assert_eq!(range("32768\t60999\n"), Some((32768, 60999)));
        for text in ["", "1", "5 4", "0 9", "a b"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
