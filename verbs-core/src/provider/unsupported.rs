//! [`Unsupported`]: the type of objects that a provider does not support.
//!
//! # Safety
//! The type has no values, so its unsafe functions cannot be called.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use super::{
    CompCntrOps, CountersOps, Destroy, DeviceOps, DmOps, DmahOps, FlowActionOps, FlowOps, MwOps, RecvQueue,
    RwqIndTableOps, SrqOps, TdOps, WqOps, XrcdOps,
};
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::types::{
    CompCntrEntry, CounterAttachAttr, FlowActionEspAttr, MwType, PostReason, ReadCountersFlags, RecvWr,
    SrqAttr, SrqAttrMask, WqAttr, WqState,
};

/// The type of objects that a provider does not support. It has no values.
#[derive(Debug)]
pub enum Unsupported {}

/// Returns the error (`EOPNOTSUPP`) for a verb that a provider does not support.
pub fn unsupported(device: &dyn DeviceOps, verb: &'static str) -> Error {
    Error::new(verb, device.device_name(), Errno::OPNOTSUPP)
}

impl Destroy for Unsupported {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match self {}
    }
}

impl SrqOps for Unsupported {
    type Queue = Self;

    fn handle(&self) -> u32 {
        match *self {}
    }
    fn srq_num(&self) -> Option<u32> {
        match *self {}
    }
    fn attr(&self) -> SrqAttr {
        match *self {}
    }
    fn modify(&self, _queue: &mut Self, _attr: &SrqAttr, _mask: SrqAttrMask) -> Result<()> {
        match *self {}
    }
    fn query(&self) -> Result<SrqAttr> {
        match *self {}
    }
}

impl RecvQueue for Unsupported {
    unsafe fn post_one(&mut self, _wr: &RecvWr<'_>) -> Result<(), PostReason> {
        match *self {}
    }
    fn ring(&mut self) {
        match *self {}
    }
}

impl XrcdOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
}

impl MwOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
    fn rkey(&self) -> u32 {
        match *self {}
    }
    fn mw_type(&self) -> MwType {
        match *self {}
    }
}

impl DmOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
    fn length(&self) -> u64 {
        match *self {}
    }
    fn copy_to(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        match *self {}
    }
    fn copy_from(&self, _offset: u64, _bytes: &mut [u8]) -> Result<()> {
        match *self {}
    }
    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        match *self {}
    }
}

impl DmahOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
}

impl TdOps for Unsupported {}

impl WqOps for Unsupported {
    type Queue = Self;

    fn handle(&self) -> u32 {
        match *self {}
    }
    fn wq_num(&self) -> u32 {
        match *self {}
    }
    fn state(&self) -> WqState {
        match *self {}
    }
    fn max_wr(&self) -> u32 {
        match *self {}
    }
    fn max_sge(&self) -> u32 {
        match *self {}
    }
    fn modify(&self, _queue: &mut Self, _attr: &WqAttr) -> Result<()> {
        match *self {}
    }
}

impl RwqIndTableOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
    fn ind_tbl_num(&self) -> u32 {
        match *self {}
    }
}

impl FlowOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
}

impl FlowActionOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
    fn modify_esp(&self, _attr: &FlowActionEspAttr) -> Result<()> {
        match *self {}
    }
}

impl CountersOps for Unsupported {
    type Flow = Self;

    fn handle(&self) -> u32 {
        match *self {}
    }
    fn attach_point_flow(&self, _attr: &CounterAttachAttr, _flow: Option<&Self>) -> Result<()> {
        match *self {}
    }
    fn read(&self, _values: &mut [u64], _flags: ReadCountersFlags) -> Result<()> {
        match *self {}
    }
}

impl CompCntrOps for Unsupported {
    fn handle(&self) -> u32 {
        match *self {}
    }
    fn set(&self, _entry: CompCntrEntry, _value: u64) -> Result<()> {
        match *self {}
    }
    fn inc(&self, _entry: CompCntrEntry, _amount: u64) -> Result<()> {
        match *self {}
    }
    fn read(&self, _entry: CompCntrEntry) -> Result<u64> {
        match *self {}
    }
}
