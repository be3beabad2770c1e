//! Completion queues that are enlarged, armed and moderated under traffic, and objects that the
//! devices lack.
#![forbid(unsafe_code)]

use verbs::{
    CompCntrType, CqInit, CqModeration, DmahAttr, Errno, Error, FlowActionEspAttr, FlowAttr, FlowSpec,
    QpInit, QpType, WqInit,
};
use verbs_harness::runner::{CaseResult, fail};

use super::super::handle::{AnyCq, any};
use super::super::tally::Kind;
use super::super::world::PORT;
use super::Actor;

/// The size limit for enlarging completion queues. They are never made smaller, because an overrun
/// loses completions.
const MOST: u32 = 4000;

impl Actor<'_> {
    /// Changes one of the thread's completion queues, whatever its contents.
    pub(super) fn change_queue(&mut self) -> CaseResult {
        let Some(at) = self.place(self.pollers.len()) else { return Ok(()) };
        let (way, more) = (self.choices.below(4), 1 + self.choices.below(100) as u32);
        let is_mlx5 = self.world.is_mlx5();
        let cq = &mut self.pollers[at].cq;
        any!(AnyCq, cq, cq => match way {
            0 if cq.cqe() < MOST => {
                let wanted = cq.cqe() + more;
                match cq.resize(wanted) {
                    // A full ConnectX queue has no entry left for the mark of its end.
                    Err(error) if error.errno == Errno::BUSY && is_mlx5 => return Ok(()),
                    resized => resized?,
                }
                self.tally.add(Kind::CqResize);
                if cq.cqe() < wanted {
                    return fail(format_args!("a queue of {wanted} has {}", cq.cqe()));
                }
            }
            1 => {
                let size = cq.cqe();
                if cq.resize(1 << 30).is_ok() || cq.cqe() != size {
                    return fail("a queue of 2^30 was made");
                }
                self.tally.add(Kind::CqResizeRefused);
            }
            2 => {
                // The queue's completions stay in place.
                drop(cq.arm(more % 2 == 0)?);
                self.tally.add(Kind::CqArm);
            }
            _ => {
                // rxe does not support moderation.
                drop(cq.modify(CqModeration { cq_count: more as u16, cq_period: 50 }));
                self.tally.add(Kind::CqModerate);
            }
        });
        Ok(())
    }

    /// Tries to create an object that rxe and soft devices lack. Its parents can be closed
    /// afterwards.
    pub(super) fn lacking(&mut self) -> CaseResult {
        let at = self.choices.below(self.world.contexts.len() as u64) as usize;
        let (context, pd) = (&self.world.contexts[at], &self.world.pds[at]);
        let cq = context.create_cq(&CqInit::new(4))?;
        let qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
        let rule = FlowAttr::new(PORT).with(FlowSpec::ActionDrop);
        let is_mlx5 = self.world.is_mlx5();
        let refused: Option<Error> = match self.choices.below(8) {
            0 => pd.create_wq(&WqInit::new(&cq)).err(),
            1 => context.create_rwq_ind_table(&[]).err(),
            2 => context.create_flow(&qp, rule).err(),
            3 => context.create_flow_action_esp(&FlowActionEspAttr::default()).err(),
            4 => context.create_counters().err(),
            5 => context.create_comp_cntr(CompCntrType::WRS).err(),
            6 => context.import_dm(1).err(),
            _ => context.alloc_dmah(&DmahAttr::default()).err(),
        };
        match refused {
            Some(error) if error.errno == Errno::OPNOTSUPP => {}
            // ConnectX supports some of these objects and rejects an empty table with `EINVAL`.
            None if is_mlx5 => {}
            Some(error) if is_mlx5 && error.errno == Errno::INVAL => {}
            refused => return fail(format_args!("an object that the device lacks: {refused:?}")),
        }
        self.tally.add(Kind::RefusedObject);
        qp.close()?;
        Ok(cq.close()?)
    }
}
