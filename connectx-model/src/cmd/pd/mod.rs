//! Domains: protection domains, XRC domains, transport domains.

use roce::engine::Pd;

use crate::bus::Bus;
use crate::checks::{busy, engine, missing};
use crate::function::Function;
use crate::layout::mkey::{
    alloc_pd_out, alloc_transport_domain_out, alloc_xrcd_out, dealloc_pd_in, dealloc_transport_domain_in,
    dealloc_xrcd_in,
};
use crate::layout::qp::qpc;
use crate::refusal::{Refusal, Status};

pub(super) fn alloc_pd<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let pd = function.engine.alloc_pd().map_err(|refused| engine(refused, "a protection domain"))?;
    function.core.pds.insert(pd.0);
    alloc_pd_out::PD.set(output, pd.0);
    Ok(())
}

pub(super) fn dealloc_pd<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let pd = dealloc_pd_in::PD.get32(input);
    function.core.needs_pd(pd)?;
    if function.core.eth.uses_pd(pd) {
        return Err(busy(format!("protection domain {pd:#x} is in use by Ethernet queues")));
    }
    function
        .engine
        .dealloc_pd(Pd(pd))
        .map_err(|refused| engine(refused, &format!("protection domain {pd:#x}")))?;
    function.core.pds.remove(&pd);
    Ok(())
}

pub(super) fn alloc_xrcd<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let xrcd = function.core.xrcds.take().ok_or(Refusal::fair(Status::NoResources))?;
    alloc_xrcd_out::XRCD.set(output, xrcd);
    Ok(())
}

pub(super) fn dealloc_xrcd<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (core, xrcd) = (&mut function.core, dealloc_xrcd_in::XRCD.get32(input));
    if !core.xrcds.contains(xrcd) {
        return Err(missing(format!("XRC domain {xrcd:#x}")));
    }
    let srqs = core.srqs.values().filter(|srq| srq.xrcd == Some(xrcd)).count();
    let qps =
        core.qps.values().filter(|qp| qp.service.is_xrc() && qpc::XRCD.get32(&qp.context) == xrcd).count();
    if srqs + qps > 0 {
        return Err(busy(format!(
            "XRC domain {xrcd:#x} is in use by {srqs} receive queues and {qps} queue pairs"
        )));
    }
    core.xrcds.give_back(xrcd);
    Ok(())
}

pub(super) fn alloc_transport_domain<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let domain = function.core.transport_domains.take().ok_or(Refusal::fair(Status::NoResources))?;
    alloc_transport_domain_out::TRANSPORT_DOMAIN.set(output, domain);
    Ok(())
}

pub(super) fn dealloc_transport_domain<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let domain = dealloc_transport_domain_in::TRANSPORT_DOMAIN.get32(input);
    if function.core.eth.uses_domain(domain) {
        return Err(busy(format!("transport domain {domain:#x} is in use by a TIS or a TIR")));
    }
    if !function.core.transport_domains.give_back(domain) {
        return Err(missing(format!("transport domain {domain:#x}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
