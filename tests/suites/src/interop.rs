//! `interop`: our tools and rdma-core's tools, against each other and side by side.

use std::iter;
use std::process::Command;
use std::time::Duration;

use verbs::{OdpGeneralCaps, OdpTransportCaps};
use verbs_c_programs::compare::{same, same_but_for_flag_names, same_but_for_reasons};
use verbs_fixtures::fabric::rxe_is_before;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::tools::{DEVICE, LIMIT, Maker, PingPong, gid_index, run};

const SUITE: &str = "interop";

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let asyncwatch = Case::new(
        SUITE,
        "asyncwatch_prints_the_events_that_theirs_prints",
        asyncwatch_prints_the_events_that_theirs_prints,
    );
    let xrc = Case::new(SUITE, "xsrq pingpong is refused for lack of XRC as theirs is", no_xrc);
    pingpongs().chain(outputs()).chain(misuses()).chain([asyncwatch, xrc]).collect()
}

/// Returns a case for every pair of makers and every way to run a ping-pong.
fn pingpongs() -> impl Iterator<Item = Case> {
    const WAYS: &[(&str, u32, u32, &[&str])] = &[
        // Name, size, rounds, flags.
        ("as it is", 4096, 1000, &[]),
        ("-e", 4096, 200, &["-e"]),
        ("-c", 4096, 200, &["-c"]),
        ("-e -c -r 1", 4096, 100, &["-e", "-c", "-r", "1"]),
        ("-N", 4096, 100, &["-N"]),
        ("-m 256 -l 3", 4096, 100, &["-m", "256", "-l", "3"]),
        ("-s 1", 1, 200, &["-c"]),
        ("-s 65536", 65536, 50, &["-c"]),
        ("-s 1048576", 1 << 20, 4, &["-c"]),
        ("-o -P", 4096, 200, &["-o", "-P", "-c", "-m", "4096"]),
        ("-o -P -e -s 65536", 65536, 20, &["-o", "-P", "-c", "-e", "-m", "4096"]),
    ];
    const UC_WAYS: &[(&str, u32, u32, &[&str])] = &[
        ("as it is", 4096, 500, &[]),
        ("-e -c", 4096, 200, &["-e", "-c"]),
        ("-r 2 -m 256 -l 3", 4096, 100, &["-c", "-r", "2", "-m", "256", "-l", "3"]),
        ("-s 65536", 65536, 20, &["-c"]),
    ];
    const UD_WAYS: &[(&str, u32, u32, &[&str])] = &[
        ("as it is", 1024, 500, &[]),
        ("-e -c", 1024, 200, &["-e", "-c"]),
        ("-r 2 -l 3", 256, 100, &["-c", "-r", "2", "-l", "3"]),
        ("-s 1", 1, 200, &["-c"]),
    ];
    const SRQ_WAYS: &[(&str, u32, u32, &[&str])] = &[
        ("as it is", 4096, 500, &[]),
        ("-e -c", 4096, 200, &["-e", "-c"]),
        ("-q 3 -r 5 -m 256 -l 3", 4096, 100, &["-c", "-q", "3", "-r", "5", "-m", "256", "-l", "3"]),
        ("-q 1 -r 1 -s 65536", 65536, 20, &["-c", "-q", "1", "-r", "1"]),
        ("-o", 4096, 100, &["-o", "-c", "-m", "4096"]),
    ];
    let pairs = [(Maker::Ours, Maker::Ours), (Maker::Ours, Maker::Theirs), (Maker::Theirs, Maker::Ours)];
    let tools = [
        ("ibv_rc_pingpong", "pingpong", WAYS),
        ("ibv_uc_pingpong", "uc pingpong", UC_WAYS),
        ("ibv_ud_pingpong", "ud pingpong", UD_WAYS),
        ("ibv_srq_pingpong", "srq pingpong", SRQ_WAYS),
    ];
    tools.into_iter().flat_map(move |(tool, title, ways)| {
        pairs.clone().into_iter().flat_map(move |(server, client)| {
            ways.iter().map(move |&(way, size, iters, flags)| {
                let (server, client) = (server.clone(), client.clone());
                Case::new(SUITE, format!("{title} {server} serves {client} {way}"), move || {
                    let (server, client) = (server.clone(), client.clone());
                    if flags.contains(&"-P") && rxe_is_before(6, 17)? {
                        return skip("rxe takes advice on on-demand paged memory since Linux 6.17");
                    }
                    if tool == "ibv_srq_pingpong" && flags.contains(&"-o") {
                        needs_paged_shared_receives()?;
                    }
                    PingPong { tool, server, client, iters, size, flags, refuse: None }.run()?;
                    Ok(())
                })
            })
        })
    })
}

