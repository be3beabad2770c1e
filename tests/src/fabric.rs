//! The parts of most cases: two connected queue pairs on one device, memory for them, and waiting
//! with a deadline.
//!
//! Everything is generic over the provider, so that each case runs with the provider hidden and
//! with it named. Which device it runs on, `VERBS_TEST_DEVICE` says ([`under_test`]).
//!
//! # Safety
//! The cases post raw, for much of what they show cannot be asked for safely: keys that are wrong,
//! messages that do not fit, batches. What makes it sound is the [`Arena`], the only memory that
//! they name: it is never freed, there is no reference to it, and this process copies in and out of
//! it by volatile accesses. A key that is wrong is of no other memory, because what else is
//! registered in a case's process are [`verbs::Buf`]s, whose keys no case gives to raw posting.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use verbs::state::{CanPostRecv, CanPostSend, Reset, Rts};
use verbs::{
    AccessFlags, AhAttr, Buf, CompChannel, Completed, Context, Cq, CqInit, GidEntry, InitAttr, LinkLayer, Mr,
    MrChange, MrInit, Mtu, OpsWr, Pd, PostError, Provider, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState,
    QpType, RecvWr, ReregError, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, Wc, WcFlags, WcOpcode,
    WcStatus,
};

use crate::runner::{CaseResult, fail, skip};
use crate::suites::mlx5::control;
use crate::tools::DEVICE;

/// The port that is used.
pub const PORT: u8 = 1;

/// Far beyond what a completion takes in an emulated guest on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The name of the device that the cases run on: what [`VARIABLE`] says, or the guest's.
pub fn under_test() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(VARIABLE).unwrap_or_else(|_| DEVICE.to_owned()))
}

/// The environment variable that names the device under test.
pub const VARIABLE: &str = "VERBS_TEST_DEVICE";

/// Returns the device that the cases run on.
///
/// # Errors
/// It is not there.
pub fn device() -> CaseResult<verbs::Device> {
    Ok(verbs::devices()?.find(under_test())?)
}

/// Opens the device with its provider hidden.
///
/// # Errors
/// It is not there, or cannot be opened.
pub fn open() -> CaseResult<Context> {
    Ok(device()?.open()?)
}

/// Returns the file of an open device, for another owner in this process.
///
/// # Errors
/// The kernel's.
pub fn export<P: Provider>(context: &Context<P>) -> CaseResult<std::os::fd::OwnedFd> {
    // SAFETY: cases give the file to `import_device` alone, and destroy no object by its handle.
    Ok(unsafe { context.export_device() }?)
}

/// A device that was opened with its provider named.
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
/// It is not there, or cannot be opened. A skip, if this program does not name its provider.
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

/// Calls something generic with a [`Named`] device's context.
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

/// Returns whether the device under test is the kernel's rxe. Only there are its deviations from
/// the specification accepted.
///
/// # Errors
/// There is no device.
pub fn is_rxe() -> CaseResult<bool> {
    Ok(driver()? == "rxe")
}

/// The name of the provider of the device under test.
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
/// There is no device.
pub fn is_mlx5() -> CaseResult<bool> {
    Ok(driver()? == "mlx5")
}

/// Returns whether the device under test is in this process.
///
/// # Errors
/// There is no device.
pub fn is_soft() -> CaseResult<bool> {
    Ok(driver()? == "soft")
}

/// Returns whether the device under test drains send queues: Linux's mlx5 has no way to SQD.
///
/// # Errors
/// There is no device.
pub fn has_sqd() -> CaseResult<bool> {
    Ok(!is_mlx5()?)
}

/// Ends the case where the device does not drain send queues.
///
/// # Errors
/// Skipped; there is no device.
pub fn needs_sqd() -> CaseResult {
    if has_sqd()? { Ok(()) } else { skip("Linux's mlx5 has no way to the state SQD") }
}

