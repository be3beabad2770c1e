//! Multicast groups.

use std::sync::Arc;

use verbs::{Errno, Error, Result};

use super::connection::Member;
use super::key::GroupKey;
use super::table::{self, Entry};
use super::{CmId, explain};
use crate::types::Address;

impl CmId {
    /// Starts joining a group, for sending and receiving, or with `send_only` only for sending. The
    /// outcome is [`MulticastJoin`](crate::EventKind::MulticastJoin) or
    /// [`MulticastError`](crate::EventKind::MulticastError).
    ///
    /// The id must be bound to a device. On RoCE, the kernel joins the group through IGMP, so that
    /// switches forward the group's packets. A queue pair receives these packets once it is
    /// [attached](verbs::Qp::attach_mcast) to the GID in the event. To send, it uses the path in
    /// the event.
    ///
    /// # Errors
    /// `EINVAL` for an id without a device or a unicast address; `EOPNOTSUPP` with `send_only` if
    /// the kernel or the fabric does not support it; `ENETUNREACH` for a group that a soft device's
    /// packets cannot reach, as for [`attach_mcast`](verbs::Qp::attach_mcast); any other errno the
    /// kernel returns.
    ///
    /// # References
    /// `rdma_join_multicast(3)`, `rdma_join_multicast_ex(3)`
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: impl Into<Address>, send_only: bool) -> Result<GroupKey> {
        let cookie = table::reserve().map_err(|errno| Error::new("join_multicast", "", errno))?;
        table::enter(cookie, Entry { id: Arc::downgrade(&self.inner), is_group: true });
        // The lock is held so that a thread reading the event finds the membership.
        let mut connection = self.inner.connection();
        match self.inner.explained(self.inner.backend.join(cookie.0, &group.into(), send_only)) {
            Ok(number) => {
                let key = GroupKey(cookie);
                connection.groups.push(Member { key, number });
                Ok(key)
            }
            Err(error) => {
                table::remove(cookie);
                Err(error)
            }
        }
    }

    /// Leaves a group. Queue pairs stay attached to its GID. Unread events of the membership are
    /// discarded.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the id does not have this membership; any other errno the kernel returns,
    /// after which the membership is gone as well.
    ///
    /// # References
    /// `rdma_leave_multicast(3)`
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: GroupKey) -> Result<()> {
        let member = {
            let mut connection = self.inner.connection();
            let at = connection.groups.iter().position(|member| member.key == group);
            at.map(|at| connection.groups.swap_remove(at))
        };
        let none = || explain::explain(Error::new("leave_multicast", "", Errno::ADDRNOTAVAIL));
        let member = member.ok_or_else(none)?;
        table::remove(group.0);
        self.inner.explained(self.inner.backend.leave(member.number))
    }
}
