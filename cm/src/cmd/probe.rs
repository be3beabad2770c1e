//! Support for InfiniBand addresses, the one kernel feature that only a command reveals.

use std::sync::Arc;

use verbs::{Gid, Result};
use verbs_core::fork::ForkLock;

use super::{addr, id};
use crate::channel::Ucma;
use crate::types::{Address, IbAddress, PortSpace};

/// Opens the connection manager's file. The first call of the process probes the kernel.
///
/// # Errors
/// Same as [`Ucma::open`].
pub(crate) fn open() -> Result<Arc<Ucma>> {
    let ucma = Ucma::open()?;
    // The kernel does not change while the process runs.
    static TAKES_IB: ForkLock<Option<bool>> = ForkLock::new(None);
    let _ = ucma.takes_ib.set(TAKES_IB.get_or_init(|| probe(&ucma)));
    Ok(Arc::new(ucma))
}

/// Returns whether the kernel accepts InfiniBand addresses. Such a kernel has the commands for any
/// address family (`BIND`, `RESOLVE_ADDR`, `QUERY`, `JOIN_MCAST`); older kernels have only the
/// commands for IP addresses. The kernel is probed once.
pub(crate) fn takes_ib(ucma: &Ucma) -> bool {
    *ucma.takes_ib.get_or_init(|| probe(ucma))
}

/// Probes the kernel for InfiniBand addresses by binding an id to one.
fn probe(ucma: &Ucma) -> bool {
    let any = Address::Ib(IbAddress { pkey: 0, ..IbAddress::new(Gid::ZERO, PortSpace::TCP, 0) });
    // The id is destroyed before any of its events could be read, so it needs no unique cookie.
    let Ok(id) = id::create_id(ucma, u64::MAX, PortSpace::IB, PortSpace::IB.qp_type()) else {
        return false;
    };
    let takes_ib = addr::bind(ucma, id, &any).is_ok();
    let _ = id::destroy_id(ucma, id);
    takes_ib
}

#[cfg(test)]
mod tests {
    use verbs::Errno;

    use super::*;
    use crate::channel::{Expect, MAX_ABI, Reply, Scripted};

    /// Returns the probe's commands: create an id in the space IB, bind it, destroy it.
    fn script(bind: Reply) -> Vec<Expect> {
        let create = "0: in ffffffffffffffff00000000000000003f01020000000000, out 4";
        let address = [
            "1b00",
            "0000",
            "00000000",
            "00000000000000000000000000000000",
            "0000000001060000",
            "ffffffffffff0000",
            "0000000000000000",
        ]
        .concat();
        let bind_text = format!("20: in 0900000030000000{address}{}", "00".repeat(80));
        vec![
            Expect::command(create, Reply::bytes(&9_u32.to_ne_bytes())),
            Expect::command(&bind_text, bind),
            Expect::command("1: in 00000000000000000900000000000000, out 4", Reply::bytes(&[0; 4])),
        ]
    }

    #[test]
    fn the_kernel_is_asked_once_for_infiniband_addresses() {
        for (reply, expected) in [(Reply::ok(), true), (Reply::Errno(Errno::INVAL), false)] {
            let kernel = Scripted::new(script(reply));
            let ucma = Ucma::new(kernel.clone(), MAX_ABI).unwrap();
            assert_eq!(takes_ib(&ucma), expected);
            assert_eq!(takes_ib(&ucma), expected);
            assert_eq!(kernel.seen().len(), 3);
        }
    }

    #[test]
    fn a_kernel_that_makes_no_id_for_the_probe_takes_no_infiniband_addresses() {
        let kernel = Scripted::new([Expect::anything(Reply::Errno(Errno::NOMEM))]);
        assert!(!takes_ib(&Ucma::new(kernel, MAX_ABI).unwrap()));
    }
}
