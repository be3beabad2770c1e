//! `registers`: this project's API with doorbell registers of every kind, on a ConnectX device.
//!
//! Environment variables choose the registers. `MLX5_DYN_UAR=0` requests the context's static
//! registers, as with drivers before Linux 5.8. The other variables limit the number of queue pairs
//! with exclusive registers. A case sets them before it opens a device. The model compares each
//! doorbell's UAR with the queue pair's UAR.

use verbs::{
    Context, CqInit, Erased, Errno, ParentDomainInit, Pd, QpInit, QpType, SendFlags, SendOp, import_device,
};
use verbs_fixtures::fabric::{self, PORT, next_completed, pattern};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::variables::{self, Env, with};

const SUITE: &str = "registers";

/// The variable that requests the context's static registers.
const OF_CONTEXT: Env = &[("MLX5_DYN_UAR", "0")];

/// The `conformance` topics to run with each choice of doorbell registers: posting in every form,
/// completions and events.
const TOPICS: &[&str] = &["rc", "rc_queues", "datagram", "cq_events"];

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let mut cases = variables::conformance(SUITE, TOPICS, OF_CONTEXT);
    let mut add = |name: &str, run: fn() -> CaseResult, env: Env| {
        cases.push(with(Case::new(SUITE, name, run), env));
    };
    add("pairs_beyond_the_registers_share", pairs, &[("MLX5_TOTAL_UUARS", "4")]);
    add(
        "pairs_beyond_the_registers_share_those_of_the_context",
        pairs,
        &[("MLX5_TOTAL_UUARS", "4"), ("MLX5_DYN_UAR", "0")],
    );
    add(
        "pairs_have_as_many_registers_as_are_low_latency",
        pairs,
        &[("MLX5_NUM_LOW_LAT_UUARS", "3"), ("MLX5_TOTAL_UUARS", "8"), ("MLX5_DYN_UAR", "0")],
    );
    add("pairs_without_blue_flame_share", pairs, &[("MLX5_SHUT_UP_BF", "1")]);
    add(
        "pairs_without_blue_flame_share_those_of_the_context",
        pairs,
        &[("MLX5_SHUT_UP_BF", "1"), ("MLX5_DYN_UAR", "0")],
    );
    add(
        "pairs_ring_for_requests_without_inline_data",
        pairs,
        &[("MLX5_POST_SEND_PREFER_BF", "0"), ("MLX5_DYN_UAR", "0")],
    );
    add("thread_domains_keep_a_register", domains, &[("MLX5_TOTAL_UUARS", "4")]);
    add(
        "thread_domains_keep_a_register_that_follows_the_context",
        domains,
        &[("MLX5_TOTAL_UUARS", "4"), ("MLX5_DYN_UAR", "0")],
    );
    add("a_context_with_registers_is_not_imported", import, OF_CONTEXT);
    cases
}

/// Sends, with and without inline data, on more live queue pairs than there are registers.
fn pairs() -> CaseResult {
    let context = fabric::open()?;
    let pd = context.alloc_pd()?;
    talk(&context, &[&pd; 12])
}

/// Sends on queue pairs in two thread domains. The queue pairs outnumber the registers. One queue
/// pair in each domain uses the domain's register.
fn domains() -> CaseResult {
    let context = fabric::open()?;
    let pd = context.alloc_pd()?;
    let tds = [context.alloc_td()?, context.alloc_td()?];
    let parent =
        |td| pd.alloc_parent_domain(&ParentDomainInit { td: Some(td), ..ParentDomainInit::default() });
    let parents = [parent(&tds[0])?, parent(&tds[1])?];
    let [first, second] = [&parents[0], &parents[1]];
    // Runs twice, because the domains reuse their registers.
    for _ in 0..2 {
        talk(&context, &[first, second, first, second, first, &pd, &pd])?;
    }
    Ok(())
}

/// Creates a queue pair in each domain, connected to itself. Sends through each in turn.
fn talk(context: &Context<Erased>, pds: &[&Pd<Erased>]) -> CaseResult {
    const ROUNDS: u32 = 3;
    const LEN: usize = 24;
    let port = context.port(PORT)?;
    let mut cq = context.create_cq(&CqInit::new(64))?;
    let mut qps = Vec::new();
    for pd in pds {
        let init = QpInit::new(QpType::RC, &cq);
        let cap = verbs::QpCap { max_inline_data: 64, ..init.cap };
        let qp = pd.create_qp(&QpInit { cap, ..init })?;
        let own = qp.endpoint(&port);
        qps.push(qp.connect(&port, &own, &verbs::ConnectAttr::default())?);
    }
    for round in 0..ROUNDS {
        for (number, (qp, pd)) in qps.iter_mut().zip(pds).enumerate() {
            let data = pattern(round * 100 + number as u32, LEN);
            for is_inline in [false, true] {
                qp.post_recv_buf(pd.alloc_buf(LEN)?, ..)?;
                if is_inline {
                    qp.post_send_inline(number as u64, SendOp::Send, SendFlags::SIGNALED, &data)?;
                } else {
                    let mut message = pd.alloc_buf(LEN)?;
                    message.copy_from_slice(&data);
                    qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
                }
                let mut arrived = 0;
                for _ in 0..2 {
                    let completed = next_completed(&mut cq)?;
                    if completed.opcode.is_recv() {
                        assert_eq!(completed.into_buf()?[..LEN], data, "queue pair {number}, round {round}");
                        arrived += 1;
                    }
                }
                assert_eq!(arrived, 1);
            }
        }
    }
    Ok(())
}

fn import() -> CaseResult {
    let context = fabric::open()?;
    // The registers exist, but their owner could not coordinate with another process.
    talk(&context, &[&context.alloc_pd()?])?;
    let file = fabric::export(&context)?;
    let Err(error) = import_device(file) else { return fail("the context is imported") };
    assert_eq!((error.verb, error.errno), ("import_device", Errno::INVAL), "{error}");
    assert!(error.to_string().contains("registers came with the context"), "{error}");
    Ok(())
}
