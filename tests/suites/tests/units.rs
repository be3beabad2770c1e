//! Tests for the suites themselves: their parsers and the cases named in their tables. The library
//! has no unit tests, because compiling it once more for them would take as long as for the
//! programs.

mod c_abi {
    use verbs_harness::runner::{CaseResult, Stop, fail, skip};
    use verbs_harness::tools::Maker;
    use verbs_tests::c_abi::unless_c_fails;

    #[test]
    fn a_failure_is_a_skip_only_if_c_fails_as_well() {
        let ends = [&Maker::Linked, &Maker::Theirs];
        let is_c = |ends: [&Maker; 2]| ends == [&Maker::Theirs; 2];
        let run = |ours: CaseResult, c: CaseResult| {
            unless_c_fails(ends, move |ends| if is_c(ends) { c.clone() } else { ours.clone() })
        };
        assert_eq!(run(Ok(()), fail("not run")), Ok(()));
        assert_eq!(run(skip("not installed"), fail("not run")), skip("not installed"));
        assert_eq!(run(fail("it broke"), Ok(())), fail("it broke"));
        assert_eq!(run(fail("it broke"), skip("no GID")), fail("it broke"));
        let both = run(fail("it broke"), fail("queue full"));
        assert!(
            matches!(both, Err(Stop::Skipped(why)) if why.contains("queue full") && why.contains("it broke"))
        );
    }
}

mod c_abi_pyverbs {
    use verbs_c_programs::pyverbs::Outcome;
    use verbs_harness::runner::{fail, skip};
    use verbs_tests::c_abi::{RACES, lost_race, passed};

    #[test]
    fn a_lost_race_is_told_from_other_failures() {
        let test = "test_cq.CQTest.test_resize_cq";
        assert!(lost_race(test, &fail("AssertionError: PyverbsRDMAError not raised")).is_some());
        assert_eq!(lost_race(test, &fail("it broke")), None);
        assert_eq!(lost_race(test, &Ok(())), None);
        assert_eq!(lost_race("another", &fail("PyverbsRDMAError not raised")), None);
    }

    #[test]
    fn a_race_counts_on_neither_side() {
        let one = |test: &str, verdict| Outcome { test: test.to_owned(), verdict };
        let outcomes = [one("a", Ok(())), one("b", skip("no device")), one(RACES[0].0, Ok(()))];
        assert_eq!(passed(&outcomes), 1);
    }
}

mod conformance {
    use std::collections::BTreeSet;

    use verbs_conformance::cases;

    #[test]
    fn every_case_has_a_topic_and_a_name_of_its_own() {
        let names: Vec<_> = cases().into_iter().map(|case| case.name).collect();
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert!(names.contains(&"conformance.rc.rc_send_carries_immediate_data erased".to_owned()));
    }
}

mod lifecycle {
    use verbs_tests::lifecycle::parse_resources;

    #[test]
    fn resources_are_read_by_device() {
        let text = "0: rxe1: pd 9 cq 9\n1: rxe0: pd 1 cq 2 qp 3 cm_id 0 mr 4 ctx 0 srq 0 \n";
        let resources = parse_resources(text, "rxe0").unwrap();
        assert_eq!((resources["pd"], resources["mr"], resources.len()), (1, 4, 7));
        assert_eq!(parse_resources(text, "rxe2"), None);
        assert_eq!(parse_resources("1: rxe0: pd one", "rxe0"), None);
    }
}

mod mlx5 {
    use verbs_fixtures::functions::{Port, Setup};
    use verbs_tests::mlx5::{all, left_out};

