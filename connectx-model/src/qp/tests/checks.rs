//! UMR checks that no driver requests.

use super::umr::{BIND_ERROR, FREE, KEY, QPN, Umr, bed, lender, outcome};
use super::*;
use crate::layout::wqe::umr_ctrl;

#[test]
fn checks_that_drivers_do_not_request_are_reported() {
    type Make = fn(&Bed, &Pair, &Memory, u32) -> Vec<u8>;
    let made = |make: Make| {
        let (mut bed, mut cq, mut one, _, memory, key) = bed();
        let wqe = make(&bed, &one, &memory, key);
        bed.post(&mut one, &wqe);
        let entry = bed.poll(&mut cq).unwrap();
        (bed.rules(), outcome(&entry))
    };
    fn free() -> Umr {
        Umr::new(FREE).context(mkc::FREE, 1)
    }
    let reported: [Make; 4] = [
        // An invalidation that checks for a valid key.
        |bed, one, memory, _| free().control(umr_ctrl::CHECK_FREE, 2).wqe(bed, one, memory.key, &[]),
        // A registration without a check, and one that checks for the opposite state.
        |bed, one, _, key| {
            let umr = lender(key, 0, 2).control(umr_ctrl::KLM_OCTOWORDS, 4);
            umr.control(umr_ctrl::CHECK_FREE, 0).wqe(bed, one, key, &[0; 64])
        },
        |bed, one, memory, _| {
            let umr = lender(memory.key, memory.va, PAGE);
            umr.control(umr_ctrl::CHECK_FREE, 2).wqe(bed, one, memory.key, &[])
        },
        // A change that checks the queue pair.
        |bed, one, memory, _| {
            let umr = Umr::new(1 << 17).context(mkc::LR, 1).control(umr_ctrl::CHECK_QPN, 1);
            umr.wqe(bed, one, memory.key, &[])
        },
    ];
    for make in reported {
        assert_eq!(made(make), (vec![Rule::UmrForm], (SUCCESS, 0)));
    }
    let contradictory: Make =
        |bed, one, memory, _| free().control(umr_ctrl::CHECK_FREE, 1).wqe(bed, one, memory.key, &[]);
    assert_eq!(made(contradictory), (vec![Rule::UmrForm], BIND_ERROR));
    // The invalidations that libmlx5 and the kernel write.
    let silent: [Make; 2] = [
        |bed, one, memory, _| free().wqe(bed, one, memory.key, &[]),
        |bed, one, memory, _| {
            let umr = Umr::new(FREE | KEY | QPN).context(mkc::FREE, 1).control(umr_ctrl::CHECK_QPN, 1);
            umr.wqe(bed, one, memory.key, &[])
        },
    ];
    for make in silent {
        assert_eq!(made(make), (vec![], (SUCCESS, 0)));
    }
}
