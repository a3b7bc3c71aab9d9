//! What one page did, noted by its worker while it runs and counted when it has ended.

use std::collections::BTreeMap;

use howfar_contract::events::{Bytes, ServiceUse};

use crate::counts::Use;

/// One page's records. A worker has one and keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct PageRecord {
    /// Over all services.
    pub(crate) used: Use,
    /// Latencies by kind: a number into the setup's kinds.
    pub(crate) latencies: Vec<(usize, u64)>,
    pub(crate) services: Vec<ServiceUse>,
    /// Connections that were to stay, found closed, and opened again.
    pub(crate) reopened: u64,
    /// What an application reported of itself.
    pub(crate) reported: BTreeMap<String, u64>,
}

impl PageRecord {
    /// Ready for the next page.
    pub(crate) fn clear(&mut self) {
        self.used = Use::default();
        self.latencies.clear();
        self.services.clear();
        self.reopened = 0;
        self.reported.clear();
    }

    pub(crate) fn latency(&mut self, kind: usize, ns: u64) {
        self.latencies.push((kind, ns));
    }
}

/// Nothing yet.
pub(crate) fn unused(service: &'static str) -> ServiceUse {
    ServiceUse {
        service,
        connects: 0,
        requests: 0,
        turns: 0,
        bytes: Bytes::default(),
        hits: 0,
        misses: 0,
    }
}

/// Add what was used of the same service.
pub(crate) fn add(sum: &mut ServiceUse, other: &ServiceUse) {
    sum.connects += other.connects;
    sum.requests += other.requests;
    sum.turns += other.turns;
    sum.bytes.to_server += other.bytes.to_server;
    sum.bytes.to_client += other.bytes.to_client;
    sum.hits += other.hits;
    sum.misses += other.misses;
}
