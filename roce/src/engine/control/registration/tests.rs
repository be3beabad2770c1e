//! Keys that their owner chooses and changes, the protection domains that keys hold, and packets
//! that use such keys.

use super::*;
use crate::engine::testing::{ALL, Host, connected, random};
use crate::engine::{Config, Service, Status};
use crate::sim::{VecMemory, VecRegion};
use crate::wire::{Headers, NakCode, Opcode, Psn, Syndrome, bth, ieth, reth};

/// Registers 64 zeros at 0x1000, under a key that ends with 0x42.
fn keyed(host: &mut Host, invalidate: bool) -> u32 {
    let (buffer, pd) = (host.engine.memory().add(vec![0; 64]), host.pd);
    let attr = MemoryAttr { pd, iova: 0x1000, length: 64, access: ALL };
    let region = VecRegion { buffer, start: 0, length: 64 };
    host.engine.reg_mr_keyed(&attr, region, 0x42, invalidate).unwrap()
}

/// Returns the syndrome of the response to a write with key `key`.
fn write(host: &mut Host, key: u32) -> Syndrome {
    let init = host.init(Service::Rc);
    let qpn = host.qp(&init, &connected());
    let mut bth = bth::Repr::new(Opcode::RC_RDMA_WRITE_ONLY, qpn.0, Psn::new(0xff_fffe));
    bth.ack_req = true;
    let mut headers = Headers::new(bth);
    headers.reth = Some(reth::Repr { va: 0x1000, rkey: key, dmalen: 4 });
    host.arrive(&headers, &[1; 4]);
    host.sent()[0].0.aeth.unwrap().syndrome
}

#[test]
fn a_region_for_all_serves_each_domain_and_its_peers() {
    let mut host = Host::new();
    let buffer = host.engine.memory().add(vec![0; 0x1010]);
    let key = host.engine.reg_mr_for_all(VecRegion { buffer, start: 0, length: 0x1010 }).unwrap();
    let other = host.engine.alloc_pd().unwrap();
    for pd in [host.pd, other] {
        let local = |need| host.engine.objects.memory_regions.local(pd, key, 0x1000, 4, need).is_some();
        assert!(local(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE));
        assert!(!local(Access::REMOTE_ATOMIC) && !local(Access::MW_BIND));
    }
    // The null region does not keep a protection domain in use.
    host.engine.dealloc_pd(other).unwrap();
    assert_eq!(write(&mut host, key), Syndrome::ACK);
    host.engine.dereg_mr(key).unwrap();
    assert_eq!(write(&mut host, key), Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR));
}

#[test]
fn a_peer_cannot_write_while_a_region_is_invalid() {
    let mut host = Host::new();
    let key = keyed(&mut host, false);
    assert_eq!((key & 0xff, write(&mut host, key)), (0x42, Syndrome::ACK));
    let invalid = MrChange { valid: Some(false), new_variant: Some(0x43), ..MrChange::default() };
    let moved = host.engine.update_mr(key, invalid).unwrap();
    assert_eq!((moved, host.engine.mr_is_valid(key >> 8)), (key ^ 1, Some(false)));
    let refused = Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!((write(&mut host, key), write(&mut host, moved)), (refused, refused));
    host.engine.update_mr(key, MrChange { valid: Some(true), ..MrChange::default() }).unwrap();
    assert_eq!((write(&mut host, key), write(&mut host, moved)), (refused, Syndrome::ACK));
    assert_eq!(host.engine.mr_by_index(key >> 8).unwrap().0, moved);
}

