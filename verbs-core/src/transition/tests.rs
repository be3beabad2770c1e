//! Compares every bit of every transition with a released kernel's table, in another notation.

use super::*;

const STATE: QpAttrMask = QpAttrMask::STATE;

/// The attributes that the fixture's kernel accepts in one transition.
struct Shipped {
    qp_type: QpType,
    from: QpState,
    to: QpState,
    required: QpAttrMask,
    optional: QpAttrMask,
}

/// The transitions that accept a rate limit for RC queue pairs since Linux 7.0.
const RC_PACED_SINCE_7_0: [(QpState, QpState); 3] =
    [(QpState::INIT, QpState::RTR), (QpState::RTR, QpState::RTS), (QpState::RTS, QpState::RTS)];

fn shipped() -> Vec<Shipped> {
    let mut qp_type = None;
    let mut all = Vec::new();
    for line in include_str!("linux-6.1.txt").lines().filter(|line| !line.starts_with('#')) {
        let Some(columns) = line.strip_prefix("  ") else {
            qp_type = Some(named(QpType::NAMED, QpType::name, line));
            continue;
        };
        let [states, required, optional] = columns.split(' ').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}");
        };
        let (from, to) = states.split_once('>').expect("from>to");
        all.push(Shipped {
            qp_type: qp_type.expect("a type above its transitions"),
            from: named(QpState::NAMED, QpState::name, from),
            to: named(QpState::NAMED, QpState::name, to),
            required: letters(required),
            optional: letters(optional),
        });
    }
    all
}

fn named<T: Copy>(all: &[T], name: fn(T) -> Option<&'static str>, wanted: &str) -> T {
    *all.iter().find(|&&value| name(value) == Some(wanted)).expect("a name of the fixture")
}

fn letters(text: &str) -> QpAttrMask {
    let bit = |letter| match letter {
        '-' => 0,
        'f' => 1 << 25,
        // The kernel's order, from bit 1 to 20.
        _ => 2 << "cnakpqvmtyxrilwsdgze".find(letter).expect("a letter of the legend"),
    };
    QpAttrMask::from_bits_retain(text.chars().map(bit).sum())
}

/// Returns the attributes beyond the table that every transition of a type accepts since Linux 7.2,
/// read from `modify_qp_mask` and `ib_modify_qp_is_ok`.
fn always(qp_type: QpType) -> QpAttrMask {
    STATE
        | letters(match qp_type {
            QpType::XRC_SEND => "fdw",
            QpType::XRC_RECV => "fiyx",
            _ => "f",
        })
}

fn bits() -> impl Iterator<Item = QpAttrMask> {
    (0..u32::BITS).map(|bit| QpAttrMask::from_bits_retain(1 << bit))
}

/// Returns every named state and two unnamed states.
fn states() -> impl Iterator<Item = QpState> + Clone {
    QpState::NAMED.iter().copied().chain([QpState(8), QpState(255)])
}

#[test]
fn the_table_is_the_kernels_bit_by_bit() {
    let shipped = shipped();
    assert_eq!(shipped.len(), 6 * 22);
    for entry in &shipped {
        let Shipped { qp_type, from, to, required, mut optional } = *entry;
        if qp_type == QpType::RC && RC_PACED_SINCE_7_0.contains(&(from, to)) {
            optional |= QpAttrMask::RATE_LIMIT;
        }
        let ours = lookup(qp_type, from, to).unwrap_or_else(|| panic!("{qp_type} {from} to {to}"));
        assert_eq!((ours.from, ours.to), (from, to));
        assert_eq!(ours.required, required, "{qp_type} {from} to {to}");
        assert_eq!(ours.optional, optional, "{qp_type} {from} to {to}");
    }
}

#[test]
fn a_transition_that_the_kernel_does_not_have_is_illegal() {
    let shipped = shipped();
    let mut illegal = 0;
    for &qp_type in &TYPES {
        for (from, to) in states().flat_map(|from| states().map(move |to| (from, to))) {
            if shipped.iter().any(|e| (e.qp_type, e.from, e.to) == (qp_type, from, to)) {
                continue;
            }
            illegal += 1;
            assert_eq!(lookup(qp_type, from, to), None);
            for mask in [QpAttrMask::empty(), STATE, QpAttrMask::all()] {
                let expected = Err(Cause::IllegalTransition { qp_type, from, to });
                assert_eq!(check(qp_type, from, to, mask), expected);
            }
        }
    }
    assert_eq!(illegal, 6 * (10 * 10 - 22));
}