    #[test]
    fn a_setup_survives_the_environment() {
        for setup in [Setup { port: Port::Ib, functions: 1 }, Setup { port: Port::Roce, functions: 2 }] {
            assert_eq!(Setup::read(&setup.to_string()), Some(setup));
        }
        for text in ["", "ib", "token-ring 1", "ib x"] {
            assert_eq!(Setup::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_differential_is_usual_with_infiniband_and_that_of_frames_with_ethernet() {
        let compared = |port| {
            let setup = Setup { port, functions: 2 };
            let left_out = left_out(setup);
            let cases = all(setup).into_iter().map(|case| case.name);
            let cases = cases.filter(|name| left_out.iter().all(|(left_out, _)| left_out != name));
            cases.filter(|name| name.starts_with("differential.")).collect::<Vec<_>>()
        };
        let is_of = |name: &String, transport| name.starts_with(&format!("differential.{transport} "));
        let of_frames = |name: &&String| is_of(name, "raw") || is_of(name, "wq");
        let (ib, roce) = (compared(Port::Ib), compared(Port::Roce));
        assert_eq!((ib.iter().filter(of_frames).count(), roce.iter().filter(of_frames).count()), (0, 26));
        assert_eq!(roce.len(), 26);
        assert!(["rc", "tm"].iter().all(|transport| ib.iter().any(|name| is_of(name, *transport))));
    }

    #[test]
    fn no_two_cases_have_one_name() {
        for (port, functions) in [(Port::Ib, 1), (Port::Ib, 2), (Port::Roce, 1), (Port::Roce, 2)] {
            let mut names: Vec<_> =
                all(Setup { port, functions }).into_iter().map(|case| case.name).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}

mod mlx5_attributes {
    use std::fs;

    use verbs_c_programs::record::compare::Row;
    use verbs_tests::mlx5::attributes::table;

    /// Returns the table as lines of Markdown.
    fn shown() -> Vec<String> {
        let code = |text: &str| match text {
            "" => String::new(),
            text => text.split('|').map(|text| format!("`{text}`")).collect::<Vec<_>>().join(" or "),
        };
        let line = |row: &Row| {
            let [step, command, field, theirs, ours] =
                [row.step, row.command, row.field, row.theirs, row.ours].map(code);
            format!("| {step} | {command} | {field} | {theirs} | {ours} | {} | {} |", row.guests, row.reason)
        };
        table::ROWS.iter().map(line).collect()
    }

    #[test]
    fn the_document_shows_the_table() {
        const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../connectx-model/README.md");
        const HEAD: &str =
            "| step | command | field | libmlx5 | ours | guests | reason |\n|---|---|---|---|---|---|---|\n";
        let text = fs::read_to_string(DOCUMENT).unwrap();
        let (before, rest) = text.split_once(HEAD).expect("the table's head");
        let (table, after) = rest.split_once("\n\n").expect("the table's end");
        let expected = shown().join("\n");
        if std::env::var_os("BLESS").is_some() {
            fs::write(DOCUMENT, format!("{before}{HEAD}{expected}\n\n{after}")).unwrap();
            return;
        }
        assert_eq!(
            table, expected,
            "BLESS=1 cargo test -p verbs-tests --test units attributes writes the table"
        );
    }

    #[test]
    fn every_row_has_a_reason_and_differs_from_the_others() {
        for (place, row) in table::ROWS.iter().enumerate() {
            assert!(!row.reason.is_empty() && !row.guests.is_empty(), "{row:?}");
            let is_same = |other: &Row| {
                (other.step, other.command, other.field, other.theirs)
                    == (row.step, row.command, row.field, row.theirs)
            };
            assert!(!table::ROWS[..place].iter().any(is_same), "{row:?}");
        }
    }
}

mod mlx5_connections {
    use verbs_fixtures::functions::{Port, Setup};
    use verbs_tests::mlx5::all;
    use verbs_tests::mlx5::connections::{SHORT, is_long};

    #[test]
    fn each_short_case_exists() {
        let names: Vec<_> =
            all(Setup { port: Port::Roce, functions: 2 }).into_iter().map(|case| case.name).collect();
        for case in SHORT {
            assert!(names.iter().any(|name| name == case), "{case}");
        }
        assert!(!is_long("rdmacm.rping -S 100 served here") && is_long("cm.a_thousand_connections"));
    }
}

mod mlx5_devinfo {
    use verbs_tests::mlx5::devinfo::{Report, listed};

    const TEXT: &str = "hca_id:\tmlx5_0\n\tvendor_part_id:\t\t\t4119\n\tatomic_cap:\t\t\tATOMIC_HCA (1)\n\t\tport:\t1\n\
                        \t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_msg_sz:\t\t0x40000000\n\
                        \t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0002:c903:0000:0002\n\
                        \t\t\tGID[  1]:\t\t::ffff:10.9.9.1, RoCE v2\n";

    #[test]
    fn values_are_found_by_their_keys() {
        let report = Report(TEXT.to_owned());
        assert_eq!(report.text("hca_id"), Ok("mlx5_0"));
        assert_eq!(report.number("vendor_part_id"), Ok(4119));
        assert_eq!(report.number("max_msg_sz"), Ok(1 << 30));
        assert!(
            report.is("state", "PORT_ACTIVE (4)").is_ok() && report.is("state", "PORT_DOWN (1)").is_err()
        );
        assert!(report.text("phys_state").is_err() && report.number("hca_id").is_err());
        assert!(report.at_least(&[("vendor_part_id", 4119)]).is_ok());
        assert!(report.at_least(&[("vendor_part_id", 4120)]).is_err());
        assert_eq!(report.gids(), ["fe80:0000:0000:0000:0002:c903:0000:0002", "::ffff:10.9.9.1, RoCE v2"]);
    }

    #[test]
    fn devices_are_listed_after_their_headings() {
        let text = "    device          \t   node GUID\n    ------          \t----------------\n    \
                    mlx5_0          \t0002c90300000002\n";
        assert_eq!(listed(text), [("mlx5_0", "0002c90300000002")]);
    }
}

mod mlx5_differential {
    use verbs_harness::runner::Stop;

    use verbs_fixtures::functions::{Port, Setup};
    use verbs_tests::mlx5::differential::{REQUESTS, cases, same_lines};

    #[test]
    fn the_first_different_line_is_named() {
        assert_eq!(same_lines("a\nb\n", "a\nb\n"), Ok(()));
        let why = |one, other| match same_lines(one, other) {
            Err(Stop::Failed(why)) => why,
            ended => panic!("{ended:?}"),
        };
        assert_eq!(why("a\nb\n", "a\nc\n"), "line 2 is \"b\" on the first and \"c\" on the second");
        assert_eq!(why("a\n", "a\nc\n"), "line 2 is \"nothing\" on the first and \"c\" on the second");
    }

    #[test]
    fn the_random_scripts_have_10_000_requests() {
        let cases = cases(Setup { port: Port::Ib, functions: 2 });
        let suffix = format!(" {REQUESTS}");
        let scripts =
            cases.iter().filter(|case| case.name.contains(" random ") && case.name.ends_with(&suffix));
        assert_eq!(scripts.count() as u32 * REQUESTS, 10_000);
    }
}

mod mlx5_kernel_log {
    use verbs_tests::mlx5::line;

    #[test]
    fn a_record_is_read_without_its_prefix_and_its_properties() {
        let record = "6,339,5140900,-;mlx5_core: a; b\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:10.0\n";
        assert_eq!(line(record).as_deref(), Some("mlx5_core: a; b"));
        assert_eq!(line("nonsense"), None);
    }
}

mod mlx5_ours {
    use std::collections::BTreeSet;

    use verbs_harness::runner::Case;
    use verbs_tests::mlx5::ours::{LET_THROUGH, PROVOKED, cases};

    #[test]
    fn every_case_of_a_table_exists() {
        let name = |case: Case| {
            let name = case.name.strip_prefix("conformance.").unwrap_or(&case.name);
            name.split(' ').next().unwrap_or_default().to_owned()
        };
        let names: BTreeSet<String> = cases().into_iter().map(name).collect();
        for case in PROVOKED.iter().chain(LET_THROUGH).flat_map(|(_, cases)| *cases) {
            assert!(names.contains(*case), "{case}");
        }
    }
}

mod mlx5_pyverbs {
    use verbs_c_programs::pyverbs::Outcome;
    use verbs_fixtures::functions::Port;
    use verbs_harness::runner::{CaseResult, skip};
    use verbs_tests::mlx5::pyverbs::{enough, least, required};

    fn outcome(test: &str, verdict: CaseResult) -> Outcome {
        Outcome { test: test.to_owned(), verdict }
    }

    #[test]
    fn enough_means_the_number_and_those_that_must() {
        let many = |port| (0..least(port)).map(|n| outcome(&format!("a.B.test_{n}"), Ok(())));
        let all =
            |port| many(port).chain(required(port).map(|test| outcome(test, Ok(())))).collect::<Vec<_>>();
        for port in [Port::Ib, Port::Roce] {
            let mut all = all(port);
            assert_eq!(enough(&all, port), Ok(least(port)));
            all.last_mut().unwrap().verdict = skip("no device");
            assert!(enough(&all, port).is_err(), "a required test was skipped");
            let few: Vec<_> = required(port).map(|test| outcome(test, Ok(()))).collect();
            assert!(enough(&few, port).is_err());
        }
        assert!(enough(&all(Port::Roce), Port::Ib).is_err());
    }
}

mod mlx5_raw_ethernet {
    use verbs_tests::mlx5::{ReceiveQueue, mac_of_gid};

    #[test]
    fn a_link_local_gid_holds_an_ethernet_address() {
        let mac = |gid| mac_of_gid(gid);
        assert_eq!(mac("fe80:0000:0000:0000:5054:00ff:fe12:3456").as_deref(), Some("52:54:00:12:34:56"));
        assert_eq!(mac("0000:0000:0000:0000:0000:ffff:0a09:0901"), None);
        assert_eq!(mac("fe80:0000:0000:0000:5054:0012:3456:7890"), None);
        assert_eq!(mac("fe80"), None);
    }

    #[test]
    fn the_models_list_has_the_receives_of_a_functions_queues() {
        let read = |line| ReceiveQueue::read(line, 1);
        let queue = ReceiveQueue { number: "0x2012".to_owned(), is_ready: true, posted: 20 };
        assert_eq!(read("rq function=1 rqn=0x2012 state=Ready posted=20 used=3"), Some(queue));
        assert!(read("rq function=1 rqn=0x2012 state=Reset posted=0 used=0").is_some_and(|q| !q.is_ready));
        assert_eq!(read("rq function=0 rqn=0x2012 state=Ready posted=20 used=3"), None);
        assert_eq!(read("srq function=1 srqn=0x1 kind=Rmp"), None);
    }
}

mod mlx5_rdmacm {
    use verbs_harness::listening::has_listener;
    use verbs_harness::process::Finished;
    use verbs_tests::mlx5::rdmacm::all_end_well;

    #[test]
    fn a_listening_id_is_found_by_its_port() {
        let listed = "link mlx5_0/- cm-idn 3 state LISTEN ps TCP pid 166 comm ib_write_bw src-addr 0.0.0.0:7999 \n\
                      link mlx5_0/1 cm-idn 9 state CONNECT ps TCP pid 176 comm rping src-addr 10.9.9.1:7174 dst-addr \
                      10.9.9.2:7471 \n";
        assert!(has_listener(listed, 7999));
        assert!(!has_listener(listed, 7174) && !has_listener(listed, 7471) && !has_listener(listed, 999));
    }

    #[test]
    fn last_words_are_a_line_of_their_own() {
        use std::os::unix::process::ExitStatusExt as _;
        let status = std::process::ExitStatus::from_raw(0);
        let end = |stdout: &str| Finished { status, stdout: stdout.to_owned(), stderr: String::new() };
        assert!(all_end_well(&[Ok(end("a\nreturn status 0\n"))], "return status 0").is_ok());
        assert!(all_end_well(&[Ok(end("a\nreturn status 0x\n"))], "return status 0").is_err());
        assert!(all_end_well(&[Err(end("return status 0\n"))], "return status 0").is_err());
    }
}

mod mlx5_scattered {
    use verbs_tests::mlx5::scattered::{OTHERWISE, cases};

    #[test]
    fn each_case_that_ends_otherwise_exists() {
        let names: Vec<String> = cases().into_iter().map(|case| case.name).collect();
        for name in OTHERWISE {
            assert!(names.iter().any(|existing| existing == name), "{name}");
        }
    }
}

/// The suites compare each of our tools, listed in `PROGRAMS`, with rdma-core's.
mod tools {
    use verbs_harness::tools::PROGRAMS;
    use verbs_tests::{interop, negative};

    #[test]
    fn every_tool_is_compared_with_rdma_cores_when_it_is_misused() {
        let cases = interop::cases();
        for tool in PROGRAMS {
            let start = format!("interop.misuse of {tool} ");
            assert!(cases.iter().any(|case| case.name.starts_with(&start)), "no case {start:?}");
        }
    }

    #[test]
    fn every_tool_is_compared_with_rdma_cores_without_a_device() {
        // cmtime in rdma-core 44 has other options.
        for tool in PROGRAMS.iter().filter(|tool| **tool != "cmtime") {
            let compared = negative::TOOLS_WITHOUT_DEVICES.iter().any(|(name, _)| name == tool);
            assert!(compared, "{tool} is not in TOOLS_WITHOUT_DEVICES");
        }
    }
}
