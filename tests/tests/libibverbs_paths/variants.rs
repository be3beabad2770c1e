//! Every variant of an enumeration that the pages name.

#[test]
fn every_path_compiles() {
    let _ = |x: &verbs::EspReplay| matches!(x, verbs::EspReplay::Bitmap { .. });
    let _ = |x: &verbs::EspReplay| matches!(x, verbs::EspReplay::None);
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::ActionCount(..));
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::ActionDrop);
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::ActionHandle(..));
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::ActionTag(..));
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Esp { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Eth { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Gre(..));
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Ipv4 { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Ipv4Ext { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Ipv6 { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Mpls { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Tcp { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::Udp { .. });
    let _ = |x: &verbs::FlowSpec| matches!(x, verbs::FlowSpec::VxlanTunnel(..));
    let _ = |x: &verbs::ForkStatus| matches!(x, verbs::ForkStatus::Disabled);
    let _ = |x: &verbs::ForkStatus| matches!(x, verbs::ForkStatus::Enabled);
    let _ = |x: &verbs::ForkStatus| matches!(x, verbs::ForkStatus::Unneeded);
    let _ = |x: &verbs::QueueMemory| matches!(x, verbs::QueueMemory::Default);
    let _ = |x: &verbs::RegionState| matches!(x, verbs::RegionState::Changed);
    let _ = |x: &verbs::RegionState| matches!(x, verbs::RegionState::Unchanged);
    let _ = |x: &verbs::RegionState| matches!(x, verbs::RegionState::Unusable);
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::AtomicCmpAndSwp { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::AtomicFetchAndAdd { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::AtomicWrite { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::BindMw { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::Flush { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::LocalInv { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::RdmaRead { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::RdmaWrite { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::RdmaWriteWithImm { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::Send);
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::SendWithImm { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::SendWithInv { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::Tso { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::UdSend { .. });
    let _ = |x: &verbs::SendOp| matches!(x, verbs::SendOp::UdSendWithImm { .. });
    let _ = |x: &verbs::TmOp| matches!(x, verbs::TmOp::Add { .. });
    let _ = |x: &verbs::TmOp| matches!(x, verbs::TmOp::Del { .. });
    let _ = |x: &verbs::TmOp| matches!(x, verbs::TmOp::Sync);
}