/// Makes sends wait that are posted from now on: in SQD; or, where the device does not drain, for
/// the peer, which has no receive.
///
/// # Errors
/// The kernel's.
pub fn hold<P: Provider>(qp: &mut Qp<Rts, P>) -> CaseResult {
    if has_sqd()? {
        qp.modify(&QpAttr { qp_state: QpState::SQD, ..QpAttr::default() }, QpAttrMask::STATE)?;
    }
    Ok(())
}

/// Returns whether the port under test is Ethernet.
///
/// # Errors
/// The kernel's.
pub fn is_ethernet<P: Provider>(context: &Context<P>) -> CaseResult<bool> {
    Ok(context.query_port(PORT)?.link_layer == LinkLayer::ETHERNET)
}

/// Returns the local id of multicast groups at the port under test: any where InfiniBand has some,
/// 0 on Ethernet.
///
/// # Errors
/// The kernel's.
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

/// Cases that are generic over the provider, each once with it hidden and once with it named.
#[macro_export]
macro_rules! both {
    ($suite:expr, $($function:ident),* $(,)?) => {
        vec![$(
            $crate::runner::Case::new($suite, concat!(stringify!($function), " erased"), || {
                $function(&$crate::fabric::open()?)
            }),
            $crate::runner::Case::new($suite, concat!(stringify!($function), " static"), || {
                $crate::with_named!($crate::fabric::open_named()?, |context| $function(&context))
            }),
        )*]
    };
}

/// Cases that change the state of the device's link: as [`both!`], for soft in a network namespace
/// of their own. In the guest the device's interface is theirs, because cases run one at a time.
#[macro_export]
macro_rules! both_with_link {
    ($suite:expr, $($function:ident),* $(,)?) => {
        vec![$(
            $crate::runner::Case::new($suite, concat!(stringify!($function), " erased"), || {
                let link = $crate::fabric::Link::own()?;
                $function(&$crate::fabric::open()?, link)
            }),
            $crate::runner::Case::new($suite, concat!(stringify!($function), " static"), || {
                let link = $crate::fabric::Link::own()?;
                $crate::with_named!($crate::fabric::open_named()?, |context| $function(&context, link))
            }),
        )*]
    };
}

/// The link of the device's port, which a case takes down and up.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// The network interface below the device: its name.
    Interface(&'static str),
    /// The cable of the ConnectX model, where the port has no interface.
    Cable,
}

