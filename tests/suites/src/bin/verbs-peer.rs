//! `verbs-peer --listen ADDRESS | --connect ADDRESS`: two such processes try every operation on
//! each other, each with its own device.
//!
//! ```text
//! verbs-peer --listen 192.0.2.1:7471 --device soft0
//! verbs-peer --connect 192.0.2.1:7471 --device rxe0 --gid-index 1
//! ```
//!
//! Prints `ok STEP` for each step and ends with `N steps`; exits with 0 on success. Both sides need
//! the same options, except the device, its GID, `--no-fence` and `--no-reads`. The last two, and
//! `--no-empty` on both sides, avoid operations that fail on devices like rxe.

use std::net::SocketAddr;
use std::process::ExitCode;

use verbs::Mtu;
use verbs_fixtures::peer::link::Link;
use verbs_fixtures::peer::session::{Role, Session};
use verbs_fixtures::peer::steps::{self, Plan};
use verbs_harness::runner::{CaseResult, Stop, fail};

const USAGE: &str = "usage: verbs-peer (--listen | --connect) ADDRESS:PORT [--device NAME] [--gid-index N] [--mtu BYTES]... \
                     [--step NAME]... [--without NAME]... [--min-size BYTES] [--max-size BYTES] [--operations N] [--no-fence] [--no-empty] [--no-reads] [--seed N]";

struct Options {
    device: Option<String>,
    gid_index: Option<u32>,
    place: Option<(bool, SocketAddr)>,
    mtus: Vec<Mtu>,
    only: Vec<String>,
    without: Vec<String>,
    plan: Plan,
    reads: bool,
    seed: u64,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("verbs-peer: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(count) => {
            println!("{count} steps");
            ExitCode::SUCCESS
        }
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("verbs-peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> CaseResult<Options> {
    let mut options = Options {
        device: None,
        gid_index: None,
        place: None,
        mtus: Vec::new(),
        only: Vec::new(),
        without: Vec::new(),
        plan: Plan { min_size: 0, max_size: 1 << 20, operations: 500, fence: true, empty: true },
        reads: true,
        seed: 1,
    };
    while let Some(name) = args.next() {
        let flag = match name.as_str() {
            "--no-fence" => Some(&mut options.plan.fence),
            "--no-reads" => Some(&mut options.reads),
            "--no-empty" => Some(&mut options.plan.empty),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = false;
            continue;
        }
        let value = args.next().ok_or_else(|| Stop::Failed(format!("{name} wants a value")))?;
        match name.as_str() {
            "--device" => options.device = Some(value),
            "--gid-index" => options.gid_index = Some(value.parse()?),
            "--listen" => options.place = Some((true, value.parse()?)),
            "--connect" => options.place = Some((false, value.parse()?)),
            "--mtu" => match Mtu::from_bytes(value.parse()?) {
                Some(mtu) => options.mtus.push(mtu),
                None => return fail(format_args!("{value} is no path MTU")),
            },
            "--step" => options.only.push(value),
            "--without" => options.without.push(value),
            "--max-size" => options.plan.max_size = value.parse()?,
            "--min-size" => options.plan.min_size = value.parse()?,
            "--operations" => options.plan.operations = value.parse()?,
            "--seed" => options.seed = value.parse()?,
            _ => return fail(format_args!("{name} is not known")),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> CaseResult<u64> {
    let Some((is_first, address)) = options.place else { return fail("neither --listen nor --connect") };
    let devices = verbs::devices()?;
    let device = match &options.device {
        Some(name) => devices.find(name)?,
        None => devices.first()?,
    };
    let context = device.open()?;
    let link = if is_first { Link::listen(address)? } else { Link::connect(address)? };
    let mut session =
        Session::new(&context, options.gid_index, options.reads, link, options.seed ^ u64::from(is_first))?;
    let result = steps(&mut session, is_first, options);
    if let Err(Stop::Failed(why) | Stop::Skipped(why)) = &result {
        session.link.give_up(why);
    }
    // Shows the device's packet counters.
    if let Some(soft) = context.raw().downcast_ref::<verbs::soft::Soft>() {
        println!("{:?}", soft.counters());
    }
    result
}

fn steps(
    session: &mut Session<verbs::provider::Erased>,
    is_first: bool,
    options: &Options,
) -> CaseResult<u64> {
    let all = steps::all();
    if let Some(name) =
        options.only.iter().chain(&options.without).find(|name| all.iter().all(|step| step.name != **name))
    {
        return fail(format_args!("there is no step {name}"));
    }
    let mut count = 0;
    let mtus = if options.mtus.is_empty() { vec![session.max_mtu] } else { options.mtus.clone() };
    for (i, mtu) in mtus.into_iter().enumerate() {
        session.mtu = mtu;
        for step in &all {
            let wanted = options.only.is_empty() || options.only.iter().any(|name| name == step.name);
            let unwanted = options.without.iter().any(|name| name == step.name);
            if !wanted || unwanted || step.any_mtu && i > 0 {
                continue;
            }
            for first_asks in [true, false] {
                let role = if first_asks == is_first { Role::Requester } else { Role::Responder };
                let name = format!("{} at {mtu} as {role:?}", step.name);
                (step.run)(session, role, &options.plan).map_err(|stop| stop.context(&name))?;
                println!("ok {name}");
                count += 1;
            }
        }
    }
    Ok(count)
}
