//! Building blocks of most cases: two connected queue pairs on one device, memory for them, and
//! waits with a deadline.
//!
//! Everything is generic over the provider, so each case runs with the provider hidden and with it
//! named. `VERBS_TEST_DEVICE` selects the device ([`under_test`]).
//!
//! `arena` has the memory for raw posting, `wait` the waits for completions and their checks.

mod arena;
mod wait;

use std::sync::OnceLock;
use std::time::Duration;

use verbs::state::{Reset, Rts};
use verbs::{
    AccessFlags, AhAttr, CompChannel, Context, Cq, CqInit, GidEntry, InitAttr, LinkLayer, Mtu, Pd, Provider,
    Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RtrAttr, RtsAttr,
};
use verbs_harness::runner::{CaseResult, fail, skip};
use verbs_harness::tools::DEVICE;

use crate::suites::mlx5::control;

/// For [`both!`](crate::both).
#[doc(hidden)]
pub use verbs_harness::runner::Case;

pub use self::arena::{
    Arena, export, post_recv, post_recv_half, post_send, post_send_half, post_srq_ops, post_srq_recv,
    post_wq_recv, reg_mr_ex, rereg, signalled,
};
pub use self::wait::{
    ANY_ERROR, ended, eventually, filled, imm, in_error, is_empty, is_length_error, is_local_key_error,
    next_completed, pattern, wait, wait_for, wait_local_key_error, wait_one, wait_remote_access_error,
    wait_status, wants_right,
};

/// The port under test.
pub const PORT: u8 = 1;

/// Far beyond the time of a completion in an emulated guest on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Returns the name of the device under test: the value of [`VARIABLE`], or else the guest's
/// device.
pub fn under_test() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(VARIABLE).unwrap_or_else(|_| DEVICE.to_owned()))
}

/// The environment variable that names the device under test.
pub const VARIABLE: &str = "VERBS_TEST_DEVICE";

/// Returns the device under test.
///
/// # Errors
/// The device is missing.
pub fn device() -> CaseResult<verbs::Device> {
    Ok(verbs::devices()?.find(under_test())?)
}

/// Opens the device with its provider hidden.
///
/// # Errors
/// The device is missing, or cannot be opened.
pub fn open() -> CaseResult<Context> {
    Ok(device()?.open()?)
}

/// A device opened with its provider named.
#[derive(Debug)]
pub enum Named {
    /// ConnectX.
    #[cfg(feature = "mlx5")]
    Mlx5(Context<verbs::mlx5::Mlx5>),
    /// Soft-RoCE in the kernel.
    #[cfg(feature = "rxe")]
    Rxe(Context<verbs::rxe::Rxe>),
    /// RoCE v2 in this process.
    #[cfg(feature = "soft")]
    Soft(Context<verbs::soft::Soft>),
}

/// Opens the device with its provider named.
///
/// # Errors
/// The device is missing, or cannot be opened. A skip if this program does not name its provider.
pub fn open_named() -> CaseResult<Named> {
    let device = device()?;
    match device.driver().name {
        #[cfg(feature = "mlx5")]
        "mlx5" => Ok(Named::Mlx5(device.open_as()?)),
        #[cfg(feature = "rxe")]
        "rxe" => Ok(Named::Rxe(device.open_as()?)),
        #[cfg(feature = "soft")]
        "soft" => Ok(Named::Soft(device.open_as()?)),
        other => skip(format_args!("this program names no provider {other} (features of verbs-tests)")),
    }
}

/// Evaluates a generic expression with a [`Named`] device's context.
#[macro_export]
macro_rules! with_named {
    ($named:expr, |$context:ident| $body:expr) => {
        match $named {
            #[cfg(feature = "mlx5")]
            $crate::fabric::Named::Mlx5($context) => $body,
            #[cfg(feature = "rxe")]
            $crate::fabric::Named::Rxe($context) => $body,
            #[cfg(feature = "soft")]
            $crate::fabric::Named::Soft($context) => $body,
        }
    };
}

/// Returns whether the device under test is the kernel's rxe. Only there, its deviations from the
/// specification are accepted.
///
/// # Errors
/// The device is missing.
pub fn is_rxe() -> CaseResult<bool> {
    Ok(driver()? == "rxe")
}