#[test]
fn a_change_of_the_domain_takes_the_reference_along() {
    let mut host = Host::new();
    let (key, other) = (keyed(&mut host, false), host.engine.alloc_pd().unwrap());
    let gone = host.engine.alloc_pd().unwrap();
    host.engine.dealloc_pd(gone).unwrap();
    let to = |pd| MrChange { pd: Some(pd), ..MrChange::default() };
    assert_eq!(host.engine.update_mr(key, to(gone)), Err(Refused::NoSuchObject));
    assert_eq!(host.engine.dealloc_pd(host.pd), Err(Refused::Busy));
    assert_eq!(host.engine.update_mr(key, to(other)), Ok(key));
    assert_eq!(
        (host.engine.dealloc_pd(host.pd), host.engine.dealloc_pd(other)),
        (Ok(()), Err(Refused::Busy))
    );
    let wraps = MrChange { iova_and_length: Some((u64::MAX, 2)), ..MrChange::default() };
    assert!(matches!(host.engine.update_mr(key, wraps), Err(Refused::Invalid(_))));
    assert!(host.engine.dereg_mr(key).is_ok());
    assert_eq!(host.engine.dealloc_pd(other), Ok(()), "a refused change does not use the protection domain");
    assert_eq!(host.engine.update_mr(key, MrChange::default()), Err(Refused::NoSuchObject));
}

#[test]
fn a_send_takes_back_a_region_that_was_made_for_it_and_no_other() {
    for invalidate in [true, false] {
        let mut host = Host::new();
        let key = keyed(&mut host, invalidate);
        let init = host.init(Service::Rc);
        let qpn = host.qp(&init, &connected());
        host.post_recv(qpn, 1, &[]);
        let bth = bth::Repr::new(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, qpn.0, Psn::new(0xff_fffe));
        let headers = Headers { ieth: Some(ieth::Repr { rkey: key }), ..Headers::new(bth) };
        host.arrive(&headers, &[]);
        let done = host.completions()[0];
        let expected = if invalidate { Status::Success } else { Status::RemoteInvalidRequest };
        assert_eq!((done.status, done.invalidated), (expected, invalidate.then_some(key)));
        assert_eq!(host.engine.mr_is_valid(key >> 8), Some(!invalidate));
    }
}

#[test]
fn numbers_of_protection_domains_have_24_bits() {
    let config = Config { max_pd: u32::MAX, ..Config::default() };
    let mut engine = Engine::new(config, VecMemory::default(), random());
    for _ in 0..1000 {
        let (kept, pd) = (engine.alloc_pd().unwrap(), engine.alloc_pd().unwrap());
        assert!(kept.0 < 1 << 24 && pd.0 < 1 << 24 && pd.0 > 0);
        engine.dealloc_pd(pd).unwrap();
    }
}

#[test]
fn a_windows_key_ends_as_its_owner_wants() {
    let mut host = Host::new();
    let window = host.engine.alloc_mw_keyed(host.pd, MwType::Two, 0xa5).unwrap();
    assert_eq!(window & 0xff, 0xa5);
    assert_eq!(host.engine.mr_by_index(window >> 8), None);
    assert_eq!(host.engine.dealloc_mw(window ^ 0xff), Ok(()), "work requests change the low 8 bits");
    assert_eq!(host.engine.dealloc_mw(window), Err(Refused::NoSuchObject));
}

#[test]
fn bytes_are_gathered_and_scattered_by_key_only_within_its_range_and_domain() {
    let mut host = Host::new();
    let (key, other) = (keyed(&mut host, false), host.engine.alloc_pd().unwrap());
    let part = |addr, length| Sge { addr, length, lkey: key };
    host.engine.scatter(host.pd, &[part(0x1000, 2), part(0x1030, 8)], &[1, 2, 3, 4]).unwrap();
    let mut bytes = [0; 3];
    host.engine.gather(host.pd, &[part(0x1001, 1), part(0x1030, 2)], &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 4]);
    let refused = |result| matches!(result, Err(Refused::Invalid(_)));
    assert!(refused(host.engine.gather(other, &[part(0x1000, 3)], &mut bytes)), "another domain's");
    assert!(refused(host.engine.gather(host.pd, &[part(0x103f, 3)], &mut bytes)), "behind the end");
    assert!(refused(host.engine.gather(host.pd, &[part(0x1000, 2)], &mut bytes)), "too short");
}
