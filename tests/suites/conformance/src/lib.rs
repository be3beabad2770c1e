//! `conformance`: the guarantees of the verbs about data, completions and events, tested on a real
//! device.
//!
//! | file | content |
//! |---|---|
//! | [`raw`] | frames, flow rules and their counters, work queues |
//! | [`rc`] | reliable connections: every operation, with the data verified |
//! | [`rc_lengths`] | reliable connections: lengths around the MTU, alignments, long messages |
//! | [`rc_order`] | reliable connections: the order of requests, of data and of completions |
//! | [`rc_queues`] | reliable connections: full queues, signalling, completion fields, batches |
//! | [`connect`] | connections by address: their data and the information for each side |
//! | [`connect_datagram`] | datagram services by address, and multicast groups |
//! | [`connect_end`] | the end of connections and of their ids |
//! | [`connect_refuse`] | rejects, ports in use, rejected calls |
//! | [`cq`] | completion queues: sizes, overruns, flags, fields, order |
//! | [`cq_clean`] | completions of destroyed or reset queue pairs |
//! | [`cq_events`] | completion channels: many queues, moderation, no lost wake-up |
//! | [`cq_resize`] | resizing completion queues |
//! | [`uc`] | unreliable connections |
//! | [`datagram`] | unreliable datagrams and multicast |
//! | [`device`] | queries of a device, its ports and tables; a device that is opened twice |
//! | [`edges`] | edge-triggered event loops around every kind of descriptor |
//! | [`atomics`] | atomics: values, atomicity, rights, bounds, order |
//! | [`placement`] | flushes and atomic writes |
//! | [`shapes`] | lists, inline data, lengths, batches, scopes |
//! | [`queues`] | posting and polling: lists, wrap-around, signalling, two threads, buffers |
//! | [`mw`] | memory windows, invalidations, revoked exposures |
//! | [`owned`] | memory of each kind that queues can own, unsignalled sends, batches, endpoints |
//! | [`failures`] | failing requests and their statuses |
//! | [`memory`] | protection domains, regions and their rights, bounds and changes |
//! | [`odp`] | on-demand paged regions, and advice about their pages |
//! | [`flushes`] | the requests around a failed request |
//! | [`events`] | completion channels and asynchronous events |
//! | [`attributes`] | queue pair attributes: limits, effects, queries |
//! | [`states`] | queue pair states: each transition, the behaviour in each state |
//! | [`unsupported`] | verbs that neither rxe nor soft devices support |
//! | [`srq`] | shared receive queues: which queue pair uses a receive, events, resizing |
//! | [`tags`] | tag matching: tag lists, matching messages, rendezvous |
//! | [`threads`] | objects used in several threads |
//! | [`xrc`] | XRC: requests that name a shared receive queue |
//!
//! Almost every case has two forms, with the provider erased and with it named. Connections by
//! address have one form, because their devices come with the provider erased.

pub mod atomics;
pub mod attributes;
pub mod connect;
pub mod connect_datagram;
pub mod connect_end;
pub mod connect_refuse;
pub mod cq;
pub mod cq_clean;
pub mod cq_events;
pub mod cq_resize;
pub mod datagram;
pub mod device;
pub mod edges;
pub mod events;
pub mod failures;
pub mod flushes;
pub mod memory;
pub mod mw;
pub mod odp;
pub mod owned;
pub mod placement;
pub mod queues;
pub mod raw;
pub mod rc;
pub mod rc_lengths;
pub mod rc_order;
pub mod rc_queues;
pub mod shapes;
pub mod srq;
pub mod states;
pub mod tags;
pub mod threads;
pub mod uc;
pub mod unsupported;
pub mod xrc;

use verbs_harness::runner::Case;

const SUITE: &str = "conformance";

/// Returns the suite's cases. A case is named after its file: `conformance.rc.what_is_true erased`.
pub fn cases() -> Vec<Case> {
    macro_rules! topics {
        ($($topic:ident),* $(,)?) => {
            [$((stringify!($topic), $topic::cases())),*]
        };
    }
    let topics = topics![
        atomics,
        attributes,
        connect,
        connect_datagram,
        connect_end,
        connect_refuse,
        cq,
        cq_clean,
        cq_events,
        cq_resize,
        datagram,
        device,
        edges,
        events,
        failures,
        flushes,
        memory,
        mw,
        odp,
        owned,
        placement,
        queues,
        raw,
        rc,
        rc_lengths,
        rc_order,
        rc_queues,
        shapes,
        srq,
        states,
        tags,
        threads,
        uc,
        unsupported,
        xrc,
    ];
    topics
        .into_iter()
        .flat_map(|(topic, cases)| cases.into_iter().map(move |case| in_topic(topic, case)))
        .collect()
}

/// Inserts the topic into a case's name. The functions in the topic's file omit the topic from
/// their names.
fn in_topic(topic: &str, case: Case) -> Case {
    let name = case.name.strip_prefix(SUITE).and_then(|rest| rest.strip_prefix('.')).unwrap_or(&case.name);
    Case { name: format!("{SUITE}.{topic}.{name}"), ..case }
}
