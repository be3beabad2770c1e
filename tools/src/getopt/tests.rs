//! Expected results come from `getopt_long` in glibc 2.36 and from rdma-core's programs.

use super::*;

const SPEC: Spec = Spec::new(
    "p:d:i:levo",
    &[
        Long::value("port", b'p'),
        Long::value("ib-dev", b'd'),
        Long::value("ib-port", b'i'),
        Long::flag("list", b'l'),
        Long::flag("events", b'e'),
        Long::flag("odp", b'o'),
        Long::extension("json", b'J'),
    ],
);

fn getopt(args: &[&str], posixly_correct: bool) -> Getopt {
    Getopt::new(SPEC, "prog".into(), args.iter().map(Into::into).collect(), posixly_correct)
}

/// Returns each option as `letter=value` or its error message, then the operands.
fn read(args: &[&str]) -> (Vec<String>, Vec<String>) {
    read_as(getopt(args, false))
}

fn read_as(mut getopt: Getopt) -> (Vec<String>, Vec<String>) {
    let mut seen = Vec::new();
    while let Some(option) = getopt.next() {
        seen.push(match option {
            Ok(Opt { val, arg }) => format!("{}={}", char::from(val), arg.display()),
            Err(Misuse(line)) => String::from_utf8_lossy(&line).into_owned(),
        });
    }
    let operands = getopt.into_operands().iter().map(|operand| operand.display().to_string()).collect();
    (seen, operands)
}

#[track_caller]
fn assert_read(args: &[&str], options: &[&str], operands: &[&str]) {
    let (seen, rest) = read(args);
    assert_eq!(seen, options, "{args:?}");
    assert_eq!(rest, operands, "{args:?}");
}

#[test]
fn a_value_may_be_glued_on_or_follow() {
    for args in [&["-drxe0"][..], &["-d", "rxe0"], &["--ib-dev=rxe0"], &["--ib-dev", "rxe0"]] {
        assert_read(args, &["d=rxe0"], &[]);
    }
    assert_read(&["--ib-dev="], &["d="], &[]);
    assert_read(&["-d", ""], &["d="], &[]);
}

#[test]
fn a_value_that_looks_like_an_option_is_a_value() {
    assert_read(&["-d", "-l", "-l"], &["d=-l", "l="], &[]);
    assert_read(&["-d", "--", "-l"], &["d=--", "l="], &[]);
    assert_read(&["--ib-dev", "--json"], &["d=--json"], &[]);
}

#[test]
fn letters_cluster_and_the_last_may_take_a_value() {
    assert_read(&["-lev"], &["l=", "e=", "v="], &[]);
    assert_read(&["-ledrxe0"], &["l=", "e=", "d=rxe0"], &[]);
    assert_read(&["-led", "rxe0"], &["l=", "e=", "d=rxe0"], &[]);
    assert_read(&["-lze"], &["l=", "prog: invalid option -- 'z'", "e="], &[]);
}

#[test]
fn long_options_may_be_abbreviated_while_they_stay_unique() {
    assert_read(&["--ib-d=x", "--l", "--ev"], &["d=x", "l=", "e="], &[]);
    assert_read(
        &["--ib=x"],
        &["prog: option '--ib=x' is ambiguous; possibilities: '--ib-dev' '--ib-port'"],
        &[],
    );
    // The empty name abbreviates every option of the C program.
    assert_read(
        &["--=x"],
        &["prog: option '--=x' is ambiguous; possibilities: '--port' '--ib-dev' '--ib-port' '--list' \
           '--events' '--odp'"],
        &[],
    );
}

#[test]
fn an_extension_is_found_by_its_full_name_alone() {
    assert_read(&["--json"], &["J="], &[]);
    assert_read(&["--jso"], &["prog: unrecognized option '--jso'"], &[]);
    assert_read(&["-J"], &["prog: invalid option -- 'J'"], &[]);
}

#[test]
fn operands_may_stand_among_options() {
    assert_read(&["host", "-l", "other", "-e"], &["l=", "e="], &["host", "other"]);
    assert_read(&["host", "-l", "--", "-e", "--"], &["l="], &["host", "-e", "--"]);
    assert_read(&["-", "-l"], &["l="], &["-"]);
}

#[test]
fn posixly_correct_stops_at_the_first_operand() {
    let (options, operands) = read_as(getopt(&["-l", "host", "-e"], true));
    assert_eq!((options, operands), (vec!["l=".into()], vec!["host".into(), "-e".into()]));
}

#[test]
fn every_complaint_is_worded_as_gnus() {
    assert_read(&["-d"], &["prog: option requires an argument -- 'd'"], &[]);
    assert_read(&["-:"], &["prog: invalid option -- ':'"], &[]);
    assert_read(&["--ib-de"], &["prog: option '--ib-dev' requires an argument"], &[]);
    assert_read(&["--li=3"], &["prog: option '--list' doesn't allow an argument"], &[]);
    assert_read(&["--list="], &["prog: option '--list' doesn't allow an argument"], &[]);
    assert_read(&["--foo=3"], &["prog: unrecognized option '--foo=3'"], &[]);
    assert_read(&["---l"], &["prog: unrecognized option '---l'"], &[]);
}

#[test]
fn bytes_that_are_no_text_are_quoted_as_they_are() {
    let args = vec![OsString::from_vec(b"-\xc3\xa9".to_vec())];
    let mut getopt = Getopt::new(SPEC, "prog".into(), args, false);
    assert_eq!(getopt.next(), Some(Err(Misuse(b"prog: invalid option -- '\xc3'".to_vec()))));
    assert_eq!(getopt.next(), Some(Err(Misuse(b"prog: invalid option -- '\xa9'".to_vec()))));
    assert_eq!(getopt.next(), None);
}

#[test]
fn without_long_options_the_second_dash_is_a_letter() {
    let args = ["--help", "-s1", "--", "-p"].iter().map(Into::into).collect();
    let getopt = Getopt::new(Spec::new("s:p:", &[]), "prog".into(), args, false);
    let (seen, operands) = read_as(getopt);
    let invalid = |letter| format!("prog: invalid option -- '{letter}'");
    assert_eq!(seen[..3], [invalid('-'), invalid('h'), invalid('e')]);
    assert_eq!(seen[3..], [invalid('l'), "p=-s1".into()]);
    assert_eq!(operands, ["-p"]);
}
