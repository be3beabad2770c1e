//! Commands without a reply, or with a reply that holds only a handle or a count.

use super::*;

#[test]
fn an_id_is_created_with_its_cookie_space_and_service() {
    let text = "0: in 0807060504030201000000000000000006010200".to_owned() + "00000000, out 4";
    let (_kernel, ucma) = kernel(&text, Reply::bytes(&9_u32.to_ne_bytes()));
    let number = id::create_id(&ucma, 0x0102_0304_0506_0708, PortSpace::TCP, QpType::RC).unwrap();
    assert_eq!(number, 9);
}

#[test]
fn an_id_without_a_number_is_an_error() {
    for reply in [Reply::ok(), Reply::bytes(&[0xff; 4])] {
        let error = id::create_id(&replying(reply), 1, PortSpace::UDP, QpType::UD).unwrap_err();
        assert_eq!(error.errno, Errno::IO);
        assert!(error.to_string().contains("an id without a number"), "{error}");
    }
    let refused = id::create_id(&replying(Reply::Errno(Errno::INVAL)), 1, PortSpace(7), QpType::RC);
    assert_eq!(refused.unwrap_err().errno, Errno::INVAL);
}

#[test]
fn an_id_is_destroyed_by_its_number_and_reports_the_events_that_were_read() {
    let text = "1: in 00000000000000000900000000000000, out 4";
    let (_kernel, ucma) = kernel(text, Reply::bytes(&3_u32.to_ne_bytes()));
    assert_eq!(id::destroy_id(&ucma, 9), Ok(3));
    // A count that is not written reads as zero, so the caller waits for no event.
    assert_eq!(id::destroy_id(&replying(Reply::ok()), 9), Ok(0));
}

#[test]
fn an_id_moves_from_the_file_that_it_belongs_to() {
    let from = Scripted::default().ucma(true);
    let text = "18: in 00000000000000000900000021000000, out 4";
    let (_kernel, to) = kernel(text, Reply::bytes(&1_u32.to_ne_bytes()));
    assert_eq!(id::migrate_id(&to, 9, &from), Ok(1));
}

#[test]
fn binding_has_a_form_for_ip_and_one_for_any_family() {
    let (_kernel, ucma) = kernel(&format!("2: in {}{}09000000", zeros(8), v4_in6()), Reply::ok());
    addr::bind_ip(&ucma, 9, &v4()).unwrap();
    let (_kernel, ucma) = kernel(&format!("20: in 0900000010000000{}", v4_storage()), Reply::ok());
    addr::bind(&ucma, 9, &v4()).unwrap();
    // No command can carry these values.
    let silent = Scripted::default().ucma(false);
    assert_eq!(addr::bind_ip(&silent, 9, &ib()).unwrap_err().errno, Errno::AFNOSUPPORT);
    let other = Address::Other { family: 77 };
    assert_eq!(addr::bind(&silent, 9, &other).unwrap_err().errno, Errno::AFNOSUPPORT);
}

#[test]
fn an_address_is_resolved_from_a_source_or_from_none() {
    let text = format!("3: in {}{}09000000d0070000", zeros(28), v4_in6());
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    addr::resolve_ip(&ucma, 9, None, &v4(), 2000).unwrap();
    let text = format!("3: in {}{}09000000d0070000", v4_in6(), v4_in6());
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    addr::resolve_ip(&ucma, 9, Some(&v4()), &v4(), 2000).unwrap();

    let text = format!("21: in 09000000d00700000000100000000000{}{}", zeros(128), v4_storage());
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    addr::resolve_addr(&ucma, 9, None, &v4(), 2000).unwrap();
    let text = format!("21: in 09000000d00700001000100000000000{}{}", v4_storage(), v4_storage());
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    addr::resolve_addr(&ucma, 9, Some(&v4()), &v4(), 2000).unwrap();
    let silent = Scripted::default().ucma(false);
    assert_eq!(addr::resolve_ip(&silent, 9, Some(&ib()), &v4(), 0).unwrap_err().errno, Errno::AFNOSUPPORT);
}

