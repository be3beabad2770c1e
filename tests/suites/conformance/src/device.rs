//! An open device: its attributes, ports, GIDs and partition keys. A device opened twice.

use verbs::{Cause, Context, CqInit, Errno, Gid, GidType, LinkLayer, NodeType, PortState, Provider, QpType};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    self, PORT, Pair, Shape, is_ethernet, is_mlx5, signalled, under_test, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        both_queries_of_the_device_agree,
        limits_leave_room_for_one_of_everything,
        the_device_and_its_list_entry_agree,
        the_node_is_a_channel_adapter,
        the_number_of_ports_is_the_same_everywhere,
        an_active_port_has_a_gid_a_partition_and_an_mtu,
        a_port_that_does_not_exist_is_refused_with_those_that_do,
        tables_of_a_port_that_does_not_exist_are_refused,
        a_port_has_a_speed,
        the_speed_of_a_port_that_does_not_exist_is_refused,
        the_gid_table_and_its_entries_agree,
        an_empty_gid_entry_is_zero,
        a_gid_index_beyond_the_table_is_refused_with_its_length,
        the_gid_found_for_a_program_is_in_the_table,
        gid_entries_name_a_network_interface,
        the_default_partition_key_has_index_0,
        a_partition_key_that_is_not_in_the_table_has_no_index,
        a_partition_key_index_beyond_the_table_is_refused,
        a_device_opened_twice_is_two_contexts_of_one_device,
        objects_of_the_other_context_are_refused,
        a_device_in_use_does_not_close,
        queries_from_many_threads_agree,
        sizes_beyond_the_limits_are_refused_with_them,
        each_completion_vector_serves_and_no_other,
    )
}

fn both_queries_of_the_device_agree<P: Provider>(context: &Context<P>) -> CaseResult {
    let (plain, extended) = (context.query_device()?, context.query_device_ex()?);
    assert_eq!(plain, extended.orig_attr);
    let flags = extended.device_cap_flags_ex.bits();
    // A kernel without the extended flags reports 0.
    assert!(flags == 0 || flags & 0xffff_ffff == plain.device_cap_flags.bits(), "{extended:?}");
    Ok(())
}

fn limits_leave_room_for_one_of_everything<P: Provider>(context: &Context<P>) -> CaseResult {
    let attr = context.query_device()?;
    let least_one = [
        attr.max_qp,
        attr.max_qp_wr,
        attr.max_sge,
        attr.max_sge_rd,
        attr.max_cq,
        attr.max_cqe,
        attr.max_mr,
        attr.max_pd,
        attr.max_qp_rd_atom,
        attr.max_qp_init_rd_atom,
        attr.max_ah,
        attr.max_mcast_grp,
        attr.max_mcast_qp_attach,
    ];
    assert!(least_one.iter().all(|limit| *limit > 0), "{attr:?}");
    assert!(attr.max_mr_size >= 1 << 20 && attr.page_size_cap & 4096 != 0, "{attr:?}");
    assert!(attr.max_pkeys > 0 && attr.phys_port_cnt > 0 && !attr.fw_ver.is_empty(), "{attr:?}");
    Ok(())
}

fn the_device_and_its_list_entry_agree<P: Provider>(context: &Context<P>) -> CaseResult {
    let device = verbs::devices()?.find(under_test())?;
    assert_eq!((device.name(), context.device_name()), (under_test(), under_test()));
    assert_eq!(context.provider_name(), device.driver().name);
    let attr = context.query_device()?;
    assert_eq!(device.guid(), attr.node_guid);
    assert_ne!(attr.node_guid, verbs::Guid(0));
    Ok(())
}

fn the_node_is_a_channel_adapter<P: Provider>(_: &Context<P>) -> CaseResult {
    let device = verbs::devices()?.find(under_test())?;
    assert_eq!(device.node_type(), NodeType::CA);
    assert_eq!(device.node_type().to_string(), "InfiniBand channel adapter");
    assert_eq!(device.transport_type().to_string(), "InfiniBand");
    Ok(())
}

