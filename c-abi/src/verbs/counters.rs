//! Counters for flow rules and completion counters.
//!
//! # Safety
//! See the crate documentation.
#![allow(unsafe_code)]

use core::ffi::c_int;

use verbs_core::provider::{CompCntrOps as _, ContextOps as _, CountersOps as _, Provider};
use verbs_core::types::{
    CompCntrAttachOps, CompCntrCaps, CompCntrEntry, CompCntrType, CounterAttachAttr, CounterDescription,
    ReadCountersFlags,
};
use verbs_core::{Errno, Error, room};

use crate::abi::c::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_counter_attach_attr,
    ibv_counters, ibv_counters_init_attr, ibv_flow, ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use crate::abi::errno::{UNKNOWN_MEMBERS, code, not_null, not_null_or_null, pointer, refused};
use crate::handle::context::{ProviderContext, device_ops, verb};
use crate::handle::destroyable::{Destroyable, Loan};
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::flow::FlowObject;
use crate::verbs::qp::object::checked;

pub(crate) type CountersObject<P> = Object<ibv_counters, Destroyable<<P as Provider>::Counters>>;
type CompCntrObject<P> = Object<ibv_comp_cntr, Destroyable<<P as Provider>::CompCntr>>;

/// Returns the provider's completion counter if the public struct still has the counter's handle.
///
/// # Safety
/// `cntr` must be a live counter of the provider.
unsafe fn comp_cntr<'a, P: Provider>(
    cntr: *mut ibv_comp_cntr,
    verb: &'static str,
) -> Result<Loan<'a, P::CompCntr>, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let inner = CompCntrObject::<P>::lend(cntr, verb)?;
        check_handle(public(&raw const (*cntr).handle), inner.handle(), verb)?;
        Ok(inner)
    }
}

/// Operations on counters.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_counters(&self, context: *mut ibv_context) -> Result<*mut ibv_counters, Error> {
        let counters = self.context().create_counters()?;
        Ok(CountersObject::<P>::boxed(ibv_counters { context }, Destroyable::new(counters)))
    }

    unsafe fn destroy_counters(&self, counters: *mut ibv_counters) -> c_int {
        // SAFETY: the counters are live.
        unsafe { CountersObject::<P>::destroy(counters, "destroy_counters") }
    }

    unsafe fn attach_counters(
        &self,
        counters: *mut ibv_counters,
        attr: &CounterAttachAttr,
        flow: *mut ibv_flow,
    ) -> Result<(), Error> {
        const VERB: &str = "attach_counters_point_flow";
        // SAFETY: the counters are live; the rule is null or live.
        unsafe {
            let flow = FlowObject::<P>::lend_optional(flow, VERB)?;
            CountersObject::<P>::lend(counters, VERB)?.attach_point_flow(attr, flow.as_deref())
        }
    }

    unsafe fn read_counters(
        &self,
        counters: *mut ibv_counters,
        values: &mut [u64],
        flags: ReadCountersFlags,
    ) -> Result<(), Error> {
        // SAFETY: the counters are live.
        unsafe { CountersObject::<P>::lend(counters, "read_counters")? }.read(values, flags)
    }

    unsafe fn create_comp_cntr(
        &self,
        context: *mut ibv_context,
        cntr_type: CompCntrType,
    ) -> Result<*mut ibv_comp_cntr, Error> {
        let cntr = self.context().create_comp_cntr(cntr_type)?;
        let c = ibv_comp_cntr { context, handle: cntr.handle() };
        Ok(CompCntrObject::<P>::boxed(c, Destroyable::new(cntr)))
    }

    unsafe fn destroy_comp_cntr(&self, cntr: *mut ibv_comp_cntr) -> c_int {
        const VERB: &str = "destroy_comp_cntr";
        // SAFETY: the counter is live.
        unsafe {
            let checked = comp_cntr::<P>(cntr, VERB).map(drop);
            match checked {
                Ok(()) => CompCntrObject::<P>::destroy(cntr, VERB),
                Err(error) => code(Err(error)),
            }
        }
    }

    unsafe fn set_comp_cntr(
        &self,
        cntr: *mut ibv_comp_cntr,
        entry: CompCntrEntry,
        value: u64,
    ) -> Result<(), Error> {
        // SAFETY: the counter is live.
        unsafe { comp_cntr::<P>(cntr, "set_comp_cntr")? }.set(entry, value)
    }

    unsafe fn inc_comp_cntr(
        &self,
        cntr: *mut ibv_comp_cntr,
        entry: CompCntrEntry,
        amount: u64,
    ) -> Result<(), Error> {
        // SAFETY: the counter is live.
        unsafe { comp_cntr::<P>(cntr, "inc_comp_cntr")? }.inc(entry, amount)
    }

    unsafe fn read_comp_cntr(&self, cntr: *mut ibv_comp_cntr, entry: CompCntrEntry) -> Result<u64, Error> {
        // SAFETY: the counter is live.
        unsafe { comp_cntr::<P>(cntr, "read_comp_cntr")? }.read(entry)
    }

    unsafe fn qp_attach_comp_cntr(
        &self,
        qp: *mut ibv_qp,
        cntr: *mut ibv_comp_cntr,
        ops: CompCntrAttachOps,
    ) -> Result<(), Error> {
        const VERB: &str = "qp_attach_comp_cntr";
        // SAFETY: the objects are live.
        unsafe {
            let cntr = comp_cntr::<P>(cntr, VERB)?;
            checked::<P>(qp, VERB)?.control(VERB, |qp| self.context().qp_attach_comp_cntr(qp, &cntr, ops))
        }
    }
}

