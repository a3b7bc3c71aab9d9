//! Counters that workers increment and the coordinator adds up.

use std::collections::BTreeMap;

use howfar_contract::events::Classes;
use howfar_contract::{Failed, Latency};
use howfar_wire::ErrorCode;
use howfar_wire::keyvalue::CommandCounts;
use howfar_wire::mysql::answer::AnswerCounts;

use crate::tcp_info::TcpInfo;

/// Counters of one transaction, summed while it runs and added to the tally when it ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) queries: u64,
    pub(crate) round_trips: u64,
    pub(crate) rows: u64,
    pub(crate) classes: Classes,
    pub(crate) to_server: u64,
    pub(crate) to_client: u64,
    pub(crate) errors: u64,
    /// Keys read: with a value (`hits`) and without (`misses`).
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.queries += other.queries;
        self.round_trips += other.round_trips;
        self.rows += other.rows;
        self.classes.read += other.classes.read;
        self.classes.write += other.classes.write;
        self.classes.other += other.classes.other;
        self.to_server += other.to_server;
        self.to_client += other.to_client;
        self.errors += other.errors;
        self.hits += other.hits;
        self.misses += other.misses;
    }

    /// Add an answer's results.
    #[inline]
    pub(crate) fn add_answer(&mut self, done: &AnswerCounts) {
        self.rows += done.rows;
        self.classes.read += u64::from(done.reads);
        self.classes.write += u64::from(done.writes);
        self.classes.other += u64::from(done.others);
    }

    /// Add the results of commands on keys.
    #[inline]
    pub(crate) fn add_commands(&mut self, counts: &CommandCounts) {
        self.rows += u64::from(counts.hits);
        self.hits += u64::from(counts.hits);
        self.misses += u64::from(counts.misses);
        self.classes.read += u64::from(counts.reads);
        self.classes.write += u64::from(counts.writes);
        self.errors += counts.errors.len() as u64;
    }
}

/// Counts of one slice of the window, by one worker or by all.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    pub(crate) transactions: u64,
    pub(crate) counters: Counters,
    pub(crate) reconnects: u64,
    /// Requests that are due and not begun at the end of the slice.
    pub(crate) backlog: u64,
    pub(crate) latency: Latency,
}

impl Slice {
    pub(crate) fn add(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.counters.add(&other.counters);
        self.reconnects += other.reconnects;
        self.backlog += other.backlog;
        self.latency.add(&other.latency);
    }
}

/// Transactions and busy time of the connections, as sums and sums of squares, from which mean and standard deviation follow.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) connections: f64,
    pub(crate) done: [f64; 2],
    pub(crate) busy: [f64; 2],
}

impl Shares {
    pub(crate) fn add_connection(&mut self, done: u64, busy_ns: u64) {
        let (done, busy) = (done as f64, busy_ns as f64);
        self.connections += 1.0;
        self.done = [self.done[0] + done, self.done[1] + done * done];
        self.busy = [self.busy[0] + busy, self.busy[1] + busy * busy];
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        for index in 0..2 {
            self.done[index] += other.done[index];
            self.busy[index] += other.busy[index];
        }
    }
}

/// Stages of a statement, which are recorded if the job requests it.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Stage {
    Wait,
    Transfer,
    Parse,
}

/// Totals of the window. A worker's own totals do not contain what its slices count.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Sums of slices: a worker counts a transaction only in its slice, since a second histogram would fill the CPU's cache.
    pub(crate) transactions: u64,
    pub(crate) counters: Counters,
    pub(crate) errors: BTreeMap<ErrorCode, u64>,
    /// Connections lost in the window.
    pub(crate) lost: u64,
    /// Connections lost in the window or before it that are not back at its end.
    pub(crate) lost_at_end: u64,
    /// When and why a connection was last lost, or an attempt to open it again failed.
    pub(crate) last_loss: Option<(u64, Failed)>,
    pub(crate) reconnects: u64,
    /// Receives of a ring that found no buffer, since the job began.
    pub(crate) starved: u64,
    /// Open loop: requests due in the window.
    pub(crate) due: u64,
    /// Number of these, begun or not, without an answer at the end of the window.
    pub(crate) unanswered_count: u64,
    pub(crate) backlog_max: u64,
    /// Latencies of transactions; a worker has only those without an answer.
    pub(crate) latency: Latency,
    pub(crate) service: Latency,
    pub(crate) lateness: Latency,
    pub(crate) unanswered: Latency,
    /// Ages of transactions under way at the end of the window, from their first byte sent.
    pub(crate) in_flight: Latency,
    pub(crate) connect: Latency,
    pub(crate) stages: [Latency; 3],
    pub(crate) kinds: Vec<Latency>,
    pub(crate) shares: Shares,
    pub(crate) tcp: Vec<TcpInfo>,
}

impl Totals {
    pub(crate) fn add_slice(&mut self, slice: &Slice) {
        self.transactions += slice.transactions;
        self.counters.add(&slice.counters);
        self.latency.add(&slice.latency);
    }

    /// Add a worker's counts outside its slices.
    pub(crate) fn add(&mut self, other: &Self) {
        for (code, count) in &other.errors {
            *self.errors.entry(*code).or_default() += count;
        }
        self.lost += other.lost;
        self.lost_at_end += other.lost_at_end;
        let losses = [self.last_loss.take(), other.last_loss.clone()];
        self.last_loss = losses.into_iter().flatten().max_by_key(|(at_ns, _)| *at_ns);
        self.reconnects += other.reconnects;
        self.starved += other.starved;
        self.due += other.due;
        self.unanswered_count += other.unanswered_count;
        self.backlog_max += other.backlog_max;
        let pairs = [
            (&mut self.latency, &other.latency),
            (&mut self.service, &other.service),
            (&mut self.lateness, &other.lateness),
            (&mut self.unanswered, &other.unanswered),
            (&mut self.in_flight, &other.in_flight),
            (&mut self.connect, &other.connect),
        ];
        for (sum, part) in pairs {
            sum.add(part);
        }
        for (sum, part) in self.stages.iter_mut().zip(&other.stages) {
            sum.add(part);
        }
        self.kinds
            .resize_with(self.kinds.len().max(other.kinds.len()), Latency::new);
        for (sum, part) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.add(part);
        }
        self.shares.add(&other.shares);
        self.tcp.extend_from_slice(&other.tcp);
    }
}
