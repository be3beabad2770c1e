//! [`Ah`]: where datagrams go.

use verbs_core::Error;
use verbs_core::provider::{AhOps, Erased, NamedProvider, Provider};
use verbs_core::types::{Av, UdAddr};

use crate::live::Live;
use crate::registry::Child;

/// An address handle: the path to a peer, resolved. A work request copies what it needs of it.
///
/// Keep it until the completions of what was sent with it were polled: some devices look at it that long, and let the
/// send fail when it is gone.
///
/// # References
/// `ibv_create_ah(3)`
#[doc(alias = "ibv_ah")]
#[derive(Debug)]
pub struct Ah<P: Provider = Erased> {
    live: Live<P::Ah, Child>,
}

impl<P: Provider> Ah<P> {
    pub(crate) const fn new(raw: P::Ah, pd: Child) -> Self {
        Self { live: Live::new(raw, pd) }
    }

    /// The address vector that a work request carries.
    pub fn av(&self) -> &Av {
        self.live.get().av()
    }

    /// A datagram's address: this path, the peer's queue pair there, and the key that opens it.
    pub fn to(&self, remote_qpn: u32, remote_qkey: u32) -> UdAddr<'_> {
        UdAddr { av: self.av(), remote_qpn, remote_qkey }
    }

    /// The provider's own address handle, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Ah {
        self.live.get()
    }

    /// Destroys it. Dropping does the same, and leaks what the kernel refuses to take back.
    ///
    /// # Errors
    /// The handle, and what the kernel answers.
    ///
    /// # References
    /// `ibv_destroy_ah(3)`
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.live.close().map(drop).map_err(|(live, error)| (Self { live }, error))
    }
}

impl Ah<Erased> {
    /// The same address handle with its provider named.
    ///
    /// # Errors
    /// The handle, when it is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Ah<P>, Self> {
        match self.live.try_map(|raw| raw.downcast::<P::Ah>()) {
            Ok(live) => Ok(Ah { live }),
            Err(live) => Err(Self { live }),
        }
    }
}
