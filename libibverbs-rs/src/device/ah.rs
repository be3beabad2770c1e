//! [`Ah`]: a path for datagrams, including the path back to a sender.

use verbs_core::provider::{AhOps, ContextOps, Erased, NamedProvider, Provider};
use verbs_core::types::{AhAttr, Av, Gid, Grh, UdAddr, Wc, WcFlags};
use verbs_core::{Cause, Errno, Result};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::Child;

/// An address handle: the resolved path to a peer. A work request copies the fields that it needs.
///
/// Keep the handle until the datagrams sent with it have completed: some devices read the handle
/// until then, and a send fails if its handle is destroyed.
///
/// On Ethernet, the kernel or the provider resolves the MAC address of the next hop when it creates
/// the address handle. Some providers in C build address vectors in user memory and need
/// `ibv_resolve_eth_l2_from_gid`; this library has no such provider, so programs never need the MAC
/// address.
///
/// # References
/// `ibv_create_ah(3)`
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_resolve_eth_l2_from_gid")]
#[derive(Debug)]
pub struct Ah<P: Provider = Erased> {
    handle: KernelHandle<P::Ah, Child>,
}

impl<P: Provider> Ah<P> {
    pub(crate) const fn new(raw: P::Ah, pd: Child) -> Self {
        Self { handle: KernelHandle::new(raw, pd) }
    }

    /// Returns the address vector carried by work requests.
    pub fn av(&self) -> &Av {
        self.handle.get().av()
    }

    /// Returns a datagram's destination: this path, the peer's queue pair number, and its Q_Key.
    pub fn to(&self, remote_qpn: u32, remote_qkey: u32) -> UdAddr<'_> {
        UdAddr { av: self.av(), remote_qpn, remote_qkey }
    }

    /// Returns the provider's own address handle, for features beyond verbs.
    pub fn raw(&self) -> &P::Ah {
        self.handle.get()
    }

    /// Destroys the handle. Dropping does the same and leaks a handle the kernel refuses to
    /// destroy.
    ///
    /// # Errors
    /// Returns the handle and any errno the kernel returns; notably `EBUSY` while the device still
    /// sends datagrams with it.
    ///
    /// # References
    /// `ibv_destroy_ah(3)`
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle }))
    }
}

impl<P: Provider> Context<P> {
    /// Returns the path back to the sender of a datagram received at `port_num`.
    ///
    /// `wc` is the completion of the datagram's receive. `received` is the memory of that receive,
    /// which starts with the GRH. On InfiniBand, a datagram may have no GRH: `received` is ignored
    /// if the completion lacks [`WcFlags::GRH`].
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Parse`](crate::Cause::Parse) if `received` has fewer than
    ///   [`Grh::LEN`](crate::Grh::LEN) bytes or an invalid header.
    /// - `ENODATA` with [`Cause::NoSuchGid`](crate::Cause::NoSuchGid) if the datagram's destination
    ///   is not a GID of the port but, for example, a multicast group.
    /// - The errors of [`gid_table`](Self::gid_table).
    ///
    /// # References
    /// `ibv_init_ah_from_wc(3)`
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn init_ah_from_wc(&self, port_num: u8, wc: &Wc, received: &[u8]) -> Result<AhAttr> {
        const VERB: &str = "init_ah_from_wc";
        let (grh, table) = if wc.wc_flags.contains(WcFlags::GRH) {
            let grh = Grh::parse(received)
                .map_err(|error| self.registry().error(VERB, Errno::INVAL).because(Cause::Parse(error)))?;
            (Some(grh), self.gid_table()?)
        } else {
            (None, Vec::new())
        };
        AhAttr::from_wc(wc, grh.as_ref(), port_num, &table).ok_or_else(|| {
            let gid = grh.map_or(Gid::ZERO, |grh| grh.dgid);
            self.registry().error(VERB, Errno::NODATA).because(Cause::NoSuchGid { port_num, gid })
        })
    }
}

impl<P: Provider> Pd<P> {
    /// Creates an address handle: the path to a peer, for datagrams.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a nonexistent port or a GID index
    ///   beyond 255, with [`Cause::NoGrh`](crate::Cause::NoGrh) for a path without a GRH on RoCE,
    ///   with [`Cause::Gid`](crate::Cause::Gid) for a source GID index outside the table.
    /// - `ENODATA` with [`Cause::Gid`](crate::Cause::Gid) for an empty entry of the GID table.
    /// - Any other errno the kernel returns; notably `ENETUNREACH` and `EHOSTUNREACH` for a
    ///   destination without a route.
    ///
    /// # References
    /// `ibv_create_ah(3)`
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        let raw = self.context().creating("create_ah")?.create_ah(self.raw(), attr)?;
        Ok(Ah::new(raw, self.child_ah()))
    }

    /// Creates an address handle for the path back to the sender of a datagram:
    /// [`Context::init_ah_from_wc`], then [`create_ah`](Self::create_ah).
    ///
    /// # Errors
    /// The errors of both calls.
    ///
    /// # References
    /// `ibv_create_ah_from_wc(3)`
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from_wc(&self, port_num: u8, wc: &Wc, received: &[u8]) -> Result<Ah<P>> {
        self.create_ah(&self.context().init_ah_from_wc(port_num, wc, received)?)
    }
}

impl Ah<Erased> {
    /// Returns the same address handle with its provider known at compile time.
    ///
    /// # Errors
    /// Returns the handle if it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Ah<P>, HandleError<Self>> {
        match self.handle.try_map(|raw| raw.downcast::<P::Ah>()) {
            Ok(handle) => Ok(Ah { handle }),
            Err(handle) => Err(HandleError::of_another_provider(Self { handle })),
        }
    }
}
