//! [`Groups`]: the multicast groups that a kernel queue pair is attached to.

use crate::channel::Uverbs;
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::{Gid, QpType};
use crate::{cmd, explain, room};

/// The list of multicast groups that a queue pair is attached to.
///
/// The kernel refuses to destroy a queue pair attached to a group (`EBUSY`), so a provider first
/// detaches it from the groups in this list.
///
/// # References
/// Linux `drivers/infiniband/core/uverbs_std_types_qp.c` (`uverbs_free_qp`), `uverbs_cmd.c`
/// (`ib_uverbs_attach_mcast`)
#[derive(Debug, Default)]
pub struct Groups(Vec<(Gid, u16)>);

impl Groups {
    /// Attaches the queue pair with this handle to a group.
    ///
    /// # Errors
    /// The errors of [`QpOps::attach_mcast`](crate::provider::QpOps::attach_mcast).
    pub fn attach(
        &mut self,
        uverbs: &Uverbs,
        handle: u32,
        qp_type: QpType,
        gid: &Gid,
        lid: u16,
    ) -> Result<()> {
        room::reserve(&mut self.0, 1).map_err(|errno| uverbs.error("attach_mcast", errno))?;
        cmd::mcast::attach_mcast(uverbs, handle, gid, lid).map_err(|error| {
            match explain::group(qp_type, gid) {
                Err(cause) if error.errno == Errno::INVAL => error.because(cause),
                _ => error,
            }
        })?;
        if !self.0.contains(&(*gid, lid)) {
            self.0.push((*gid, lid));
        }
        Ok(())
    }

    /// Detaches the queue pair with this handle from a group.
    ///
    /// # Errors
    /// The errors of [`QpOps::detach_mcast`](crate::provider::QpOps::detach_mcast).
    pub fn detach(
        &mut self,
        uverbs: &Uverbs,
        handle: u32,
        qp_type: QpType,
        gid: &Gid,
        lid: u16,
    ) -> Result<()> {
        // Drivers return various errnos for a queue pair that is not attached.
        if !self.0.contains(&(*gid, lid)) {
            let cause = explain::group(qp_type, gid).err().unwrap_or(Cause::NotAttached { gid: *gid });
            return Err(uverbs.error("detach_mcast", Errno::INVAL).because(cause));
        }
        cmd::mcast::detach_mcast(uverbs, handle, gid, lid)?;
        self.0.retain(|group| *group != (*gid, lid));
        Ok(())
    }

    /// Detaches the queue pair with this handle from all groups before it is destroyed. If the
    /// kernel refuses to detach it from a group, the group stays in the list; destroying the queue
    /// pair then shows whether this matters.
    pub fn detach_all(&mut self, uverbs: &Uverbs, handle: u32) {
        self.0.retain(|(gid, lid)| cmd::mcast::detach_mcast(uverbs, handle, gid, *lid).is_err());
    }
}