#[test]
fn each_required_attribute_left_out_is_named_as_missing() {
    let mut left_out = 0;
    for Shipped { qp_type, from, to, required, optional } in shipped() {
        for mask in [required, required | STATE, required | optional, required | always(qp_type)] {
            assert_eq!(check(qp_type, from, to, mask), Ok(()), "{qp_type} {from} to {to}");
        }
        for missing in bits().filter(|&bit| required.contains(bit)) {
            left_out += 1;
            let forbidden = QpAttrMask::empty();
            let expected = Err(Cause::TransitionAttributes { qp_type, from, to, missing, forbidden });
            assert_eq!(check(qp_type, from, to, (required | STATE) - missing), expected);
            assert_eq!(check(qp_type, from, to, (required | optional) - missing), expected);
        }
    }
    assert_eq!(left_out, 50, "14 of RC, 8 UC, 4 UD, 12 XRC_SEND, 11 XRC_RECV, 1 RAW_PACKET");
}

#[test]
fn each_attribute_that_is_not_listed_is_named_as_forbidden() {
    for Shipped { qp_type, from, to, required, optional } in shipped() {
        let taken = required | optional | always(qp_type);
        for bit in bits() {
            let expected = if taken.contains(bit) {
                Ok(())
            } else {
                let missing = QpAttrMask::empty();
                Err(Cause::TransitionAttributes { qp_type, from, to, missing, forbidden: bit })
            };
            assert_eq!(
                check(qp_type, from, to, required | STATE | bit),
                expected,
                "{qp_type} {from} to {to}"
            );
        }
    }
}

#[test]
fn what_is_missing_and_what_is_forbidden_is_told_at_once() {
    for Shipped { qp_type, from, to, required, optional } in shipped() {
        let forbidden = !(required | optional | always(qp_type));
        let expected = Err(Cause::TransitionAttributes { qp_type, from, to, missing: required, forbidden });
        assert_eq!(check(qp_type, from, to, !required), expected);
    }
}

#[test]
fn the_rc_ladder_of_a_ping_pong_is_accepted() {
    use QpAttrMask as A;
    let ladder = [
        (QpState::RESET, QpState::INIT, STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS),
        (
            QpState::INIT,
            QpState::RTR,
            STATE | A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
        ),
        (
            QpState::RTR,
            QpState::RTS,
            STATE | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_QP_RD_ATOMIC,
        ),
    ];
    for (from, to, mask) in ladder {
        assert_eq!(check(QpType::RC, from, to, mask), Ok(()));
    }
}

#[test]
fn no_transition_skips_a_rung_on_the_way_up() {
    let ladder = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS];
    for &qp_type in &TYPES {
        for (i, &from) in ladder.iter().enumerate() {
            for (j, &to) in ladder.iter().enumerate().skip(i + 1) {
                assert_eq!(lookup(qp_type, from, to).is_some(), j == i + 1, "{qp_type} {from} to {to}");
            }
        }
    }
}

#[test]
fn every_state_can_be_reset_and_all_but_reset_can_fail_with_no_attribute() {
    let known = QpState::NAMED.iter().copied().filter(|&state| state != QpState::UNKNOWN);
    for (&qp_type, from) in TYPES.iter().flat_map(|qp_type| known.clone().map(move |from| (qp_type, from))) {
        assert_eq!(check(qp_type, from, QpState::RESET, STATE), Ok(()));
        assert_eq!(check(qp_type, from, QpState::ERR, STATE).is_ok(), from != QpState::RESET);
        assert!(check(qp_type, from, QpState::RESET, STATE | QpAttrMask::CUR_STATE).is_err());
    }
}

#[test]
fn the_current_state_can_be_claimed_only_where_the_device_may_have_moved_on_its_own() {
    let claimable = [QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE];
    for &qp_type in &TYPES {
        for transition in transitions(qp_type).filter(|t| t.optional.contains(QpAttrMask::CUR_STATE)) {
            assert!(claimable.contains(&transition.from) && transition.to == QpState::RTS, "{transition:?}");
        }
    }
}

#[test]
fn a_rate_limit_is_left_to_the_driver_even_where_nothing_moves() {
    for (&qp_type, state) in TYPES.iter().flat_map(|qp_type| states().map(move |state| (qp_type, state))) {
        if let Some(transition) = lookup(qp_type, state, state) {
            assert!(transition.forbidden(QpAttrMask::RATE_LIMIT).is_empty());
        }
        assert!(check(qp_type, state, state, QpAttrMask::RATE_LIMIT).is_ok());
    }
    let with_state = check(QpType::UD, QpState::RTR, QpState::RTR, STATE | QpAttrMask::RATE_LIMIT);
    assert!(with_state.is_err(), "naming a state asks for a transition");
}

