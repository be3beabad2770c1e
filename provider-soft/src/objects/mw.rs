//! [`Mw`]: a memory window.

use std::sync::Arc;

use verbs_core::provider::{Destroy, MwOps};
use verbs_core::types::MwType;
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::device::error::{destroyed, refusal};
use crate::objects::pd::Pd;

/// A memory window. The engine holds its current key, which work requests change.
#[derive(Debug)]
pub struct Mw {
    device: Arc<Device>,
    rkey: u32,
    mw_type: MwType,
}

impl Mw {
    /// Allocates an unbound window.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Foreign`] for a protection domain of another device.
    /// - `EOPNOTSUPP` with [`Cause::Other`] for a type other than 1 or 2.
    /// - `ENOMEM` if the device has no more regions and windows; `ENODEV` in a forked child.
    pub(crate) fn alloc(device: &Arc<Device>, pd: &Pd, mw_type: MwType) -> Result<Self> {
        const VERB: &str = "alloc_mw";
        device.check(VERB)?;
        let pd = pd.id_on(device, VERB)?;
        let kind = match mw_type {
            MwType::TYPE_1 => roce::engine::MwType::One,
            MwType::TYPE_2 => roce::engine::MwType::Two,
            _ => {
                let reason = format!("the device has windows of the types 1 and 2, not {mw_type}").into();
                return Err(device.error(VERB, Errno::OPNOTSUPP).because(Cause::Other { reason }));
            }
        };
        let rkey = device.control(VERB, |core, _| {
            core.engine.alloc_mw(pd, kind).map_err(|refused| refusal(device, VERB, refused))
        })?;
        Ok(Self { device: Arc::clone(device), rkey, mw_type })
    }
}

impl MwOps for Mw {
    fn handle(&self) -> u32 {
        self.rkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn mw_type(&self) -> MwType {
        self.mw_type
    }

    fn revocation_ends_access(&self) -> bool {
        true
    }
}

impl Destroy for Mw {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let rkey = self.rkey;
        destroyed(&self.device, "dealloc_mw", |core| core.engine.dealloc_mw(rkey))
            .map_err(|error| (self, error))
    }
}