impl Link {
    /// Returns the link of the device under test, before a device list is made. A soft device gets
    /// an interface in a network namespace of its own.
    ///
    /// # Errors
    /// The host allows no network namespace, or the port has no interface and is not the model's;
    /// or `ip` fails.
    pub fn own() -> CaseResult<Self> {
        if under_test().starts_with("mlx5") {
            let of_device = format!("/sys/class/infiniband/{}/device/net", under_test());
            if let Some(entry) = std::fs::read_dir(of_device).ok().and_then(|mut entries| entries.next()) {
                // The process has one case.
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
        if crate::sandbox::private_network()? {
            Ok(Self::Interface("lo"))
        } else {
            skip("the host allows no network namespace with a link that can be taken down")
        }
    }

    /// Takes the link down, or up.
    ///
    /// # Errors
    /// `ip` fails, or the model does not answer.
    pub fn set(&self, state: &str) -> CaseResult {
        match self {
            Self::Interface(name) => crate::sandbox::ip(&["link", "set", name, state]),
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
    /// Every send is signalled.
    pub sq_sig_all: bool,
    /// Completion queues signal a channel.
    pub events: bool,
    /// The largest payload of a packet.
    pub path_mtu: Mtu,
    /// The last step of the ladder.
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
            // Four times 67 ms: cases that wait for the end should not take long. On loopback
            // nothing is lost, but a guest on a busy machine may stand still for 16 ms, four times
            // 4, and rxe of 5.10 can repeat atomics for ever if its timer expires on the way.
            rts: RtsAttr { timeout: 14, retry_cnt: 3, rnr_retry: 7, max_rd_atomic: 4, ..RtsAttr::default() },
        }
    }
}

impl Shape {
    /// The usual shape of another transport service.
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

/// Two connected queue pairs on one device. UD ends know each other by address only.
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
    /// Makes and connects them.
    ///
    /// # Errors
    /// Something could not be made or moved.
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

/// The other end of a connection, as it tells: its number, and the first sequence number that it
/// sends.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Its number.
    pub qp_num: u32,
    /// The first sequence number that it sends.
    pub psn: u32,
}

impl Remote {
    /// Returns the address of a queue pair, as it would send it to its peer.
    pub fn of<S: verbs::state::State, P: Provider>(qp: &Qp<S, P>) -> Self {
        Self { qp_num: qp.qp_num(), psn: qp.psn() }
    }
}

/// A queue pair that uses one completion queue.
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

/// Returns the attributes of the step to RTR, towards a queue pair of this device.
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

/// The path from a GID of this device to itself.
pub fn path(gid: &GidEntry) -> AhAttr {
    AhAttr { dlid: lid(), ..AhAttr::new(gid, gid.gid) }
}

/// The local id of the port, by which InfiniBand finds it; 0 on Ethernet, and for a device without
/// sysfs.
pub fn lid() -> u16 {
    static LID: OnceLock<u16> = OnceLock::new();
    *LID.get_or_init(|| {
        let file = format!("/sys/class/infiniband/{}/ports/{PORT}/lid", under_test());
        let text = std::fs::read_to_string(file).unwrap_or_default();
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
    })
}

/// Moves a queue pair up the ladder, with the path from this GID to itself.
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

/// Moves a queue pair up the ladder.
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

/// Registered memory that is never freed and that nothing has a reference to.
#[derive(Debug)]
pub struct Arena<P: Provider> {
    base: NonNull<u8>,
    len: usize,
    mr: Mr<P>,
}

impl<P: Provider> Arena<P> {
    /// Zeroed memory that peers may do anything to.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn new(pd: &Pd<P>, len: usize) -> CaseResult<Self> {
        let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Self::with_access(pd, len, AccessFlags::LOCAL_WRITE | remote)
    }

    /// Zeroed memory, registered with these rights.
    ///
    /// # Errors
    /// Any error of allocating or registering the memory.
    pub fn with_access(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        // Of u64, so that atomics find it aligned.
        let base = NonNull::from(Box::leak(vec![0_u64; len.div_ceil(8).max(1)].into_boxed_slice())).cast();
        // SAFETY: the memory is leaked, so it stays; the reference that made it is gone, and from
        // here on it is accessed by volatile reads and writes only.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, len, mr })
    }

    /// Zeroed memory of whole pages, registered with these rights.
    ///
    /// # Errors
    /// Any error of registering the memory.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn of_pages(pd: &Pd<P>, len: usize, access: AccessFlags) -> CaseResult<Self> {
        const PAGE: usize = 4096;
        let map = memmap2::MmapMut::map_anon(len.next_multiple_of(PAGE))?;
        // The mapping stays for good.
        let base = NonNull::new(std::mem::ManuallyDrop::new(map).as_mut_ptr()).expect("a mapping");
        // SAFETY: as in `with_access`.
        let mr = unsafe { pd.reg_mr(base.as_ptr(), len, access) }?;
        Ok(Self { base, len, mr })
    }

    /// Registers a part of it once more, at the address `iova` or at its own.
    ///
    /// # Errors
    /// Any error of registering.
    ///
    /// # Panics
    /// When the range is outside of it.
    pub fn register(
        &self,
        pd: &Pd<P>,
        range: Range<usize>,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> verbs::Result<Mr<P>> {
        let (start, length) = self.part(range);
        let iova = iova.unwrap_or(start.addr() as u64);
        // SAFETY: the memory stays, and is accessed by volatile reads and writes only.
        unsafe { pd.reg_mr_iova(start, length, iova, access) }
    }

    /// The address and the length of a part, for a registration.
    ///
    /// # Panics
    /// When the range is outside of it.
    pub fn part(&self, range: Range<usize>) -> (*mut u8, usize) {
        assert!(range.end <= self.len && range.start <= range.end);
        (self.base.as_ptr().wrapping_add(range.start), range.len())
    }

    /// Deregisters it. The memory stays.
    ///
    /// # Errors
    /// Any error of deregistering.
    pub fn close(self) -> CaseResult {
        Ok(self.mr.close()?)
    }

    /// Returns the registration, for posting from several threads. Nothing reads the memory.
    pub fn into_mr(self) -> Mr<P> {
        self.mr
    }

    /// Its address, for a peer too.
    pub fn addr(&self) -> u64 {
        self.mr.addr()
    }

    /// Its key for peers.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// Its key for this process.
    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// A part of it.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        self.mr.sge(range)
    }

