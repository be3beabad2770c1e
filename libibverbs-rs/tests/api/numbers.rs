//! The `wr_id`s of safe requests: unique while a completion queue lives.

use std::collections::HashSet;

use verbs::{CqInit, InitAttr, QpCap, QpInit, QpType, RtrAttr, RtsAttr, SendFlags, SendOp};

#[test]
fn queue_pairs_never_share_a_number_however_many_each_has_used() {
    // More `wr_id`s than a table reserves at a time.
    const EACH: usize = (1 << 16) + 100;
    let (world, device) = crate::common::world("numbers");
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(&CqInit::new(8)).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut qps = [(); 2].map(|()| {
        let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
        let qp = pd.create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
        qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap()
    });
    let mut numbers = HashSet::new();
    let mut spare = Some(pd.alloc_buf(1).unwrap());
    for n in 0..2 * EACH {
        let qp = &mut qps[n % 2];
        let buf = spare.take().unwrap();
        let number = qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..).unwrap();
        assert!(numbers.insert(number), "request {n} has the number of an earlier one, {number:#x}");
        world.complete(qp.qp_num(), false, &[0]);
        spare = cq.poll_one().unwrap().into_buf().ok();
    }
}
