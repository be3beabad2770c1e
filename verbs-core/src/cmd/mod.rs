//! One function per kernel method, named after the method. Each function implements the method's
//! ioctl and its write struct.
//!
//! The functions take and return values; handles are the kernel's numbers, valid on one open file.
//! The functions are safe because a [`Uverbs`] stands for the right to command the context.
//!
//! # Errors
//! Every function returns the kernel's errno. Common to all functions are: `EIO` after the device
//! was unplugged, `EINVAL` or `ENOENT` for a handle that is invalid on the file, `ENOMEM` if the
//! kernel has no memory for the object. Each function lists other notable errors.
//!
//! # What counts as destroyed
//! An object counts as destroyed only if the kernel confirms it. No errno of a destroy method
//! proves that the object is gone: `uverbs_destroy_uobject` returns any error from the driver and
//! leaves the object alive, as with the `EIO` of a failing ConnectX.
//!
//! An unplugged device needs no special errno. The core destroys its objects
//! (`uverbs_destroy_ufile_hw`) and keeps their handles. A later destroy method finds the handle
//! without an object behind it and returns success. A query that fails with `EIO` proves nothing
//! either: `uverbs_disassociate_api_pre` makes queries fail before the first object is destroyed.
//! rdma-core interprets `EIO` as success only if the environment requests it
//! (`RDMAV_ALLOW_DISASSOC_DESTROY`).
//!
//! # References
//! `rdma/ib_user_ioctl_cmds.h`, `rdma/ib_user_verbs.h`; Linux
//! `drivers/infiniband/core/uverbs_std_types*.c`, `uverbs_cmd.c`, `rdma_core.c`

pub mod ah;
pub mod context;
pub mod counters;
pub mod cq;
pub mod device;
pub mod dm;
pub mod dmah;
pub mod flow;
pub mod gid;
pub mod mcast;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
pub mod rwq;
pub mod srq;
pub mod wq;
pub mod xrcd;

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_verbs::{IbUverbsAhAttr, IbUverbsGlobalRoute};

use crate::channel::{Attr, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::{AhAttr, Gid, GlobalRoute, Rate};

/// A method that destroys an object: by ioctl with the handle and space for a reply, otherwise
/// through its write struct.
struct Destroy<'a> {
    verb: &'static str,
    object_id: u16,
    method_id: u16,
    handle_attr: u16,
    handle: u32,
    /// The buffer for the ioctl's reply, if it has one.
    reply: Option<(u16, &'a mut [u8])>,
}

impl Destroy<'_> {
    fn run(self, uverbs: &Uverbs, write: impl FnOnce() -> Result<(), Errno>) -> Result<()> {
        self.run_for_reply(uverbs, write).map(drop)
    }

    /// Destroys the object. Returns the write struct's reply; `None` if the ioctl filled the
    /// buffer.
    fn run_for_reply<R>(
        self,
        uverbs: &Uverbs,
        write: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<Option<R>> {
        let mut attrs = Vec::with_capacity(2);
        if let Some((id, bytes)) = self.reply {
            attrs.push(Attr::output(id, bytes));
        }
        attrs.push(Attr::handle(self.handle_attr, self.handle));
        let result = match uverbs.try_ioctl(self.object_id, self.method_id, &mut attrs) {
            Ok(true) => Ok(None),
            Ok(false) => write().map(Some),
            Err(errno) => Err(errno),
        };
        result.map_err(|errno| uverbs.error(self.verb, errno))
    }
}

/// Sends a command as a plain write struct, without a reply or a driver part.
fn write_only(uverbs: &Uverbs, command: u32, core_in: &[u8]) -> Result<(), Errno> {
    uverbs.write(WriteCmd::new(command, core_in, &mut [], crate::channel::Uhw::none()))
}

/// Sends a command as an extended write struct, without a reply or a driver part.
fn write_ex_only(uverbs: &Uverbs, command: u32, core_in: &[u8]) -> Result<(), Errno> {
    uverbs.write(WriteCmd::extended(command, core_in, &mut [], crate::channel::Uhw::none()))
}

/// Returns the number of an optional file descriptor; -1 for none.
fn fd_number(fd: Option<BorrowedFd<'_>>) -> i32 {
    fd.map_or(-1, |fd| fd.as_raw_fd())
}

/// Returns a path in the kernel's format.
///
/// # Errors
/// [`Cause::Limit`] for a GID index that does not fit the command's 8 bits.
fn ah_attr_to_kernel(attr: &AhAttr) -> Result<IbUverbsAhAttr, Cause> {
    let grh = match attr.grh {
        None => IbUverbsGlobalRoute::default(),
        Some(grh) => IbUverbsGlobalRoute {
            dgid: grh.dgid.0,
            flow_label: grh.flow_label,
            sgid_index: u8::try_from(grh.sgid_index).map_err(|_| Cause::Limit {
                name: "sgid_index",
                asked: grh.sgid_index.into(),
                min: 0,
                max: u8::MAX.into(),
            })?,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            reserved: 0,
        },
    };
    Ok(IbUverbsAhAttr {
        grh,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate.0,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port_num,
        reserved: 0,
    })
}

fn ah_attr_from_dest(dest: &uverbs_abi::ib_user_verbs::IbUverbsQpDest) -> AhAttr {
    AhAttr {
        grh: (dest.is_global != 0).then_some(GlobalRoute {
            dgid: Gid(dest.dgid),
            flow_label: dest.flow_label,
            sgid_index: dest.sgid_index.into(),
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        }),
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: Rate(dest.static_rate),
        port_num: dest.port_num,
    }
}

#[cfg(test)]
mod tests;