#[test]
fn an_xrc_queue_pair_may_be_told_of_the_half_that_it_lacks() {
    use QpAttrMask as A;
    let (from, to) = (QpState::RTR, QpState::RTS);
    let rc = lookup(QpType::RC, from, to).unwrap().required;
    assert_eq!(check(QpType::XRC_RECV, from, to, rc), Ok(()));
    let send = lookup(QpType::XRC_SEND, from, to).unwrap();
    assert_eq!(send.tolerated, A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER | A::RATE_LIMIT);
    assert_eq!(
        check(QpType::UC, from, to, rc).unwrap_err().to_string(),
        "UC RTR to RTS does not take TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC"
    );
}

#[test]
fn the_sets_of_a_transition_have_nothing_in_common() {
    for transition in TYPES.iter().flat_map(|&qp_type| transitions(qp_type)) {
        let Transition { required, optional, tolerated, .. } = transition;
        let all = required | optional | tolerated | STATE;
        let each = [required, optional, tolerated, STATE].map(|set| set.bits().count_ones());
        assert_eq!(all.bits().count_ones(), each.iter().sum::<u32>(), "{transition:?}");
    }
}

#[test]
fn the_table_names_no_pair_of_states_twice_and_no_type_twice_in_one() {
    for (from, to) in states().flat_map(|from| states().map(move |to| (from, to))) {
        let edges: Vec<_> = TABLE.iter().filter(|e| e.to == to && e.from.contains(&from)).collect();
        assert!(edges.len() <= 1, "{from} to {to}");
        for (edge, qp_type) in edges.iter().flat_map(|edge| QpType::NAMED.iter().map(move |t| (edge, t))) {
            let rows = edge.rows.iter().filter(|row| row.types.contains(qp_type)).count();
            assert!(rows <= usize::from(TYPES.contains(qp_type)), "{qp_type} {from} to {to}");
        }
    }
}

#[test]
fn transitions_come_once_each_in_the_order_of_the_states() {
    for &qp_type in &TYPES {
        let ours: Vec<_> = transitions(qp_type).map(|t| (t.from, t.to)).collect();
        let kernels: Vec<_> =
            shipped().iter().filter(|e| e.qp_type == qp_type).map(|e| (e.from, e.to)).collect();
        assert_eq!(ours, kernels);
    }
    assert_eq!(transitions(QpType::DRIVER).count(), 0);
}

#[test]
fn unknown_types_are_left_to_their_provider_and_unknown_states_are_illegal() {
    let unruled = (0..=u8::MAX).map(QpType).filter(|qp_type| !TYPES.contains(qp_type));
    assert_eq!(unruled.clone().count(), 250);
    for qp_type in unruled {
        for (from, to) in states().flat_map(|from| states().map(move |to| (from, to))) {
            assert_eq!(lookup(qp_type, from, to), None);
            assert_eq!(check(qp_type, from, to, QpAttrMask::all()), Ok(()));
        }
    }
    let cause = check(QpType::RC, QpState(99), QpState::RTS, STATE).unwrap_err();
    assert_eq!(cause.to_string(), "an RC queue pair cannot go from unknown (99) to RTS");
}

#[test]
fn a_refusal_reads_as_a_sentence() {
    let text = |from, to, mask| check(QpType::RC, from, to, mask).unwrap_err().to_string();
    assert_eq!(
        text(QpState::INIT, QpState::RTR, STATE | QpAttrMask::QKEY),
        "RC INIT to RTR misses AV, PATH_MTU, RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN \
         and does not take QKEY"
    );
    assert_eq!(text(QpState::RESET, QpState::RTS, STATE), "an RC queue pair cannot go from RESET to RTS");
    // A message must not end in "does not take" followed by nothing.
    let unnamed = STATE | QpAttrMask::CAP | QpAttrMask::from_bits_retain(0b11 << 21);
    assert_eq!(text(QpState::RTS, QpState::ERR, unnamed), "RC RTS to ERR does not take CAP, 0x600000");
}

#[test]
fn a_move_starts_where_the_mask_says_and_ends_where_it_starts_unless_it_names_a_state() {
    let attr = QpAttr { qp_state: QpState::RTS, cur_qp_state: QpState::SQE, ..QpAttr::default() };
    let at = QpState::SQD;
    assert_eq!(endpoints(at, &attr, QpAttrMask::AV), (at, at));
    assert_eq!(endpoints(at, &attr, STATE), (at, QpState::RTS));
    assert_eq!(endpoints(at, &attr, STATE | QpAttrMask::CUR_STATE), (QpState::SQE, QpState::RTS));
    assert_eq!(endpoints(at, &attr, QpAttrMask::CUR_STATE), (QpState::SQE, QpState::SQE));
}