/// Skips a case on a device whose shared receive queues cannot use on-demand paged memory.
fn needs_paged_shared_receives() -> CaseResult {
    let odp = verbs_fixtures::fabric::open()?.query_device_ex()?.odp_caps;
    let needed = OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV;
    if odp.general_caps.contains(OdpGeneralCaps::SUPPORT) && odp.rc_odp_caps.contains(needed) {
        Ok(())
    } else {
        skip("the device has no on-demand paged memory for shared receives")
    }
}

/// Compares the output of both makers' `ibv_asyncwatch` while an address comes and goes, which
/// changes the GID table.
fn asyncwatch_prints_the_events_that_theirs_prints() -> CaseResult {
    const ADDRESS: &str = "10.9.9.77/24";
    let mut said = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let mut command = maker.tool("ibv_asyncwatch")?;
        let mut watch = Running::start(command.args(["-d", DEVICE]))?;
        if !watch.wait_for_output(LIMIT, |text| text.contains('\n')) {
            return fail(format_args!("{maker} does not begin: {:?}", watch.finish(Duration::ZERO)?));
        }
        for change in ["add", "del"] {
            let done = run(Command::new("ip").args(["addr", change, ADDRESS, "dev", "veth0"]))?;
            if !done.status.success() {
                return fail(format_args!("ip addr {change}: {}", done.stderr.trim_end()));
            }
        }
        // The kernel raises one or more events for each change. The program does not end by itself.
        watch.wait_for_output(LIMIT, |text| text.lines().count() > 1);
        let (Ok(ended) | Err(ended)) = watch.finish(Duration::ZERO)?;
        let mut lines = ended.stdout.lines().map(str::to_owned);
        let (Some(first), Some(second)) = (lines.next(), lines.next()) else {
            return fail(format_args!("{maker} printed {:?}", ended.stdout));
        };
        assert!(first.starts_with("rxe0: async event FD "), "{maker}: {first:?}");
        said.push(second);
    }
    assert_eq!(said[0], "  event_type IBV_EVENT_GID_CHANGE (18), port 1");
    assert_eq!(said[0], said[1]);
    Ok(())
}