/// Returns the name of the provider of the device under test.
fn driver() -> CaseResult<&'static str> {
    static NAME: OnceLock<&str> = OnceLock::new();
    match NAME.get() {
        Some(name) => Ok(name),
        None => {
            let name = device()?.driver().name;
            Ok(NAME.get_or_init(|| name))
        }
    }
}

/// Returns whether the device under test is ConnectX.
///
/// # Errors
/// The device is missing.
pub fn is_mlx5() -> CaseResult<bool> {
    Ok(driver()? == "mlx5")
}

/// Returns whether the device under test is a soft device.
///
/// # Errors
/// The device is missing.
pub fn is_soft() -> CaseResult<bool> {
    Ok(driver()? == "soft")
}

/// Returns whether the device under test can drain send queues. Linux's mlx5 has no transition to
/// SQD.
///
/// # Errors
/// The device is missing.
pub fn has_sqd() -> CaseResult<bool> {
    Ok(!is_mlx5()?)
}

/// Skips the case if the device cannot drain send queues.
///
/// # Errors
/// A skip, or the device is missing.
pub fn needs_sqd() -> CaseResult {
    if has_sqd()? { Ok(()) } else { skip("Linux's mlx5 has no way to the state SQD") }
}

/// Holds back sends posted from now on: by the state SQD, or on a device that cannot drain, by the
/// peer, which has no receive.
///
/// # Errors
/// Any errno the kernel returns.
pub fn hold<P: Provider>(qp: &mut Qp<Rts, P>) -> CaseResult {
    if has_sqd()? {
        qp.modify(&QpAttr { qp_state: QpState::SQD, ..QpAttr::default() }, QpAttrMask::STATE)?;
    }
    Ok(())
}

/// Returns whether the port under test is Ethernet.
///
/// # Errors
/// Any errno the kernel returns.
pub fn is_ethernet<P: Provider>(context: &Context<P>) -> CaseResult<bool> {
    Ok(context.query_port(PORT)?.link_layer == LinkLayer::ETHERNET)
}

/// Returns the local id of multicast groups at the port under test: any such id on InfiniBand, 0 on
/// Ethernet.
///
/// # Errors
/// Any errno the kernel returns.
pub fn group_lid() -> CaseResult<u16> {
    static LID: OnceLock<u16> = OnceLock::new();
    match LID.get() {
        Some(lid) => Ok(*lid),
        None => {
            let lid = if is_ethernet(&open()?)? { 0 } else { 0xc001 };
            Ok(*LID.get_or_init(|| lid))
        }
    }
}

/// Builds cases from functions generic over the provider, each once with it hidden and once with it
/// named.
#[macro_export]
macro_rules! both {
    ($suite:expr, $($function:ident),* $(,)?) => {
        vec![$(
            $crate::fabric::Case::new($suite, concat!(stringify!($function), " erased"), || {
                $function(&$crate::fabric::open()?)
            }),
            $crate::fabric::Case::new($suite, concat!(stringify!($function), " static"), || {
                $crate::with_named!($crate::fabric::open_named()?, |context| $function(&context))
            }),
        )*]
    };
}

/// Builds cases that change the state of the device's link: as [`both!`], but a soft device gets a
/// new network namespace. A guest's interface is free to use, because cases run one at a time.
#[macro_export]
macro_rules! both_with_link {
    ($suite:expr, $($function:ident),* $(,)?) => {
        vec![$(
            $crate::fabric::Case::new($suite, concat!(stringify!($function), " erased"), || {
                let link = $crate::fabric::Link::own()?;
                $function(&$crate::fabric::open()?, link)
            }),
            $crate::fabric::Case::new($suite, concat!(stringify!($function), " static"), || {
                let link = $crate::fabric::Link::own()?;
                $crate::with_named!($crate::fabric::open_named()?, |context| $function(&context, link))
            }),
        )*]
    };
}

/// The link of the device's port, which a case can take down and up.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// The network interface of the device, by name.
    Interface(&'static str),
    /// The cable of the ConnectX model, for a port without an interface.
    Cable,
}