fn the_number_of_ports_is_the_same_everywhere<P: Provider>(context: &Context<P>) -> CaseResult {
    let attr = context.query_device_ex()?;
    assert_eq!(u32::from(attr.orig_attr.phys_port_cnt), attr.phys_port_cnt_ex);
    let told = verbs::devices()?.find(under_test())?.info().phys_port_cnt();
    assert!(told.is_none_or(|told| told == attr.phys_port_cnt_ex), "{told:?}");
    Ok(())
}

fn an_active_port_has_a_gid_a_partition_and_an_mtu<P: Provider>(context: &Context<P>) -> CaseResult {
    let port = context.query_port(PORT)?;
    assert_eq!(port.state, PortState::ACTIVE);
    // A subnet manager numbers InfiniBand ports.
    match port.link_layer {
        LinkLayer::ETHERNET => assert_eq!(port.lid, 0),
        layer => assert!(layer == LinkLayer::INFINIBAND && port.lid != 0, "{port:?}"),
    }
    assert_eq!(port.state.to_string(), "active");
    assert!(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0 && port.max_msg_sz >= 1 << 23, "{port:?}");
    let (active, max) = (port.active_mtu.bytes(), port.max_mtu.bytes());
    assert!(active.is_some() && active <= max, "{port:?}");
    Ok(())
}

fn a_port_that_does_not_exist_is_refused_with_those_that_do<P: Provider>(context: &Context<P>) -> CaseResult {
    let last = context.query_device()?.phys_port_cnt;
    for port_num in [0, last + 1, u8::MAX] {
        let error = context.query_port(port_num).unwrap_err();
        let max = last.into();
        let cause = Cause::Limit { name: "port_num", asked: port_num.into(), min: 1, max };
        assert_eq!((error.errno, error.cause), (Errno::INVAL, cause), "{port_num}");
    }
    Ok(())
}

fn tables_of_a_port_that_does_not_exist_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let beyond = context.query_device()?.phys_port_cnt + 1;
    for port_num in [0, beyond] {
        let errors = [
            context.query_gid(port_num, 0).map(drop).unwrap_err(),
            context.query_gid_entry(port_num, 0).map(drop).unwrap_err(),
            context.query_pkey(port_num, 0).map(drop).unwrap_err(),
            context.pkey_index(port_num, 0xffff).map(drop).unwrap_err(),
            context.find_gid(port_num).map(drop).unwrap_err(),
        ];
        for error in errors {
            let is_named = matches!(error.cause, Cause::Limit { name: "port_num", .. });
            assert!(error.errno == Errno::INVAL && is_named, "port {port_num}: {error}");
        }
    }
    Ok(())
}

fn a_port_has_a_speed<P: Provider>(context: &Context<P>) -> CaseResult {
    let (speed, port) = (context.query_port_speed(PORT)?, context.query_port(PORT)?);
    assert!(speed > 0, "{port:?}");
    // The speed is in units of 100 Mbit/s. The kernel may report it more precisely than width and
    // speed do.
    let named = port.speed_100mbps();
    assert!(named.is_none_or(|named| speed >= named / 4 && speed <= named * 4), "{speed}, {named:?}");
    Ok(())
}

fn the_speed_of_a_port_that_does_not_exist_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let beyond = context.query_device()?.phys_port_cnt + 1;
    for port_num in [0, beyond] {
        let error = context.query_port_speed(port_num).unwrap_err();
        assert!(
            error.errno == Errno::INVAL && matches!(error.cause, Cause::Limit { name: "port_num", .. }),
            "port {port_num}: {error}"
        );
    }
    Ok(())
}

fn the_gid_table_and_its_entries_agree<P: Provider>(context: &Context<P>) -> CaseResult {
    let (table, len) = (context.gid_table()?, context.query_port(PORT)?.gid_tbl_len);
    assert!(!table.is_empty());
    for index in 0..len {
        let listed = table.iter().find(|entry| entry.gid_index == index).copied();
        assert_eq!(context.query_gid_entry(PORT, index)?, listed, "entry {index}");
        assert_eq!(context.query_gid(PORT, index)?, listed.map_or(Gid::ZERO, |entry| entry.gid));
    }
    assert!(table.iter().all(|entry| entry.port_num == u32::from(PORT) && entry.gid_index < len));
    Ok(())
}

