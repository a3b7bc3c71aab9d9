//! The counts of one page, recorded by its worker while it runs and added to the totals when it has ended.

use std::collections::BTreeMap;

use howfar_contract::events::{Bytes, ServiceUse};

use crate::counts::Counters;

/// One page's counts. A worker reuses one record and its memory.
#[derive(Debug, Default)]
pub(crate) struct PageRecord {
    /// Sum over all services.
    pub(crate) counters: Counters,
    /// Latencies with their kind, an index into the setup's kinds.
    pub(crate) latencies: Vec<(usize, u64)>,
    pub(crate) services: Vec<ServiceUse>,
    /// Persistent connections that were found closed and opened again.
    pub(crate) reopened: u64,
    /// Numbers that the application reported about itself, by name.
    pub(crate) reported: BTreeMap<String, u64>,
}

impl PageRecord {
    /// Reset for the next page.
    pub(crate) fn clear(&mut self) {
        self.counters = Counters::default();
        self.latencies.clear();
        self.services.clear();
        self.reopened = 0;
        self.reported.clear();
    }

    pub(crate) fn add_latency(&mut self, kind: usize, ns: u64) {
        self.latencies.push((kind, ns));
    }
}

/// The use of a service before its first request.
pub(crate) fn zero_usage(service: &'static str) -> ServiceUse {
    ServiceUse {
        service,
        connects: 0,
        requests: 0,
        round_trips: 0,
        bytes: Bytes::default(),
        hits: 0,
        misses: 0,
    }
}

/// Add counts of the same service to a sum.
pub(crate) fn add_usage(sum: &mut ServiceUse, other: &ServiceUse) {
    sum.connects += other.connects;
    sum.requests += other.requests;
    sum.round_trips += other.round_trips;
    sum.bytes.to_server += other.bytes.to_server;
    sum.bytes.to_client += other.bytes.to_client;
    sum.hits += other.hits;
    sum.misses += other.misses;
}
