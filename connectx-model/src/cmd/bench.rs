//! [`Bench`]: a function in plain memory, for testing commands.

use crate::bus::PlainBus;
use crate::cmd::Status;
use crate::complaint::Rule;
use crate::config::Config;
use crate::function::Function;
use crate::layout::cq::{cqc, create_cq_in, create_cq_out};
use crate::layout::iseg::command_out;
use crate::layout::mkey::{alloc_pd_out, alloc_xrcd_out};
use crate::layout::srq::{create_xrc_srq_in, xrc_srqc};
use crate::layout::{Table, dword, put};
use crate::port::PortKind;
use crate::testing::Host;
use crate::trace::Trace;

pub(crate) use crate::testing::input;

/// A running function with a protection domain and an XRC domain. Commands are dispatched directly,
/// without a command queue.
pub(crate) struct Bench {
    pub(crate) function: Function<PlainBus>,
    pub(crate) bus: PlainBus,
    pub(crate) uar: u32,
    pub(crate) eqn: u32,
    pub(crate) pd: u32,
    pub(crate) xrcd: u32,
    host: Host,
}

impl Bench {
    pub(crate) fn new(port: PortKind) -> Self {
        let mut host = Host::new();
        let config = Config { index: 0, port, scatter_to_cqe: true };
        let mut function = Function::new(config, host.bus.clone(), Trace::off());
        host.boot(&mut function);
        let (bus, uar) = (host.bus.clone(), host.uar);
        let eqn = host.completions.as_ref().map_or(0, |queue| queue.eqn);
        let mut bench = Self { function, bus, uar, eqn, pd: 0, xrcd: 0, host };
        bench.function.take_complaints();
        bench.pd = bench.alloc_pd();
        bench.xrcd = alloc_xrcd_out::XRCD.get32(&bench.ok(input(0x80e, 16)));
        bench
    }

    /// Sends a command and returns its status and output.
    pub(crate) fn send(&mut self, input: &[u8]) -> (u8, Vec<u8>) {
        let output = self.function.dispatch(input, 0x400);
        (command_out::STATUS.get(&output) as u8, output)
    }

    /// Sends a command that must succeed without a complaint.
    #[track_caller]
    pub(crate) fn ok(&mut self, input: impl AsRef<[u8]>) -> Vec<u8> {
        let (status, output) = self.send(input.as_ref());
        assert_eq!((status, self.function.take_complaints()), (0, vec![]));
        output
    }

    /// Sends a command that must fail with `status` and a complaint about `rule`.
    #[track_caller]
    pub(crate) fn refused(&mut self, input: impl AsRef<[u8]>, status: Status, rule: Rule) {
        let (got, output) = self.send(input.as_ref());
        let complaints = self.function.take_complaints();
        let rules: Vec<Rule> = complaints.iter().map(|complaint| complaint.rule).collect();
        assert_eq!((got, rules), (status as u8, vec![rule]), "{complaints:?}");
        assert!(output.iter().skip(8).all(|byte| *byte == 0), "a refused command answers nothing");
    }

    /// Sends a command that must fail with `status` but without a complaint.
    #[track_caller]
    pub(crate) fn unlucky(&mut self, input: impl AsRef<[u8]>, status: Status) {
        let (got, _) = self.send(input.as_ref());
        assert_eq!((got, self.function.take_complaints()), (status as u8, vec![]));
    }

    /// Returns the address of an unused, zeroed page.
    pub(crate) fn page(&mut self) -> u64 {
        self.host.alloc(1)
    }

    /// Returns a page list of `count` new pages.
    pub(crate) fn pages(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.page().to_be_bytes()).collect()
    }

    pub(crate) fn alloc_pd(&mut self) -> u32 {
        alloc_pd_out::PD.get32(&self.ok(input(0x800, 16)))
    }

    /// Returns a CREATE_CQ input that includes a list of 4 KiB pages.
    pub(crate) fn create_cq(&mut self, log_size: u32, entry_size: usize) -> Vec<u8> {
        let mut input = input(0x400, create_cq_in::PAS);
        let (uar, eqn, record) = (self.uar, self.eqn, self.page());
        let context = create_cq_in::CQ_CONTEXT.bytes_mut(&mut input);
        cqc::CQE_SZ.set(context, u32::from(entry_size == 128));
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::UAR_PAGE.set(context, uar);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        cqc::DBR_ADDR.set(context, record);
        input.extend(self.pages((entry_size << log_size).div_ceil(0x1000)));
        input
    }

    pub(crate) fn cq(&mut self) -> u32 {
        let input = self.create_cq(4, 64);
        create_cq_out::CQN.get32(&self.ok(input))
    }

    /// Returns a CREATE_XRC_SRQ input for 16 receives of 32 bytes each.
    pub(crate) fn create_xrc_srq(&mut self, cqn: u32) -> Vec<u8> {
        let mut input = input(0x705, create_xrc_srq_in::PAS);
        let (pd, xrcd, record) = (self.pd, self.xrcd, self.page());
        let context = create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut input);
        for (field, value) in [
            (xrc_srqc::LOG_XRC_SRQ_SIZE, 4),
            (xrc_srqc::LOG_RQ_STRIDE, 1),
            (xrc_srqc::XRCD, u64::from(xrcd)),
            (xrc_srqc::CQN, u64::from(cqn)),
            (xrc_srqc::USER_INDEX, 0xabc),
            (xrc_srqc::PD, u64::from(pd)),
            (xrc_srqc::DB_RECORD_ADDR_L, record >> 2),
        ] {
            field.set(context, value);
        }
        input.extend(self.pages(1));
        input
    }
}

/// Returns a command input whose third dword is the number of an object.
pub(crate) fn naming(opcode: u16, number: u32) -> Vec<u8> {
    let mut input = input(opcode, 16);
    input[8..12].copy_from_slice(&number.to_be_bytes());
    input
}

/// Sets one bit that the table does not name.
pub(crate) fn stray(table: &Table, bytes: &mut [u8]) {
    let offset = (0..table.size).step_by(4).find(|offset| table.known(*offset) != u32::MAX).unwrap();
    let bit = 1 << (!table.known(offset)).trailing_zeros();
    put(bytes, offset, &(dword(bytes, offset) | bit).to_be_bytes());
}