fn an_empty_gid_entry_is_zero<P: Provider>(context: &Context<P>) -> CaseResult {
    let (table, len) = (context.gid_table()?, context.query_port(PORT)?.gid_tbl_len);
    let Some(empty) = (0..len).find(|index| table.iter().all(|entry| entry.gid_index != *index)) else {
        return skip("no entry of the table is empty");
    };
    assert_eq!(context.query_gid_entry(PORT, empty)?, None);
    assert_eq!(context.query_gid(PORT, empty)?, Gid::ZERO);
    Ok(())
}

fn a_gid_index_beyond_the_table_is_refused_with_its_length<P: Provider>(context: &Context<P>) -> CaseResult {
    let table_len = context.query_port(PORT)?.gid_tbl_len;
    for index in [table_len, table_len + 1, u32::MAX] {
        let error = context.query_gid_entry(PORT, index).unwrap_err();
        let cause = Cause::Gid { port_num: PORT, index, table_len };
        assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
    }
    Ok(())
}

fn the_gid_found_for_a_program_is_in_the_table<P: Provider>(context: &Context<P>) -> CaseResult {
    let found = context.find_gid(PORT)?;
    assert_eq!(context.query_gid_entry(PORT, found.gid_index)?, Some(found));
    let of_port = if is_ethernet(context)? { (GidType::ROCE_V2, "RoCE v2") } else { (GidType::IB, "IB") };
    assert_eq!((found.gid_type, &*found.gid_type.to_string()), of_port);
    assert!(!found.gid.is_zero() && !found.gid.is_multicast());
    Ok(())
}

fn gid_entries_name_a_network_interface<P: Provider>(context: &Context<P>) -> CaseResult {
    if !is_ethernet(context)? {
        return skip("the port is not Ethernet");
    }
    let mut present = Vec::new();
    for interface in std::fs::read_dir("/sys/class/net")? {
        let index = std::fs::read_to_string(interface?.path().join("ifindex"));
        present.extend(index.ok().and_then(|index| index.trim().parse::<u32>().ok()));
    }
    for entry in context.gid_table()? {
        assert!(present.contains(&entry.ndev_ifindex), "{entry:?}, {present:?}");
    }
    Ok(())
}

fn the_default_partition_key_has_index_0<P: Provider>(context: &Context<P>) -> CaseResult {
    assert_eq!(context.query_pkey(PORT, 0)?, 0xffff);
    assert_eq!(context.pkey_index(PORT, 0xffff)?, 0);
    Ok(())
}

fn a_partition_key_that_is_not_in_the_table_has_no_index<P: Provider>(context: &Context<P>) -> CaseResult {
    // The second key differs from the default key only in the membership bit.
    for pkey in [0x1234, 0x7fff] {
        let error = context.pkey_index(PORT, pkey).unwrap_err();
        assert_eq!((error.verb, error.errno), ("get_pkey_index", Errno::NODATA));
    }
    Ok(())
}

fn a_partition_key_index_beyond_the_table_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let len = context.query_port(PORT)?.pkey_tbl_len;
    for index in [len, u16::MAX] {
        let error = context.query_pkey(PORT, index).unwrap_err();
        let max = u64::from(len) - 1;
        let cause = Cause::Limit { name: "pkey index", asked: index.into(), min: 0, max };
        assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
    }
    Ok(())
}

fn a_device_opened_twice_is_two_contexts_of_one_device<P: Provider>(context: &Context<P>) -> CaseResult {
    let other = fabric::open()?;
    assert_eq!(other.query_device()?, context.query_device()?);
    assert_eq!(other.gid_table()?, context.gid_table()?);
    // Each open context has its own objects and survives the close of the other.
    let (ours, theirs) = (context.alloc_pd()?, other.alloc_pd()?);
    theirs.close()?;
    other.close()?;
    ours.close()?;
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    fabric::post_send(&mut pair.a.qp, &[signalled(1, verbs::SendOp::Send, &[])])?;
    wait_for(&mut pair.a.cq, 1, verbs::WcOpcode::SEND)?;
    Ok(())
}

