//! Scopes with requests that the device does not end: the process aborts before memory still
//! written by the device is reused.
//!
//! Each test runs itself again as a child process, which aborts.

mod common;

use std::any::TypeId;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use common::setup::ready;
use common::{Kind, Paper, World, within};
use nix::sys::resource::{Resource, setrlimit};
use verbs::state::Rts;
use verbs::{Context, Cq, CqInit, Errno, FlowAttr, Pd, Provider, Qp, QpState};

both! {
    a_device_that_neither_destroys_nor_resets_aborts_the_process
    a_reset_that_does_not_end_requests_aborts_the_process
    a_panic_of_the_closure_does_not_prevent_the_abort
    a_destruction_that_panics_aborts_the_process
    a_queue_pair_with_flow_rules_that_is_not_reset_aborts_the_process
    one_queue_pair_of_several_aborts_the_process
}

/// The environment variable that makes the test, in the child, run and end the scope.
const IN_CHILD: &str = "VERBS_SCOPE_IN_CHILD";

/// Runs the end of a scope in a child and returns the child's output: errors from the hook of
/// [`verbs::on_leak`], and a line if the child survives the scope.
fn aborted<P: Provider>(test: &str, scope: impl FnOnce()) -> String {
    if std::env::var_os(IN_CHILD).is_some() {
        // The abort is intended and must leave no core dump.
        setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("a limit can be lowered");
        verbs::on_leak(|error| eprintln!("the hook got {} {}", error.verb, error.errno));
        match catch_unwind(AssertUnwindSafe(scope)) {
            Ok(()) => eprintln!("the scope returned"),
            Err(_) => eprintln!("the scope unwound"),
        }
        std::process::exit(0);
    }
    let module = if TypeId::of::<P>() == TypeId::of::<Paper>() { "named" } else { "erased" };
    let mut command = Command::new(std::env::current_exe().expect("a test has a program file"));
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]).env(IN_CHILD, "1");
    let output = within("the child", move || command.output()).expect("it can be started");
    let written = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.signal(),
        Some(nix::sys::signal::Signal::SIGABRT as i32),
        "{}: {written}",
        output.status
    );
    assert!(!written.contains("the scope"), "{written}");
    assert!(written.matches("the hook got").count() <= 1, "one leak is reported once: {written}");
    written
}

fn parts<P: Provider>(context: &Context<P>) -> (Pd<P>, Cq<P>, Qp<Rts, P>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    let qp = ready(&pd, &cq);
    (pd, cq, qp)
}

/// Ends a scope with a receive in flight.
fn end_in_flight<P: Provider>(pd: &Pd<P>, qp: Qp<Rts, P>) {
    let mut inbox = [0; 8];
    pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut inbox).unwrap(), ..).unwrap();
    });
}

fn a_device_that_neither_destroys_nor_resets_aborts_the_process<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let written = aborted::<P>("a_device_that_neither_destroys_nor_resets_aborts_the_process", || {
        let (pd, _cq, qp) = parts(&context);
        world.refuse(Kind::Qp, Errno::BUSY);
        world.state().refuse_move = Some((QpState::RESET, Errno::IO));
        end_in_flight(&pd, qp);
    });
    assert!(written.contains("the hook got destroy_qp EBUSY"), "{written}");
}

fn a_reset_that_does_not_end_requests_aborts_the_process<P: Provider>(world: &World, context: Context<P>) {
    let written = aborted::<P>("a_reset_that_does_not_end_requests_aborts_the_process", || {
        let (pd, _cq, qp) = parts(&context);
        world.refuse(Kind::Qp, Errno::BUSY);
        // A RESET would succeed, but the device would keep writing.
        world.state().forgets_late = true;
        end_in_flight(&pd, qp);
    });
    assert!(written.contains("the hook got destroy_qp EBUSY"), "{written}");
}

fn a_panic_of_the_closure_does_not_prevent_the_abort<P: Provider>(world: &World, context: Context<P>) {
    let written = aborted::<P>("a_panic_of_the_closure_does_not_prevent_the_abort", || {
        let (pd, _cq, qp) = parts(&context);
        world.refuse(Kind::Qp, Errno::BUSY);
        world.state().refuse_move = Some((QpState::RESET, Errno::IO));
        let mut inbox = [0; 8];
        pd.scope(qp, |scope, mut qp| {
            qp.post_recv_buf(scope.register(&mut inbox).unwrap(), ..).unwrap();
            panic!("the closure panics, as asked");
        });
    });
    assert!(written.contains("the closure panics, as asked"), "{written}");
    assert!(written.contains("the hook got destroy_qp EBUSY"), "{written}");
}

fn a_destruction_that_panics_aborts_the_process<P: Provider>(world: &World, context: Context<P>) {
    let written = aborted::<P>("a_destruction_that_panics_aborts_the_process", || {
        let (pd, _cq, qp) = parts(&context);
        world.state().panic_on_destroy = Some(Kind::Qp);
        end_in_flight(&pd, qp);
    });
    assert!(written.contains("destroy_qp panics, as asked"), "{written}");
}

fn a_queue_pair_with_flow_rules_that_is_not_reset_aborts_the_process<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let written = aborted::<P>("a_queue_pair_with_flow_rules_that_is_not_reset_aborts_the_process", || {
        let (pd, _cq, qp) = parts(&context);
        // The kernel would destroy the queue pair only after its rule.
        let _flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
        world.state().refuse_move = Some((QpState::RESET, Errno::IO));
        end_in_flight(&pd, qp);
    });
    assert!(written.contains("the hook got destroy_qp EBUSY"), "{written}");
}

fn one_queue_pair_of_several_aborts_the_process<P: Provider>(world: &World, context: Context<P>) {
    let written = aborted::<P>("one_queue_pair_of_several_aborts_the_process", || {
        let (pd, cq, one) = parts(&context);
        let other = ready(&pd, &cq);
        world.refuse(Kind::Qp, Errno::BUSY);
        world.state().refuse_move = Some((QpState::RESET, Errno::IO));
        let mut inbox = [0; 8];
        // The first queue pair has no request and is returned; the second has one.
        pd.scope((one, vec![other]), |scope, (_, mut rest)| {
            rest[0].post_recv_buf(scope.register(&mut inbox).unwrap(), ..).unwrap();
        });
    });
    assert_eq!(written.matches("the hook got").count(), 1, "{written}");
}
