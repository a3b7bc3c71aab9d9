//! The parsed job, shared read-only by the coordinator and all workers of a load. Not here: a worker's own state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use howfar_contract::Failed;
use howfar_contract::jobs::{Arrivals, ClientWork, LoadJob, Workload};

use super::driver::try_make;
use crate::acknowledged::LogFile;
use crate::channel::ChannelOptions;
use crate::connection::Connection;
use crate::ring::Ring;
use crate::session::LoginParameters;
use crate::socket::Address;
use crate::window::WindowOptions;
use crate::workload::Program;
use crate::workload::commands::Commands;

/// Connections of a worker in an open loop, if the job has enough. At 80% utilisation the mean wait for a free connection is 0.29
/// service times with eight connections, and four with one (M/M/c).
const OPEN_LOOP_CONNECTIONS: u32 = 8;

/// Size of a ring's receive buffers: servers send at most 16 KiB at once.
const RING_BUFFER_BYTES: usize = 16 * 1024;
/// Size of the buffers if all replies are short: smaller buffers lie closer together, which with many connections saves a tenth of
/// the client's CPU time.
const SHORT_RING_BUFFER_BYTES: usize = 1024;

/// The parsed job.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) job: LoadJob,
    pub(crate) address: Address,
    pub(crate) channel_options: ChannelOptions,
    pub(crate) program: Arc<Program>,
    /// Transactions begun in the window, if their number is limited.
    pub(crate) begun_transactions: AtomicU64,
    /// The log of acknowledged keys, if requested; created when the load begins.
    pub(crate) log: OnceLock<LogFile>,
}

impl Plan {
    /// Make one ring per worker, or none if epoll serves. Called before the workers start, so that all have the same driver.
    pub(crate) fn make_rings(&self, workers: usize) -> Result<Vec<Ring>, Failed> {
        let share = self.all_connections().div_ceil(workers as u64) as usize;
        let buffer_bytes = match self.job.workload {
            Workload::OltpReadOnly(_)
            | Workload::OltpReadWrite(_)
            | Workload::SelectRandomPoints(_)
            | Workload::SelectRandomRanges(_)
            | Workload::Custom(_) => RING_BUFFER_BYTES,
            Workload::KeyValue(_)
                if !self
                    .program
                    .commands()
                    .is_some_and(Commands::has_short_replies) =>
            {
                RING_BUFFER_BYTES
            }
            _ => SHORT_RING_BUFFER_BYTES,
        };
        try_make(self.job.driver, share, || {
            (0..workers)
                .map(|_| Ring::new(share, buffer_bytes))
                .collect()
        })
    }

    /// Number of workers: one for each CPU, but no more than connections or than requested. In an open loop a request can only use a
    /// connection of its own worker, so each worker has several, unless the job sets the number of workers.
    pub(crate) fn worker_count(&self, cpus: &[u32]) -> usize {
        let requested = self.job.threads.unwrap_or(u32::MAX);
        let useful = match (self.job.arrivals, self.job.threads) {
            (Some(_), None) => (self.job.connections / OPEN_LOOP_CONNECTIONS).max(1),
            _ => self.job.connections,
        };
        cpus.len().min(requested.min(useful) as usize)
    }

    /// In an open loop, the arrivals for one of `workers`, which has `used_count` connections with load: each connection gets the
    /// same rate, even if workers have different numbers of connections.
    pub(super) fn arrivals(&self, used_count: usize, workers: usize) -> Option<Arrivals> {
        let share = used_count as f64 * workers as f64 / f64::from(self.job.connections);
        self.job.arrivals.map(|arrivals| Arrivals {
            rate_per_s: arrivals.rate_per_s * share,
            ..arrivals
        })
    }

    /// How many of `connections` carry load (not the idle ones).
    pub(super) fn used_connections(&self, connections: &[Connection]) -> usize {
        let used_count = u64::from(self.job.connections);
        connections
            .iter()
            .filter(|connection| connection.id < used_count)
            .count()
    }

    /// Number of connections, with load or idle.
    pub(crate) fn all_connections(&self) -> u64 {
        u64::from(self.job.connections) + u64::from(self.job.idle_connections)
    }

    pub(crate) fn login_parameters(&self) -> LoginParameters<'_> {
        LoginParameters {
            decode: self.job.client_work == ClientWork::Decode,
            ..LoginParameters::from_login(&self.job.login, &self.channel_options, &self.program)
        }
    }

    /// The options of the job that the measured window needs.
    pub(crate) fn window_options(&self) -> WindowOptions<'_> {
        WindowOptions {
            observe: &self.job.observe,
            open_loop: self.job.arrivals.is_some(),
            has_lookups: self.program.commands().is_some(),
            report_latencies: self.job.waits_for_begin,
        }
    }

    /// Count one more transaction; false if the limit is reached.
    #[inline]
    pub(super) fn claim_transaction(&self) -> bool {
        self.job.transactions == 0
            || self.begun_transactions.fetch_add(1, Ordering::Relaxed) < self.job.transactions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::make_plan;
    use crate::schedule::Schedule;
    use howfar_contract::parse_job;
    use serde_json::{Value, json};

    fn plan(connections: u32, rate_per_s: Option<f64>, threads: Option<u32>) -> Arc<Plan> {
        let arrivals = rate_per_s.map(|rate| json!({"rate_per_s": rate, "shape": "constant"}));
        let job: Value = json!({
            "job": "load", "version": howfar_contract::PROTOCOL_VERSION, "target": {"kind": "unix", "path": "/s"},
            "user": "u", "password": "", "database": "d", "workload": {"kind": "oltp_point_select"},
            "connections": connections, "seed": 1, "warmup_ns": 0, "measure_ns": 1, "arrivals": arrivals, "threads": threads,
        });
        let job = parse_job("load", &job.to_string()).expect("the job is valid");
        make_plan(job).expect("the job can be planned").0
    }

    #[test]
    fn a_worker_of_an_open_loop_has_several_connections() {
        let cpus = [0, 1, 2, 3];
        let open_loop = |connections| plan(connections, Some(100.0), None).worker_count(&cpus);
        assert_eq!([1, 8, 9, 16, 17, 1000].map(open_loop), [1, 1, 1, 2, 2, 4]);
        let closed_loop = |connections| plan(connections, None, None).worker_count(&cpus);
        assert_eq!([1, 3, 4, 8].map(closed_loop), [1, 3, 4, 4]);
        let requested = |threads| plan(8, Some(100.0), Some(threads)).worker_count(&cpus);
        assert_eq!([1, 3, 8].map(requested), [1, 3, 4]);
    }

    /// Four connections on three workers, 400 requests a second: 100 for each connection, 400 in total.
    #[test]
    fn each_connection_has_the_same_share_of_a_rate() {
        let plan = plan(4, Some(400.0), None);
        let due = [2, 1, 1].map(|used| {
            let arrivals = plan.arrivals(used, 3).expect("the job has arrivals");
            Schedule::new(&arrivals, (0, 3), 7, 0, 0).due_before(1_000_000_000)
        });
        assert_eq!(due, [200, 100, 100]);
    }
}