/// Returns the cases that compare the output for correct use.
fn outputs() -> impl Iterator<Item = Case> {
    const USES: &[(&str, &[&str])] = &[
        ("ibv_devices", &[]),
        ("ibv_devinfo", &[]),
        ("ibv_devinfo", &["-l"]),
        ("ibv_devinfo", &["--list"]),
        ("ibv_devinfo", &["-v"]),
        ("ibv_devinfo", &["-d", DEVICE, "-i", "1"]),
        ("ibv_devinfo", &["--verbose", "--ib-dev=rxe0", "--ib-port", "1"]),
        ("ibv_devinfo", &["--verb", "--ib-d", DEVICE]),
    ];
    USES.iter().map(|&(tool, args)| {
        Case::new(SUITE, format!("output of {tool} {}", args.join(" ")).trim_end(), move || {
            let [ours, theirs] = both(tool, &args.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            assert!(ours.status.success() && ours.stderr.is_empty(), "{ours:?}");
            assert_eq!(ours.status, theirs.status);
            same_but_for_flag_names(&ours.stdout, &theirs.stdout)
        })
    })
}

/// Returns the cases that compare the output for invalid arguments.
fn misuses() -> impl Iterator<Item = Case> {
    /// A port without a server, formerly assigned to tcpmux.
    const NO_SERVER: &[&str] = &["-p", "1", "127.0.0.1"];
    let devinfo = [
        "-x",
        "--nosuch",
        "-h",
        "--help",
        "-d",
        "--ib-dev",
        "--ib",
        "--list=all",
        "-d nosuch",
        "-d nosuch -l",
        "-i 9",
        "-i 0",
        "-i -1",
        "-i x",
        "extra",
        "-l extra",
        "-d rxe0 -i 2 -v",
    ];
    // With the address of an absent server, so that no program waits.
    let pingpong = [
        "-x",
        "--nosuch",
        "-m 300",
        "-m 0",
        "-m x",
        "-i 0",
        "-i -1",
        "-d nosuch",
        "-p",
        "-p 0",
        "-p 65536",
        "-s",
        "-r 0",
        "-g 5000",
        "-i 9",
        "-i 2 -g 1",
        "-t",
        "-j",
        "-P",
        "-o",
        "-O",
        "-o -j",
        "-h",
        "extra",
        "-m 1024",
        "-e",
    ];
    let devices = ["extra", "-h", "--nosuch"];
    let one = |tool: &'static str, line: &str, tail: &'static [&'static str]| {
        let args: Vec<String> = line.split(' ').chain(tail.iter().copied()).map(str::to_owned).collect();
        let name = format!("misuse of {tool} {line}");
        Case::new(SUITE, name, move || same_misuse(tool, &args))
    };
    let devinfo = devinfo.map(|line| one("ibv_devinfo", line, &[]));
    let pingpong = pingpong.map(|line| one("ibv_rc_pingpong", line, NO_SERVER));
    // Flags that all three reject, then flags that these two lack.
    let uc = ["-x", "--nosuch", "-m 300", "-i 0", "-d nosuch", "-p 65536", "-g 5000", "-N", "-h", "extra"];
    let uc = uc.map(|line| one("ibv_uc_pingpong", line, NO_SERVER));
    let ud = ["-x", "-m 1024", "-i 0", "-i 9", "-d nosuch", "-p 65536", "-s 65536", "-g 5000", "-t", "extra"];
    let ud = ud.map(|line| one("ibv_ud_pingpong", line, NO_SERVER));
    let srq = [
        "-x",
        "--nosuch",
        "--s=1",
        "-m 300",
        "-i 0",
        "-i 9",
        "-d nosuch",
        "-p 65536",
        "-s 0",
        "-q 17 -r 16",
        "-q 256",
        "-g 5000",
        "-t",
        "-o",
        "-q 1 -r 1",
        "extra",
    ];
    let srq = srq.map(|line| one("ibv_srq_pingpong", line, NO_SERVER));
    // rxe has no XRC. With a valid command line, the kernel rejects the call; both makers' tools
    // fail.
    let xsrq = [
        "-x",
        "--nosuch",
        "--c",
        "-m 300",
        "-i 0",
        "-i -1",
        "-i 9",
        "-d nosuch",
        "-p 65536",
        "-o",
        "-e",
        "-g 1",
        "-c 3 -n 7 -m 4096 -s 1 -l 2",
        "extra",
    ];
    let xsrq = xsrq.map(|line| one("ibv_xsrq_pingpong", line, NO_SERVER));
    let asyncwatch = ["-h", "--help", "-x", "-d nosuch"].map(|line| one("ibv_asyncwatch", line, &[]));
    let devices = devices.map(|line| one("ibv_devices", line, &[]));
    let of_ids = misuses_of_ids(one);
    let without_gid = iter::once(Case::new(SUITE, "misuse of ibv_rc_pingpong without a GID", without_a_gid));
    let others = uc.into_iter().chain(ud).chain(srq).chain(xsrq).chain(asyncwatch);
    let others = others.chain(misuses_by_address()).chain(of_ids);
    devices.into_iter().chain(devinfo).chain(pingpong).chain(others).chain(without_gid)
}

/// Returns cases with invalid arguments for the tools that make many connections by address.
fn misuses_of_ids(
    one: fn(&'static str, &str, &'static [&'static str]) -> Case,
) -> impl Iterator<Item = Case> {
    const MISUSES: &[(&str, &[&str])] = &[
        ("cmtime", &["-h", "-x", "--nosuch", "-c"]),
        ("mckey", &["-h", "-x", "--nosuch", "-m", "-M ff0e::1", "-m nosuch."]),
        ("ucmatose", &["-h", "-x", "--nosuch", "-C", "-f x -P x -s nosuch.", "-f ip -s localhost", "-c -1"]),
        ("udaddy", &["-h", "-x", "--nosuch", "-C", "-f x -P x -s nosuch.", "-f ip -s localhost", "-p 7"]),
    ];
    MISUSES.iter().flat_map(move |(tool, lines)| lines.iter().map(move |line| one(tool, line, &[])))
}

/// Returns cases with invalid arguments for the tools that connect by address.
fn misuses_by_address() -> impl Iterator<Item = Case> {
    const LINES: &[(&str, &str)] = &[
        ("rping", "-x"),
        ("rping", "-v -V"),
        ("rping", "-s -t 3"),
        ("rping", "-s -S 5 -C -1"),
        ("rping", "-d -c -a fe80::1%nosuch -p 7 -S 70000"),
        ("rdma_server", "-x"),
        ("rdma_server", "-s"),
        ("rdma_server", "-p nosuch"),
        ("rdma_client", "--help"),
        ("rdma_client", "-s fe80::1%nosuch"),
        ("rdma_xserver", "-s 10.9.9.1"),
        ("rdma_xserver", "-c q"),
        ("rdma_xclient", "-c"),
        ("rdma_xclient", "-p nosuch -c r"),
    ];
    LINES.iter().map(|&(tool, line)| {
        let args: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Case::new(SUITE, format!("misuse of {tool} {line}"), move || same_misuse(tool, &args))
    })
}

fn both(tool: &str, args: &[String]) -> CaseResult<[Finished; 2]> {
    let one = |maker: Maker| run(maker.tool(tool)?.args(args));
    // Runs theirs first, because the case is skipped if that tool is not installed.
    let theirs = one(Maker::Theirs)?;
    Ok([one(Maker::Ours)?, theirs])
}

fn same_misuse(tool: &str, args: &[String]) -> CaseResult {
    let [ours, theirs] = both(tool, args)?;
    same(tool, &ours, &theirs)
}

/// Runs `ibv_xsrq_pingpong` as server and as client on a device without XRC. Both fail when they
/// open the XRC domain.
fn no_xrc() -> CaseResult {
    let gid = gid_index()?.to_string();
    for operands in [&[][..], &["127.0.0.1"]] {
        let args: Vec<_> =
            ["-d", DEVICE, "-g", &gid].iter().chain(operands).map(ToString::to_string).collect();
        let [ours, theirs] = both("ibv_xsrq_pingpong", &args)?;
        assert_eq!((theirs.status.code(), &*theirs.stdout), (Some(1), ""), "{theirs:?}");
        assert_eq!(theirs.stderr, "Couldn't Open the XRC Domain 95\n");
        same("ibv_xsrq_pingpong", &ours, &theirs)?;
        assert!(ours.stderr.contains("open_xrcd"), "the reason is missing: {ours:?}");
    }
    Ok(())
}

/// Runs both ends without `-g`, although RoCE needs a GID. Each end queries its own GID from the
/// kernel.
fn without_a_gid() -> CaseResult {
    let _ = gid_index()?;
    let mut said = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let port = port::free()?;
        let command = |maker: &Maker| -> CaseResult<_> {
            let mut command = maker.tool("ibv_rc_pingpong")?;
            command.args(["-d", DEVICE, "-p", &port.to_string()]);
            Ok(command)
        };
        let mut server = Running::start(&mut command(&maker)?)?;
        if !process::wait_for_listener(port, LIMIT, || !server.has_ended()) {
            return fail("the server does not listen");
        }
        let client = run(command(&maker)?.arg("127.0.0.1"))?;
        let server = server.finish(LIMIT)?;
        let Ok(server) = server else { return fail(format_args!("the server did not end: {server:?}")) };
        said.push([client, server]);
    }
    let [[their_client, their_server], [our_client, our_server]] = &said[..] else {
        return fail("two pairs");
    };
    same_but_for_reasons("ibv_rc_pingpong", &our_server.stderr, &their_server.stderr)?;
    assert_eq!((our_server.status.code(), their_server.status.code()), (Some(1), Some(1)));
    // Compares only the other lines, because rdma-core's client reports a stale errno for the
    // failed read.
    let rest = |client: &Finished| client.stderr.split_once('\n').map(|(_, rest)| rest.to_owned());
    assert_eq!(rest(our_client), rest(their_client));
    assert_eq!(our_client.status, their_client.status);
    Ok(())
}