#[test]
fn routes_and_services_are_resolved_by_the_ids_number() {
    let (_kernel, ucma) = kernel("4: in 09000000e8030000", Reply::ok());
    addr::resolve_route(&ucma, 9, 1000).unwrap();
    let text = format!("23: in 0900000000000000{}{}{}0200000000000000", zeros(8), hex(b"nfs"), zeros(61));
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    addr::resolve_ib_service(&ucma, 9, Service::Name("nfs")).unwrap();
    let silent = Scripted::default().ucma(true);
    let long = "x".repeat(64);
    assert_eq!(addr::resolve_ib_service(&silent, 9, Service::Name(&long)).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn a_listener_has_a_backlog() {
    let (_kernel, ucma) = kernel("7: in 0900000080000000", Reply::ok());
    conn::listen(&ucma, 9, 128).unwrap();
}

/// Returns sample connection parameters and the bytes that encode them, in hexadecimal.
fn param() -> (ConnParam<'static>, String) {
    let param = ConnParam {
        private_data: b"hi",
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 5,
        rnr_retry_count: 6,
        min_rnr_timer: None,
        srq: true,
        qp_num: 0x1234,
    };
    (param, format!("3412000000000000{}{}0201030401050601", hex(b"hi"), zeros(254)))
}

#[test]
fn a_connection_request_carries_its_parameters_and_options() {
    let (param, bytes) = param();
    let text = format!("6: in {bytes}0900000000000000c902000007000000");
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    conn::connect(&ucma, 9, &param, Ece { vendor_id: 0x2c9, options: 7 }).unwrap();
}

#[test]
fn an_accept_carries_a_cookie_and_without_parameters_nothing_else() {
    let (param, bytes) = param();
    let text = format!("8: in 0500000000000000{bytes}09000000000000000000000000000000");
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    conn::accept(&ucma, 9, 5, Some(&param), Ece::default()).unwrap();
    let text = format!("8: in {}{}09000000000000000000000000000000", zeros(8), zeros(272));
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    conn::accept(&ucma, 9, 0, None, Ece::default()).unwrap();
    let refused = conn::accept(&replying(Reply::Errno(Errno::INVAL)), 9, 0, None, Ece::default());
    assert_eq!(refused.unwrap_err().verb, "establish");
}

#[test]
fn private_data_beyond_what_the_command_carries_are_refused_before_the_kernel() {
    let silent = Scripted::default().ucma(true);
    let data = [7; 256];
    let param = ConnParam { private_data: &data, ..ConnParam::default() };
    for refused in [
        conn::connect(&silent, 9, &param, Ece::default()),
        conn::accept(&silent, 9, 0, Some(&param), Ece::default()),
        conn::reject(&silent, 9, &data, 0),
    ] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("length of private_data 256"), "{error}");
    }
    conn::reject(&replying(Reply::ok()), 9, &data[..255], 0).unwrap();
}

#[test]
fn a_reject_carries_private_data_and_a_reason() {
    let text = format!("9: in 0900000002230000{}{}", hex(b"no"), zeros(254));
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    conn::reject(&ucma, 9, b"no", 35).unwrap();
}

#[test]
fn disconnecting_and_notifying_name_the_id() {
    let (_kernel, ucma) = kernel("10: in 09000000", Reply::ok());
    conn::disconnect(&ucma, 9).unwrap();
    let (_kernel, ucma) = kernel("15: in 0900000004000000", Reply::ok());
    conn::notify(&ucma, 9, verbs::AsyncEventType::COMM_EST).unwrap();
}

#[test]
fn an_event_is_written_with_its_status_and_number() {
    let rest = zeros(size_of::<uverbs_abi::rdma_user_cm::RdmaUcmWriteCmEvent>() - 24);
    let text = format!("24: in 090000000000000012000000ffffffff0800000000000000{rest}");
    let (_kernel, ucma) = kernel(&text, Reply::ok());
    event::write_cm_event(&ucma, 9, EventType::USER, -1, 8).unwrap();
}

#[test]
fn groups_are_joined_by_a_form_for_ip_and_one_for_any_family() {
    let number = Reply::bytes(&2_u32.to_ne_bytes());
    let text = format!("16: in {}0500000000000000{}09000000, out 4", zeros(8), v4_in6());
    let (_kernel, ucma) = kernel(&text, number.clone());
    assert_eq!(mcast::join_ip_mcast(&ucma, 9, 5, &v4()), Ok(2));
    for (send_only, flags) in [(false, "0000"), (true, "0100")] {
        let text = format!("22: in {}0500000000000000090000001000{flags}{}, out 4", zeros(8), v4_storage());
        let (_kernel, ucma) = kernel(&text, number.clone());
        assert_eq!(mcast::join_mcast(&ucma, 9, 5, &v4(), send_only), Ok(2));
    }
    let error = mcast::join_mcast(&replying(Reply::ok()), 9, 5, &v4(), false).unwrap_err();
    assert!(error.to_string().contains("a membership without a number"), "{error}");
    let silent = Scripted::default().ucma(true);
    assert_eq!(mcast::join_ip_mcast(&silent, 9, 5, &ib()).unwrap_err().errno, Errno::AFNOSUPPORT);
}

#[test]
fn a_group_is_left_by_the_number_of_the_membership() {
    let text = "17: in 00000000000000000200000000000000, out 4";
    let (_kernel, ucma) = kernel(text, Reply::bytes(&1_u32.to_ne_bytes()));
    assert_eq!(mcast::leave_mcast(&ucma, 2), Ok(1));
}

#[test]
fn options_have_the_sizes_that_the_kernel_wants() {
    let path = crate::PathRecord::from_wire(&uverbs_abi::ib_user_sa::IbPathRecData::default());
    let path_text = hex(path.to_wire().as_bytes());
    for (option, level, name, value) in [
        (option::IdOption::Tos(104), 0, 0, "68"),
        (option::IdOption::ReuseAddr(true), 0, 1, "01000000"),
        (option::IdOption::AfOnly(false), 0, 2, "00000000"),
        (option::IdOption::AckTimeout(18), 0, 3, "12"),
        (option::IdOption::IbPath(&[path]), 1, 1, &*path_text),
    ] {
        let len = value.len() / 2;
        let text =
            format!("14: in {}090000000{level}0000000{name}000000{len:02x}000000, value {value}", zeros(8));
        let (_kernel, ucma) = kernel(&text, Reply::ok());
        option::set_option(&ucma, 9, option).unwrap();
    }
    assert_eq!(path_text.len(), 2 * 72);
}

#[test]
fn no_kernel_has_the_command_that_reads_options() {
    let (_kernel, ucma) = kernel("13: in ", Reply::Errno(Errno::NOSYS));
    assert_eq!(option::get_option(&ucma).unwrap_err().errno, Errno::NOSYS);
}
