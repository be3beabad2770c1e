//! [`ErasedCq`] and its completions: an erased completion queue fetches completions in batches.
//!
//! Polling costs one indirect call per batch of [`BATCH`] completions.
// Objects are returned by value so that they are not lost; destruction is not a hot path.
#![allow(clippy::result_large_err)]

use core::any::Any;
use core::fmt::Debug;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::provider::{Completion, CqOps, Destroy, EventsRead, Notifier};
use crate::types::{CqModeration, CqWcFlags, Wc};
use crate::{for_each_completion_field, for_each_optional_field};

/// The maximum number of completions that an erased queue fetches at a time.
const BATCH: usize = 16;

/// An erased completion queue, including completions that were fetched but not yet returned.
#[derive(Debug)]
pub struct ErasedCq {
    inner: ErasedCqBox,
    batch: Box<[Wc; BATCH]>,
    /// The optional fields of the completions in the batch, if the queue was created with such
    /// fields.
    optional: Option<Box<[OptionalFields; BATCH]>>,
    next: usize,
    len: usize,
}

erased_object! {
    /// The provider's completion queue, boxed inside an erased completion queue.
    ErasedCqBox, DynCq, CqOps + Destroy
}

destroy_through_box! {
    ErasedCqBox, DynCq: CqOps {
        /// Polls like [`CqOps::poll`] and also copies the optional fields of each completion.
        fn poll_optional(&mut self, wcs: &mut [Wc], optional: &mut [OptionalFields]) -> usize {
            let mut count = 0;
            for (wc, fields) in wcs.iter_mut().zip(optional) {
                let Some(completion) = self.next() else { break };
                completion.write_to(wc);
                *fields = OptionalFields::from_completion(&completion);
                count += 1;
            }
            self.end_poll();
            count
        }
    }
}

/// Defines a struct of the optional fields, and the erased completion that returns the fields.
macro_rules! optional_fields {
    ({ $($(#[$doc:meta])* $field:ident: $type:ty;)* } $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ty;)*) => {
        /// A copy of a completion's optional fields.
        #[derive(Clone, Copy, Debug, Default)]
        struct OptionalFields {
            $($optional: Option<$optional_type>,)*
        }

        impl OptionalFields {
            fn from_completion(completion: &impl Completion) -> Self {
                Self { $($optional: completion.$optional(),)* }
            }
        }

        impl Completion for ErasedCompletion<'_> {
            $(#[inline(always)] fn $field(&self) -> $type { self.wc.$field })*
            $(
                #[inline(always)]
                fn $optional(&self) -> Option<$optional_type> {
                    self.optional?.$optional
                }
            )*

            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = *self.wc;
            }
        }
    };
}

macro_rules! with_optional_fields {
    ($($fields:tt)*) => { for_each_optional_field! { optional_fields { $($fields)* } } };
}

for_each_completion_field!(with_optional_fields);

/// A view of a completion that an erased completion queue has fetched.
#[derive(Clone, Copy, Debug)]
pub struct ErasedCompletion<'a> {
    wc: &'a Wc,
    optional: Option<&'a OptionalFields>,
}

/// The handle of an erased completion queue, usable while the queue is polled.
#[derive(Clone, Debug)]
pub struct ErasedCqHandle(Arc<dyn AnyHandle>);

trait AnyHandle: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> AnyHandle for T {}

impl ErasedCqHandle {
    /// Erases a provider's completion queue handle.
    pub fn new<T: Any + Debug + Send + Sync>(handle: T) -> Self {
        Self(Arc::new(handle))
    }

    /// Returns a reference to the provider's own handle; `None` if its type is not `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl ErasedCq {
    /// Erases a provider's completion queue.
    pub fn new<T: CqOps + Destroy>(cq: T) -> Self {
        let has_optional = !CqWcFlags::STANDARD.contains(cq.wc_flags());
        let optional = has_optional.then(|| Box::new([OptionalFields::default(); BATCH]));
        let batch = Box::new([Wc::default(); BATCH]);
        Self { inner: ErasedCqBox::new(cq), batch, optional, next: 0, len: 0 }
    }

    /// Returns a reference to the provider's own queue; `None` if its type is not `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }

    /// Returns the queue as its provider's own type.
    ///
    /// # Errors
    /// Returns the queue unchanged if it belongs to another provider or holds fetched completions
    /// that no poll has returned. In the latter case, poll until the queue is empty.
    // The queue is returned by value so that it is not lost.
    #[allow(clippy::result_large_err)]
    pub fn downcast<T: Any>(mut self) -> Result<T, Self> {
        if self.next < self.len {
            return Err(self);
        }
        match self.inner.downcast() {
            Ok(cq) => Ok(cq),
            Err(inner) => {
                self.inner = inner;
                Err(self)
            }
        }
    }
}

impl Destroy for ErasedCq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(mut self) -> Result<EventsRead, (Self, Error)> {
        match self.inner.destroy_counting_events() {
            Ok(read) => Ok(read),
            Err((inner, error)) => {
                self.inner = inner;
                Err((self, error))
            }
        }
    }
}

impl CqOps for ErasedCq {
    type Completion<'a> = ErasedCompletion<'a>;

    fn handle(&self) -> u32 {
        self.inner.0.handle()
    }

    fn cqe(&self) -> u32 {
        self.inner.0.cqe()
    }

    #[inline]
    fn next(&mut self) -> Option<ErasedCompletion<'_>> {
        if self.next == self.len {
            // Set first, so that no completion is returned again if the provider unwinds.
            (self.next, self.len) = (0, 0);
            self.len = match &mut self.optional {
                None => self.inner.0.poll(&mut self.batch[..]),
                Some(optional) => self.inner.0.poll_optional(&mut self.batch[..], &mut optional[..]),
            };
            if self.len == 0 {
                return None;
            }
        }
        let wc = self.batch.get(self.next)?;
        let optional = self.optional.as_ref().and_then(|optional| optional.get(self.next));
        self.next += 1;
        Some(ErasedCompletion { wc, optional })
    }

    /// A no-op, because fetching the batch has already returned the slots to the device.
    #[inline]
    fn end_poll(&mut self) {}

    fn purge(&mut self, qp_num: u32) {
        self.inner.0.purge(qp_num);
        let mut kept = self.next;
        for index in self.next..self.len {
            if self.batch[index].qp_num != qp_num {
                self.batch[kept] = self.batch[index];
                if let Some(optional) = &mut self.optional {
                    optional[kept] = optional[index];
                }
                kept += 1;
            }
        }
        self.len = kept;
    }

    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        if self.next == self.len {
            return self.inner.0.poll(wcs);
        }
        let fetched = self.batch.get(self.next..self.len).unwrap_or_default();
        let count = fetched.len().min(wcs.len());
        wcs[..count].copy_from_slice(&fetched[..count]);
        self.next += count;
        count + self.inner.0.poll(&mut wcs[count..])
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.0.req_notify(solicited_only)
    }

    fn notifier(&self) -> Option<Box<dyn Notifier>> {
        self.inner.0.notifier()
    }

    fn event_counter(&self) -> Option<Arc<AtomicU32>> {
        self.inner.0.event_counter()
    }

    fn wc_flags(&self) -> CqWcFlags {
        self.inner.0.wc_flags()
    }

    /// Completions already fetched are no longer in the provider's queue and are not affected.
    fn resize(&mut self, cqe: u32) -> Result<()> {
        self.inner.0.resize(cqe)
    }

    fn modify(&self, moderation: CqModeration) -> Result<()> {
        self.inner.0.modify(moderation)
    }
}