impl Link {
    /// Returns the link of the device under test. Call it before listing devices. A soft device
    /// gets an interface in a new network namespace.
    ///
    /// # Errors
    /// `ip` fails. A skip if the host allows no network namespace, or the port has neither an
    /// interface nor a cable of the model.
    pub fn own() -> CaseResult<Self> {
        if under_test().starts_with("mlx5") {
            let of_device = format!("/sys/class/infiniband/{}/device/net", under_test());
            if let Some(entry) = std::fs::read_dir(of_device).ok().and_then(|mut entries| entries.next()) {
                // The process runs a single case.
                return Ok(Self::Interface(entry?.file_name().to_string_lossy().into_owned().leak()));
            }
            if !std::path::Path::new(control::PATH).exists() {
                return skip("the port has neither a network interface nor a cable that can be pulled");
            }
            return Ok(Self::Cable);
        }
        if !under_test().starts_with("soft") {
            return Ok(Self::Interface("veth0"));
        }
        if verbs_harness::sandbox::private_network()? {
            Ok(Self::Interface("lo"))
        } else {
            skip("the host allows no network namespace with a link that can be taken down")
        }
    }

    /// Takes the link down or up.
    ///
    /// # Errors
    /// `ip` fails, or the model does not respond.
    pub fn set(&self, state: &str) -> CaseResult {
        match self {
            Self::Interface(name) => verbs_harness::sandbox::ip(&["link", "set", name, state]),
            Self::Cable => control::Control::tell(&format!("port {state}")).map(drop),
        }
    }
}

/// The parameters of a [`Pair`].
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The transport service.
    pub qp_type: QpType,
    /// The capacity of each end.
    pub cap: QpCap,
    /// The capacity of each end's completion queue.
    pub cqe: u32,
    /// Whether every send is signalled.
    pub sq_sig_all: bool,
    /// Whether completion queues signal a channel.
    pub events: bool,
    /// The largest payload of a packet.
    pub path_mtu: Mtu,
    /// The attributes of the step to RTS.
    pub rts: RtsAttr,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            qp_type: QpType::RC,
            cap: QpCap {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            cqe: 128,
            sq_sig_all: false,
            events: false,
            path_mtu: Mtu::MTU_1024,
            // Four times 67 ms: cases that wait for a failure should not take long. Loopback loses
            // nothing, but a guest on a busy machine may stall for 16 ms, which four times 4 ms
            // would not outlast, and rxe of 5.10 can repeat atomics forever if its timer expires.
            rts: RtsAttr { timeout: 14, retry_cnt: 3, rnr_retry: 7, max_rd_atomic: 4, ..RtsAttr::default() },
        }
    }
}

