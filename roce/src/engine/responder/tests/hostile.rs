//! Packets from a hostile peer that knows all numbers and keys. Each receive must end exactly once,
//! and responses must end.

use proptest::prelude::*;

use super::*;
use crate::engine::testing::to;
use crate::engine::{State, Urgency};

/// A request with fields that are mostly valid.
#[derive(Clone, Debug)]
struct Any {
    operation: u8,
    psn: i32,
    len: usize,
    pad: u8,
    va: i64,
    dmalen: u32,
    key: u32,
}

fn any_request() -> impl Strategy<Value = Any> {
    let len = prop_oneof![4 => Just(256usize), 2 => 0usize..10, 1 => 0usize..600];
    let dmalen = prop_oneof![4 => 0u32..1200, 1 => any::<u32>()];
    let psn = prop_oneof![8 => Just(0i32), 2 => -5..5, 1 => any::<i32>()];
    let key = prop_oneof![8 => Just(0u32), 1 => any::<u32>()];
    let va = prop_oneof![8 => 0i64..3000, 1 => any::<i64>()];
    (0u8..32, psn, len, prop_oneof![8 => Just(4u8), 1 => 0u8..4], va, dmalen, key).prop_map(
        |(operation, psn, len, pad, va, dmalen, key)| Any { operation, psn, len, pad, va, dmalen, key },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn each_receive_ends_once_whatever_arrives(
        service in prop_oneof![Just(Service::Rc), Just(Service::Uc)],
        requests in prop::collection::vec(any_request(), 1..60),
        respond_every in 1usize..5,
    ) {
        let mut f = Fixture::new(service);
        let mut posted = 0;
        let mut responses = 0;
        for (n, any) in requests.iter().enumerate() {
            if f.host.engine.objects.qps.get(f.qpn.0).unwrap().rq.len() < 3 && n % 3 == 0 {
                f.post(posted, 0, 700);
                posted += 1;
            }
            let code = if service == Service::Rc { crate::wire::Service::Rc } else { crate::wire::Service::Uc };
            let payload = data(any.len);
            let (_, attr) = f.host.engine.query_qp(f.qpn).unwrap();
            let psn = Psn::new(attr.rq_psn.wrapping_add(any.psn as u32));
            let mut headers = Headers::new(bth::Repr::new(Opcode::new(code, any.operation), f.qpn.0, psn));
            headers.bth.pad_cnt = if any.pad == 4 { pad_for(any.len) } else { any.pad };
            headers.bth.ack_req = n % 2 == 0;
            let va = f.mr.addr.wrapping_add(any.va as u64);
            let rkey = f.mr.key ^ any.key;
            headers.reth = Some(reth::Repr { va, rkey, dmalen: any.dmalen });
            headers.atomic_eth = Some(atomic_eth::Repr { va: va & !7, rkey, swap_add: 1, compare: 0 });
            f.host.arrive(&headers, &payload);
            if n % respond_every == 0 && f.host.transmit(Urgency::Now).is_some() {
                responses += 1;
            }
        }
        responses += f.host.sent().len();
        // A read has at most 16 response packets, because it reads at most the whole memory. Each
        // request causes at most one more response.
        prop_assert!(responses <= requests.len() * 17);
        prop_assert!(service == Service::Rc || responses == 0);
        f.host.modify(f.qpn, &to(State::Err));
        prop_assert!(f.sent().is_empty());
        let ended: Vec<u64> = f.host.completions().iter().map(|done| done.wr_id).collect();
        prop_assert_eq!(ended, (0..posted).collect::<Vec<_>>());
        prop_assert_eq!(u64::from(f.host.log.retired_recvs), posted);
    }
}