fn objects_of_the_other_context_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let (one, other) = (fabric::open()?, fabric::open()?);
    assert_eq!(one.device_name(), context.device_name());
    let pd = one.alloc_pd()?;
    let cq = other.create_cq(&CqInit::new(4))?;
    let error = fabric::create_qp(&pd, &cq, &Shape::default()).unwrap_err();
    assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Foreign { .. }), "{error}");
    let channel = other.create_comp_channel()?;
    let error = one.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) }).unwrap_err();
    assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Foreign { .. }), "{error}");
    Ok(())
}

fn a_device_in_use_does_not_close<P: Provider>(_: &Context<P>) -> CaseResult {
    let context = fabric::open()?;
    let pd = context.alloc_pd()?;
    let failed = context.close().unwrap_err();
    assert!(failed.error.errno == Errno::BUSY && matches!(failed.error.cause, Cause::InUse { .. }));
    // The returned handle still works.
    let context = failed.handle;
    context.query_port(PORT)?;
    drop(pd);
    context.close()?;
    Ok(())
}

fn queries_from_many_threads_agree<P: Provider>(context: &Context<P>) -> CaseResult {
    let expected = (context.query_device_ex()?, context.gid_table()?);
    std::thread::scope(|scope| {
        let ask = || {
            (0..20).all(|_| {
                let seen = context.query_device_ex().and_then(|attr| Ok((attr, context.gid_table()?)));
                seen.is_ok_and(|seen| seen == expected)
            })
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        match threads.into_iter().all(|thread| thread.join().unwrap_or(false)) {
            true => Ok(()),
            false => fail("a thread was told something else"),
        }
    })
}

fn sizes_beyond_the_limits_are_refused_with_them<P: Provider>(context: &Context<P>) -> CaseResult {
    let attr = context.query_device()?;
    let error = context.create_cq(&CqInit::new(attr.max_cqe + 1)).unwrap_err();
    let cause =
        Cause::Limit { name: "cqe", asked: u64::from(attr.max_cqe) + 1, min: 1, max: attr.max_cqe.into() };
    assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(4))?);
    for (name, max) in
        [("max_send_wr", attr.max_qp_wr), ("max_recv_wr", attr.max_qp_wr), ("max_send_sge", attr.max_sge)]
    {
        let mut shape = Shape::default();
        let size = match name {
            "max_send_wr" => &mut shape.cap.max_send_wr,
            "max_recv_wr" => &mut shape.cap.max_recv_wr,
            _ => &mut shape.cap.max_send_sge,
        };
        // ConnectX reports the lowest limit among its queues and queue pair types.
        let asked = if is_mlx5()? { 1 << 20 } else { max + 1 };
        *size = asked;
        let error = fabric::create_qp(&pd, &cq, &shape).unwrap_err();
        let Cause::Limit { name: its, asked: its_asked, max: most, .. } = error.cause else {
            panic!("{error}")
        };
        assert_eq!((its, its_asked), (name, asked.into()), "{error}");
        assert!(most == u64::from(max) || is_mlx5()?, "{error}");
    }
    Ok(())
}

fn each_completion_vector_serves_and_no_other<P: Provider>(context: &Context<P>) -> CaseResult {
    let vectors = context.num_comp_vectors();
    assert!(vectors > 0);
    for comp_vector in 0..vectors {
        context.create_cq(&CqInit { comp_vector, ..CqInit::new(4) })?.close()?;
    }
    let error = context.create_cq(&CqInit { comp_vector: vectors, ..CqInit::new(4) }).unwrap_err();
    let is_named = matches!(error.cause, Cause::Limit { name: "comp_vector", .. });
    assert!(error.errno == Errno::INVAL && is_named, "{error}");
    Ok(())
}