impl Shape {
    /// Returns the default shape with another transport service.
    pub fn of(qp_type: QpType) -> Self {
        Self { qp_type, ..Self::default() }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct End<P: Provider> {
    /// Its queue pair.
    pub qp: Qp<Rts, P>,
    /// Its completion queue, for sends and receives.
    pub cq: Cq<P>,
    /// The channel of the completion queue, if it has one.
    pub channel: Option<CompChannel>,
}

/// Two connected queue pairs on one device. UD ends only have each other's addresses.
#[derive(Debug)]
pub struct Pair<P: Provider> {
    /// The device.
    pub context: Context<P>,
    /// The protection domain of all objects.
    pub pd: Pd<P>,
    /// One end.
    pub a: End<P>,
    /// The other.
    pub b: End<P>,
}

impl<P: Provider> Pair<P> {
    /// Creates and connects the queue pairs.
    ///
    /// # Errors
    /// Those of creating and modifying objects.
    pub fn new(context: &Context<P>, shape: &Shape) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let make = || -> CaseResult<_> {
            let channel = if shape.events { Some(context.create_comp_channel()?) } else { None };
            let cq = context.create_cq(&CqInit { channel: channel.as_ref(), ..CqInit::new(shape.cqe) })?;
            let qp = create_qp(&pd, &cq, shape)?;
            Ok((qp, cq, channel))
        };
        let ((a, a_cq, a_channel), (b, b_cq, b_channel)) = (make()?, make()?);
        let (to_a, to_b) = (Remote::of(&a), Remote::of(&b));
        let a = connect(context, a, shape, to_b)?;
        let b = connect(context, b, shape, to_a)?;
        Ok(Self {
            context: context.clone(),
            pd,
            a: End { qp: a, cq: a_cq, channel: a_channel },
            b: End { qp: b, cq: b_cq, channel: b_channel },
        })
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Its queue pair number.
    pub qp_num: u32,
    /// Its first sequence number.
    pub psn: u32,
}

impl Remote {
    /// Returns the address of a queue pair for its peer.
    pub fn of<S: verbs::state::State, P: Provider>(qp: &Qp<S, P>) -> Self {
        Self { qp_num: qp.qp_num(), psn: qp.psn() }
    }
}

/// Creates a queue pair with one completion queue.
///
/// # Errors
/// Any error of `create_qp`.
pub fn create_qp<P: Provider>(pd: &Pd<P>, cq: &Cq<P>, shape: &Shape) -> verbs::Result<Qp<Reset, P>> {
    let Shape { qp_type, cap, sq_sig_all, .. } = *shape;
    pd.create_qp(&QpInit { cap, sq_sig_all, ..QpInit::new(qp_type, cq) })
}

/// The queue key of every UD queue pair here.
pub const QKEY: u32 = 0x1234_5678;

/// Returns the attributes of the step to INIT.
pub fn init_attr() -> InitAttr {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    InitAttr { port_num: PORT, access, qkey: QKEY, ..InitAttr::default() }
}

/// Returns the attributes of the step to RTR, connecting to a queue pair of this device.
///
/// # Errors
/// The device has no usable GID.
pub fn rtr_attr<P: Provider>(context: &Context<P>, shape: &Shape, remote: Remote) -> CaseResult<RtrAttr> {
    Ok(RtrAttr {
        path_mtu: shape.path_mtu,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..RtrAttr::new(path(&context.find_gid(PORT)?), remote.qp_num, remote.psn)
    })
}

/// Returns the path from a GID of this device to itself.
pub fn path(gid: &GidEntry) -> AhAttr {
    AhAttr { dlid: lid(), ..AhAttr::new(gid, gid.gid) }
}

/// Returns the port's local id (LID) on InfiniBand; 0 on Ethernet and for a device without sysfs.
pub fn lid() -> u16 {
    static LID: OnceLock<u16> = OnceLock::new();
    *LID.get_or_init(|| {
        let file = format!("/sys/class/infiniband/{}/ports/{PORT}/lid", under_test());
        let text = std::fs::read_to_string(file).unwrap_or_default();
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
    })
}

/// Moves a queue pair from RESET to RTS, with the path from the given GID to itself.
///
/// # Errors
/// Any error of the modify verb.
pub fn connect_from<P: Provider>(
    source: &GidEntry,
    qp: Qp<Reset, P>,
    shape: &Shape,
    remote: Remote,
) -> CaseResult<Qp<Rts, P>> {
    let qp = qp.to_init(&init_attr())?;
    let qp = qp.to_rtr(&RtrAttr::new(path(source), remote.qp_num, remote.psn))?;
    Ok(qp.to_rts(&shape.rts)?)
}

/// Moves a queue pair from RESET to RTS.
///
/// # Errors
/// Any error of the modify verb.
pub fn connect<P: Provider>(
    context: &Context<P>,
    qp: Qp<Reset, P>,
    shape: &Shape,
    remote: Remote,
) -> CaseResult<Qp<Rts, P>> {
    let qp = qp.to_init(&init_attr())?;
    let qp = qp.to_rtr(&rtr_attr(context, shape, remote)?)?;
    Ok(qp.to_rts(&shape.rts)?)
}

/// Returns whether rxe repeats a request before the RNR timer has expired. Its requester waits for
/// the timer only in kernels with `wait_for_rnr_timer`, which 5.10 lacks. Without a retry limit it
/// then repeats in a loop that occupies the processor until a receive is posted.
///
/// # Errors
/// As [`rxe_is_before`].
pub fn rxe_ignores_rnr_timer() -> CaseResult<bool> {
    rxe_is_before(6, 1)
}

/// Returns whether the device is rxe of a kernel older than the given version.
///
/// # Errors
/// The kernel's version is unknown, or the device is missing.
pub fn rxe_is_before(major: u32, minor: u32) -> CaseResult<bool> {
    if !is_rxe()? {
        return Ok(false);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(is_major)), Some(Ok(is_minor))) => Ok((is_major, is_minor) < (major, minor)),
        _ => fail(format_args!("{release:?} is no kernel's release")),
    }
}