    /// Tries to deregister it while the kernel refuses that. Returns it with the error.
    ///
    /// # Errors
    /// The kernel did not refuse.
    pub fn dereg_refused(self) -> CaseResult<(Self, verbs::Error)> {
        let Self { base, len, mr } = self;
        match mr.close() {
            Ok(()) => fail("the region was deregistered"),
            Err(verbs::HandleError { handle: mr, error }) => Ok((Self { base, len, mr }, error)),
        }
    }

    /// Copies out.
    ///
    /// # Panics
    /// When the range is outside of it.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len && range.start <= range.end);
        // SAFETY: within the arena, which is initialised; the device may write at the same time,
        // hence volatile.
        range.map(|at| unsafe { self.base.add(at).read_volatile() }).collect()
    }

    /// Copies in.
    ///
    /// # Panics
    /// When the bytes do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the arena, of which there is no reference.
            unsafe { self.base.add(at + i).write_volatile(*byte) };
        }
    }

    /// The 8 bytes at a place as a number.
    ///
    /// # Panics
    /// When the place is outside of it.
    pub fn number(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at..at + 8).try_into().expect("8 bytes"))
    }
}

/// Changes a region of arena memory into another.
///
/// # Errors
/// Any error of the change, with the state of the region.
pub fn rereg<P: Provider>(mr: &mut Mr<P>, change: &MrChange<'_, P>) -> Result<(), ReregError> {
    // SAFETY: the memory of every arena stays, and is accessed by volatile reads and writes only.
    unsafe { mr.rereg(change) }
}

/// Registers arena memory in the extended form.
///
/// # Errors
/// Any error of registering.
pub fn reg_mr_ex<P: Provider>(pd: &Pd<P>, init: &MrInit<'_, P>) -> verbs::Result<Mr<P>> {
    // SAFETY: as in `rereg`; a file that a case passes for a dma-buf is of no memory in use.
    unsafe { pd.reg_mr_ex(init) }
}

/// Posts sends, of arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_send<S: CanPostSend, P: Provider>(
    qp: &mut Qp<S, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: the elements name an arena, or nothing; see the module's paragraph. No case uses
    // numbers with the top bit.
    unsafe { qp.post_send(wrs) }
}

/// Posts receives, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_recv<S: CanPostRecv, P: Provider>(
    qp: &mut Qp<S, P>,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { qp.post_recv(wrs) }
}

/// Posts receives to a shared receive queue, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_srq_recv<P: Provider>(srq: &mut verbs::Srq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_recv(wrs) }
}

/// Posts receives to a work queue, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_wq_recv<P: Provider>(wq: &mut verbs::Wq<P>, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { wq.post_recv(wrs) }
}

/// Posts operations on the tag list of a shared receive queue, with arena memory.
///
/// # Errors
/// The number of accepted operations, and the error of the next one.
pub fn post_srq_ops<P: Provider>(srq: &mut verbs::Srq<P>, ops: &mut [OpsWr<'_>]) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { srq.post_srq_ops(ops) }
}

/// Posts sends through a half, of arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_send_half<P: Provider>(
    half: &mut verbs::SendHalf<Rts, P>,
    wrs: &[SendWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_send(wrs) }
}

/// Posts receives through a half, into arena memory.
///
/// # Errors
/// The number of accepted requests, and the error of the next one.
pub fn post_recv_half<P: Provider>(
    half: &mut verbs::RecvHalf<Rts, P>,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    // SAFETY: as in `post_send`.
    unsafe { half.post_recv(wrs) }
}

