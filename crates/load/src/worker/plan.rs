//! What the coordinator and all workers of a load job read: the job, understood once. Not here: what a worker keeps for itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use howfar_contract::jobs::{ClientWork, LoadJob};
use howfar_wire::mysql::handshake::Account;

use crate::acknowledged::LogFile;
use crate::channel::Wanted;
use crate::connection::Connection;
use crate::login::Entry;
use crate::socket::Address;
use crate::window::WindowOptions;
use crate::workload::Program;

/// Connections of a worker in an open loop, where the job has as many. At four fifths of what eight can do, the mean wait for a free
/// one is 0.29 service times; that for a worker's only one is four (M/M/c).
const OPEN_LOOP_CONNECTIONS: u32 = 8;

/// What the coordinator and all workers read.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) job: LoadJob,
    pub(crate) address: Address,
    pub(crate) wanted: Wanted,
    pub(crate) program: Arc<Program>,
    /// Transactions begun in the window, where their number is limited.
    pub(crate) begun: AtomicU64,
    /// Where acknowledged keys are logged, if they are; made when the load begins.
    pub(crate) log: OnceLock<LogFile>,
}

impl Plan {
    /// One for each CPU, no more than connections, no more than requested. In an open loop a request waits for a connection of its
    /// own worker alone, so each worker has several.
    pub(crate) fn workers(&self, cpus: &[u32]) -> usize {
        let most = self.job.threads.unwrap_or(u32::MAX);
        let useful = match self.job.arrivals {
            None => self.job.connections,
            Some(_) => self.job.connections.div_ceil(OPEN_LOOP_CONNECTIONS),
        };
        cpus.len().min(most.min(useful) as usize)
    }

    /// How many of these are not idle ones.
    pub(super) fn used(&self, connections: &[Connection]) -> usize {
        let used = u64::from(self.job.connections);
        connections.iter().filter(|one| one.id < used).count()
    }

    /// Used or idle.
    pub(crate) fn all_connections(&self) -> u64 {
        u64::from(self.job.connections) + u64::from(self.job.idle_connections)
    }

    pub(crate) fn entry(&self) -> Entry<'_> {
        let account = Account {
            user: &self.job.user,
            password: &self.job.password,
            database: &self.job.database,
        };
        Entry {
            target: &self.job.target,
            account,
            wanted: &self.wanted,
            program: &self.program,
            decode: self.job.client_work == ClientWork::Decode,
            read_only: false,
        }
    }

    /// What the measured window must know of it.
    pub(crate) fn options(&self) -> WindowOptions<'_> {
        WindowOptions {
            observe: &self.job.observe,
            open_loop: self.job.arrivals.is_some(),
            keys: self.program.commands().is_some(),
            latencies: self.job.held,
        }
    }

    /// One transaction more may begin.
    #[inline]
    pub(super) fn claim(&self) -> bool {
        self.job.transactions == 0
            || self.begun.fetch_add(1, Ordering::Relaxed) < self.job.transactions
    }
}