/// `ibv_create_counters(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        if (*attr).comp_mask != 0 {
            Err(refused("create_counters", Errno::OPNOTSUPP, UNKNOWN_MEMBERS))
        } else {
            verb!(context, create_counters(context))
        }
    })
}

/// `ibv_destroy_counters(3)`.
///
/// # Safety
/// `counters` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    not_null!(counters);
    // SAFETY: the counters are live.
    unsafe { verb!((*counters).context, destroy_counters(counters)) }
}

/// `ibv_attach_counters_point_flow(3)`.
///
/// # Safety
/// `counters` must be live, `attr` must point to attributes, and `flow` must be null or live.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    not_null!(counters, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        let attr = &*attr;
        if attr.comp_mask != 0 {
            Err(refused("attach_counters_point_flow", Errno::OPNOTSUPP, UNKNOWN_MEMBERS))
        } else {
            let counter_desc = CounterDescription(attr.counter_desc);
            let attr = CounterAttachAttr { counter_desc, index: attr.index };
            verb!((*counters).context, attach_counters(counters, &attr, flow))
        }
    })
}

/// `ibv_read_counters(3)`.
///
/// # Safety
/// `counters` must be live; `counters_value` must have space for `ncounters` values.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    counters_value: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    /// The maximum number of counters, because the length field of a command attribute has 16 bits.
    const MAX_COUNTERS: u32 = u16::MAX as u32 / size_of::<u64>() as u32;
    not_null!(counters);
    if ncounters > 0 {
        not_null!(counters_value);
    }
    if ncounters > MAX_COUNTERS {
        return code(Err(refused("read_counters", Errno::INVAL, "more counters than a command takes")));
    }
    // The program's memory may be uninitialised.
    let mut values = match room::copies(0, ncounters as usize) {
        Ok(values) => values,
        Err(errno) => return code(Err(Error::new("read_counters", "", errno))),
    };
    let flags = ReadCountersFlags::from_bits_retain(flags);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        verb!((*counters).context, read_counters(counters, &mut values, flags)).map(|()| {
            if !values.is_empty() {
                counters_value.copy_from_nonoverlapping(values.as_ptr(), values.len());
            }
        })
    })
}

/// `ibv_query_comp_cntr_caps(3)`: writes `caps_size` bytes, with zeros after the known fields.
///
/// # Safety
/// `context` must be open; `caps` must have space for `caps_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    caps_size: usize,
) -> c_int {
    const VERB: &str = "query_comp_cntr_caps";
    not_null!(context, caps);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        caps.cast::<u8>().write_bytes(0, caps_size);
        if caps_size < size_of::<ibv_comp_cntr_caps>() {
            Err(refused(VERB, Errno::INVAL, "the struct of the result is too short"))
        } else {
            device_ops(context).query_comp_cntr_caps().map(|found| caps.write(caps_to_c(&found)))
        }
    })
}