/// A signalled send request.
pub fn signalled<'a>(wr_id: u64, op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }
}

/// Polls until `count` completions are there.
///
/// # Errors
/// They are not, in time.
pub fn wait<P: Provider>(cq: &mut Cq<P>, count: usize) -> CaseResult<Vec<Wc>> {
    let deadline = Instant::now() + PATIENCE;
    let mut wcs = Vec::with_capacity(count);
    loop {
        let mut completions = cq.poll();
        while wcs.len() < count
            && let Some(mut completion) = completions.next()
        {
            wcs.push(completion.to_wc());
        }
        drop(completions);
        if wcs.len() == count {
            return Ok(wcs);
        }
        if Instant::now() > deadline {
            return fail(format_args!("{} of {count} completions after {PATIENCE:?}: {wcs:?}", wcs.len()));
        }
        std::thread::yield_now();
    }
}

/// Polls until one completion is there that ended well, and returns it with its memory.
///
/// # Errors
/// It is not, in time, or it failed.
pub fn next_completed<P: Provider>(cq: &mut Cq<P>) -> CaseResult<Completed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(completed) = cq.poll_one() {
            return Ok(completed.ok()?);
        }
        if Instant::now() > deadline {
            return fail(format_args!("no completion after {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
}

/// Polls until one completion is there.
///
/// # Errors
/// It is not, in time.
pub fn wait_one<P: Provider>(cq: &mut Cq<P>) -> CaseResult<Wc> {
    Ok(wait(cq, 1)?[0])
}

/// Polls until one completion is there that ended well, and is that of this request.
///
/// # Errors
/// It is not.
pub fn wait_for<P: Provider>(cq: &mut Cq<P>, wr_id: u64, opcode: WcOpcode) -> CaseResult<Wc> {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status, wc.opcode) == (wr_id, WcStatus::SUCCESS, opcode) {
        Ok(wc)
    } else {
        fail(format_args!("{opcode} {wr_id} was expected, not {wc:?}"))
    }
}

/// Polls until one completion is there, and wants it to be that of this request, ended like this.
///
/// # Errors
/// It is not.
pub fn wait_status<P: Provider>(cq: &mut Cq<P>, wr_id: u64, status: WcStatus) -> CaseResult {
    let wc = wait_one(cq)?;
    if (wc.wr_id, wc.status) == (wr_id, status) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Returns whether a request with a wrong local key ends with this status.
///
/// The specification says protection error. rxe says operation error for a key that names no region
/// (Linux `drivers/infiniband/sw/rxe/rxe_req.c`: every error but EFAULT), and newer ones flush the
/// request right away.
///
/// # Errors
/// There is no device.
pub fn is_local_key_error(status: WcStatus) -> CaseResult<bool> {
    let of_rxe = [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    Ok(status == WcStatus::LOC_PROT_ERR || (of_rxe.contains(&status) && is_rxe()?))
}

/// Returns whether these are the statuses of a sender and a receiver whose message does not fit
/// into the receive.
///
/// The specification says invalid request and length error. rxe says operation error on either
/// side.
///
/// # Errors
/// There is no device.
pub fn is_length_error(sender: WcStatus, receiver: WcStatus) -> CaseResult<bool> {
    let by_the_book = (sender, receiver) == (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
    let as_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR].contains(&sender)
        && [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR].contains(&receiver);
    Ok(by_the_book || (as_rxe && is_rxe()?))
}

/// Wants the completion to be that of this request, with this status. `of_rxe` are what rxe reports
/// instead.
///
/// # Errors
/// It is another one, or there is no device.
pub fn ended(wc: &Wc, wr_id: u64, status: WcStatus, of_rxe: &[WcStatus]) -> CaseResult {
    if wc.wr_id == wr_id && (wc.status == status || (of_rxe.contains(&wc.status) && is_rxe()?)) {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end with {status}, not {wc:?}"))
    }
}

/// Wants the completion to be that of this request, refused because the peer's queue pair lacks the
/// right.
///
/// # Errors
/// It is another one, or there is no device.
pub fn wants_right(wc: &Wc, wr_id: u64) -> CaseResult {
    // IBTA lets a responder choose between an access error and an invalid request. rxe of Linux
    // 5.10 does not answer.
    let of_rxe = [WcStatus::REM_INV_REQ_ERR, WcStatus::RETRY_EXC_ERR];
    let of_rxe = if rxe_is_before(6, 1)? { &of_rxe } else { &of_rxe[..1] };
    ended(wc, wr_id, WcStatus::REM_ACCESS_ERR, of_rxe)
}

/// The statuses that rxe may report where only the failure of a request is certain: all except
/// success.
pub const ANY_ERROR: &[WcStatus] = WcStatus::NAMED.split_at(1).1;

/// Polls until one completion is there, and wants it to be that of this request, ended by a wrong
/// local key.
///
/// # Errors
/// It is not.
pub fn wait_local_key_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    let wc = wait_one(cq)?;
    if wc.wr_id == wr_id && is_local_key_error(wc.status)? {
        Ok(())
    } else {
        fail(format_args!("{wr_id} should end by its local key, not {wc:?}"))
    }
}

/// Polls until one completion is there, and wants it to be that of this request, refused by the
/// peer for its key or rights.
///
/// # Errors
/// It is not.
pub fn wait_remote_access_error<P: Provider>(cq: &mut Cq<P>, wr_id: u64) -> CaseResult {
    // Before Linux 5.11 rxe's responder sends no NAK unless a receive was taken, so the requester
    // waits in vain.
    let status = if rxe_is_before(5, 11)? { WcStatus::RETRY_EXC_ERR } else { WcStatus::REM_ACCESS_ERR };
    wait_status(cq, wr_id, status)
}

/// Returns whether rxe repeats a request before the RNR timer has expired: its requester waits for
/// the timer only where it knows `wait_for_rnr_timer`, which 5.10 does not. Without a limit of
/// retries it repeats in a loop that keeps the processor from all programs, until a receive comes.
///
/// # Errors
/// As [`rxe_is_before`].
pub fn rxe_ignores_rnr_timer() -> CaseResult<bool> {
    rxe_is_before(6, 1)
}

/// Returns whether the device is rxe of a kernel older than this version.
///
/// # Errors
/// The kernel does not say how old it is, or there is no device.
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

/// Returns whether the queue has no completion to poll.
pub fn is_empty<P: Provider>(cq: &mut Cq<P>) -> bool {
    cq.poll().next().is_none()
}

/// The immediate data of a completion that has some.
pub fn imm(wc: &Wc) -> Option<u32> {
    wc.wc_flags.contains(WcFlags::WITH_IMM).then_some(wc.imm_data)
}

/// Bytes that no other seed has, and that no shift of themselves is.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        })
        .collect()
}

/// A buffer that holds the pattern.
///
/// # Errors
/// Any error of allocating the buffer.
pub fn filled<P: Provider>(pd: &Pd<P>, seed: u32, len: usize) -> CaseResult<Buf> {
    let mut buf = pd.alloc_buf(len)?;
    buf.copy_from_slice(&pattern(seed, len));
    Ok(buf)
}

/// Checks that a failure has left its queue pair in the error state.
///
/// rxe tells of a failure first and changes the state then (`rxe_qp_error` follows the completion
/// in both halves of 6.1), so that the check waits there. Other devices do both at once.
///
/// # Errors
/// It is in another state. Any error of the query.
pub fn in_error<S: verbs::state::State, P: Provider>(qp: &Qp<S, P>) -> CaseResult {
    let mut state = qp.state()?;
    if is_rxe()? && state != QpState::ERR {
        eventually("a failed queue pair is in the error state", || {
            qp.state().is_ok_and(|now| {
                state = now;
                now == QpState::ERR
            })
        })?;
    }
    if state == QpState::ERR { Ok(()) } else { fail(format_args!("not in the error state but {state:?}")) }
}

/// Asks again and again until it is so.
///
/// # Errors
/// It is not, in time.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> CaseResult {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return fail(format_args!("not after {PATIENCE:?}: {what}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}
