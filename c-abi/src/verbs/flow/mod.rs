//! Flow rules and flow actions.
//!
//! | module | content |
//! |---|---|
//! | [`spec`] | reading a rule and the specifications after it |
//! | [`esp`] | reading the attributes of an ESP action |
//!
//! # Safety
//! See the crate documentation.
#![allow(unsafe_code)]

mod esp;
mod spec;

use core::ffi::c_int;

use verbs_core::Error;
use verbs_core::provider::{ContextOps as _, FlowActionOps as _, FlowOps as _, FlowRule, Provider};
use verbs_core::types::FlowActionEspAttr;

use self::spec::Rule;
use crate::abi::c::{
    ibv_context, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_qp,
};
use crate::abi::errno::{UNKNOWN_MEMBERS, code, fail, not_null, not_null_or_null, pointer, refused};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::counters::CountersObject;
use crate::verbs::qp::object::checked;

pub(crate) type FlowObject<P> = Object<ibv_flow, Destroyable<<P as Provider>::Flow>>;
type FlowActionObject<P> = Object<ibv_flow_action, Destroyable<<P as Provider>::FlowAction>>;

/// The type of [`create_flow`].
pub(crate) type CreateFlow = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow;
/// The type of [`destroy_flow`].
pub(crate) type DestroyFlow = unsafe extern "C" fn(*mut ibv_flow) -> c_int;

/// Operations on flow rules and flow actions.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    unsafe fn create_flow(&self, qp: *mut ibv_qp, rule: Rule) -> Result<*mut ibv_flow, Error> {
        const VERB: &str = "create_flow";
        let (mut actions, mut counters) = (Vec::new(), Vec::new());
        // SAFETY: the queue pair and the objects named in the rule are live. Their loans outlive
        // the rule.
        let (inner, context, rule) = unsafe {
            let rule: Result<FlowRule<'_, P>, Error> = rule.try_map(
                |action| {
                    let action = FlowActionObject::<P>::lend(action, VERB)?;
                    let value = action.unbound();
                    actions.push(action);
                    Ok(value)
                },
                |named| {
                    let named = CountersObject::<P>::lend(named, VERB)?;
                    let value = named.unbound();
                    counters.push(named);
                    Ok(value)
                },
            );
            (checked::<P>(qp, VERB)?, (*qp).context, rule?)
        };
        let flow = inner.control(VERB, |qp| self.context().create_flow(qp, rule))?;
        let c = ibv_flow { comp_mask: 0, context, handle: flow.handle() };
        Ok(FlowObject::<P>::boxed(c, Destroyable::new(flow)))
    }

    unsafe fn destroy_flow(&self, flow: *mut ibv_flow) -> c_int {
        const VERB: &str = "destroy_flow";
        // SAFETY: the rule is live.
        unsafe {
            let own = FlowObject::<P>::lend(flow, VERB).map(|flow| flow.handle());
            let checked = own.and_then(|own| check_handle(public(&raw const (*flow).handle), own, VERB));
            match checked {
                Ok(()) => FlowObject::<P>::destroy(flow, VERB),
                Err(error) => fail(&error),
            }
        }
    }

    unsafe fn create_flow_action_esp(
        &self,
        context: *mut ibv_context,
        attr: &FlowActionEspAttr,
    ) -> Result<*mut ibv_flow_action, Error> {
        let action = self.context().create_flow_action_esp(attr)?;
        Ok(FlowActionObject::<P>::boxed(ibv_flow_action { context }, Destroyable::new(action)))
    }

    unsafe fn modify_flow_action_esp(
        &self,
        action: *mut ibv_flow_action,
        attr: &FlowActionEspAttr,
    ) -> Result<(), Error> {
        // SAFETY: the action is live.
        unsafe { FlowActionObject::<P>::lend(action, "modify_flow_action_esp")? }.modify_esp(attr)
    }

    unsafe fn destroy_flow_action(&self, action: *mut ibv_flow_action) -> c_int {
        // SAFETY: the action is live.
        unsafe { FlowActionObject::<P>::destroy(action, "destroy_flow_action") }
    }
}

/// `ibv_create_flow(3)`.
///
/// # Safety
/// `qp` must be live; `attr` must point to a rule followed by the stated number of specifications,
/// whose objects are live.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    not_null_or_null!(qp, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        spec::rule_from_c(attr)
            .map_err(|errno| refused("create_flow", errno, "the rule has a wrong or unknown part"))
            .and_then(|rule| verb!((*qp).context, create_flow(qp, rule)))
    })
}

/// `ibv_destroy_flow(3)`.
///
/// # Safety
/// `flow` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    not_null!(flow);
    // SAFETY: the rule is live.
    unsafe { verb!((*flow).context, destroy_flow(flow)) }
}

/// `ibv_create_flow_action_esp(3)`.
///
/// # Safety
/// `context` must be open; `attr` must point to attributes whose pointers are null or point to as
/// many bytes as the attributes state.
pub(crate) unsafe extern "C" fn create_flow_action_esp(
    context: *mut ibv_context,
    attr: *mut ibv_flow_action_esp_attr,
) -> *mut ibv_flow_action {
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    pointer(unsafe {
        esp::attr_from_c(&*attr)
            .map_err(|errno| refused("create_flow_action_esp", errno, UNKNOWN_MEMBERS))
            .and_then(|attr| verb!(context, create_flow_action_esp(context, &attr)))
    })
}

/// `ibv_modify_flow_action_esp(3)`.
///
/// # Safety
/// `action` must be live; `attr` must be the same as for [`create_flow_action_esp`].
pub(crate) unsafe extern "C" fn modify_flow_action_esp(
    action: *mut ibv_flow_action,
    attr: *mut ibv_flow_action_esp_attr,
) -> c_int {
    not_null!(action, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        esp::attr_from_c(&*attr)
            .map_err(|errno| refused("modify_flow_action_esp", errno, UNKNOWN_MEMBERS))
            .and_then(|attr| verb!((*action).context, modify_flow_action_esp(action, &attr)))
    })
}

/// `ibv_destroy_flow_action(3)`.
///
/// # Safety
/// `action` must be live and must not be used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn destroy_flow_action(action: *mut ibv_flow_action) -> c_int {
    not_null!(action);
    // SAFETY: the action is live.
    unsafe { verb!((*action).context, destroy_flow_action(action)) }
}