fn caps_to_c(caps: &CompCntrCaps) -> ibv_comp_cntr_caps {
    ibv_comp_cntr_caps {
        max_value: caps.max_value,
        max_counters: caps.max_counters,
        supported_qp_attach_ops: caps.supported_qp_attach_ops.bits(),
    }
}

/// `ibv_create_comp_cntr(3)`.
///
/// # Safety
/// `context` must be open; `cc_attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    cc_attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    not_null_or_null!(context, cc_attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        let attr = &*cc_attr;
        if attr.comp_mask != 0 || attr.flags != 0 {
            Err(refused("create_comp_cntr", Errno::OPNOTSUPP, UNKNOWN_MEMBERS))
        } else {
            verb!(context, create_comp_cntr(context, CompCntrType(attr.type_)))
        }
    })
}

/// `ibv_destroy_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int {
    not_null!(comp_cntr);
    // SAFETY: the counter is live.
    unsafe { verb!((*comp_cntr).context, destroy_comp_cntr(comp_cntr)) }
}

/// `ibv_set_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    not_null!(comp_cntr);
    // SAFETY: the counter is live.
    code(unsafe { verb!((*comp_cntr).context, set_comp_cntr(comp_cntr, CompCntrEntry::COMP, value)) })
}

/// `ibv_set_err_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    not_null!(comp_cntr);
    // SAFETY: the counter is live.
    code(unsafe { verb!((*comp_cntr).context, set_comp_cntr(comp_cntr, CompCntrEntry::ERR, value)) })
}

/// `ibv_inc_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    not_null!(comp_cntr);
    // SAFETY: the counter is live.
    code(unsafe { verb!((*comp_cntr).context, inc_comp_cntr(comp_cntr, CompCntrEntry::COMP, amount)) })
}

/// `ibv_inc_err_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    not_null!(comp_cntr);
    // SAFETY: the counter is live.
    code(unsafe { verb!((*comp_cntr).context, inc_comp_cntr(comp_cntr, CompCntrEntry::ERR, amount)) })
}

/// `ibv_read_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live; `value` must be valid for writing a `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { read_entry(comp_cntr, CompCntrEntry::COMP, value) }
}

/// `ibv_read_err_comp_cntr(3)`.
///
/// # Safety
/// `comp_cntr` must be live; `value` must be valid for writing a `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { read_entry(comp_cntr, CompCntrEntry::ERR, value) }
}

/// Reads one of the values of a completion counter.
///
/// # Safety
/// The counter must be null or live; `value` must be null or valid for writing a `u64`.
unsafe fn read_entry(comp_cntr: *mut ibv_comp_cntr, entry: CompCntrEntry, value: *mut u64) -> c_int {
    not_null!(comp_cntr, value);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        verb!((*comp_cntr).context, read_comp_cntr(comp_cntr, entry)).map(|found| value.write(found))
    })
}

/// `ibv_qp_attach_comp_cntr(3)`.
///
/// # Safety
/// `qp` and `comp_cntr` must be live; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    comp_cntr: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    not_null!(qp, comp_cntr, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        let attr = &*attr;
        let ops = CompCntrAttachOps::from_bits_retain(attr.op_mask);
        // Every bit is valid in this flags type, so bits without a name have to be looked for.
        let is_known = ops.iter_names().fold(ops, |left, (_, op)| left - op).is_empty();
        if attr.comp_mask != 0 || !is_known {
            Err(refused("qp_attach_comp_cntr", Errno::INVAL, UNKNOWN_MEMBERS))
        } else {
            verb!((*qp).context, qp_attach_comp_cntr(qp, comp_cntr, ops))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_keep_every_field() {
        let ops = CompCntrAttachOps::SEND | CompCntrAttachOps::REMOTE_RDMA_WRITE;
        let mut caps = CompCntrCaps::default();
        (caps.max_value, caps.max_counters, caps.supported_qp_attach_ops) = (u64::MAX - 1, 9, ops);
        let c = caps_to_c(&caps);
        assert_eq!((c.max_value, c.max_counters, c.supported_qp_attach_ops), (u64::MAX - 1, 9, 0b10_0001));
    }
}
