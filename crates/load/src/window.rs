//! Combines the events of the workers into the events that the engine writes about the measured window.

use std::collections::BTreeMap;
use std::fs;

use howfar_contract::events::{
    Account, Bytes, Fairness, Finished, Histogram, Interval, Lookups, Lost, Measuring, TcpFacts,
};
use howfar_contract::jobs::Observed;
use howfar_contract::{Failed, emit, internal};

use crate::clock::{now_ns, unix_ns};
use crate::counts::{Shares, Slice, Totals};
use crate::tally::{PassedEdge, Window};
use crate::tcp_info::TcpInfo;
use crate::usage::Usage;

/// How far in the future a command takes effect, so that all workers receive it in time.
const COMMAND_LEAD_NS: u64 = 1_000_000;

/// Write an event. Fails if stdout is closed, which ends the job.
pub(crate) fn emit_event<T: serde::Serialize>(event: &T) -> Result<(), Failed> {
    emit(event).map_err(|error| internal(format!("stdout is closed: {error}")))
}

/// The options of a job that the window needs.
pub(crate) struct WindowOptions<'a> {
    pub(crate) observe: &'a [Observed],
    pub(crate) open_loop: bool,
    /// Whether the workload looks up keys: then hits and misses are reported.
    pub(crate) has_lookups: bool,
    /// Whether each slice is reported with its latencies.
    pub(crate) report_latencies: bool,
}

/// The window, with the counts that the workers have reported so far.
pub(crate) struct WindowCollector<'a> {
    options: WindowOptions<'a>,
    window: Window,
    worker_count: usize,
    /// Number of workers that have passed the start of the window.
    started_workers: usize,
    warmup_transactions: u64,
    /// Slices that some but not all workers have passed, each with the number of these workers and the sum of their counts.
    slices: BTreeMap<u64, (usize, Slice)>,
    /// Number of workers that have passed the end of the window.
    ended_workers: usize,
    totals: Totals,
    cpu_before: Option<Usage>,
    cpu_after: Option<Usage>,
    next_slice: u64,
    interrupted: Option<Failed>,
}

impl<'a> WindowCollector<'a> {
    pub(crate) fn new(options: WindowOptions<'a>, window: Window, worker_count: usize) -> Self {
        Self {
            options,
            window,
            worker_count,
            started_workers: 0,
            warmup_transactions: 0,
            slices: BTreeMap::new(),
            ended_workers: 0,
            totals: Totals::default(),
            cpu_before: None,
            cpu_after: None,
            next_slice: 0,
            interrupted: None,
        }
    }

    /// The time at which [`WindowCollector::advance_to`] must be called next.
    pub(crate) fn next_edge(&self) -> u64 {
        if self.cpu_before.is_none() {
            self.window.start_ns
        } else if self.next_slice < self.window.slice_count() {
            self.window.slice_end(self.next_slice)
        } else {
            u64::MAX
        }
    }

    /// Advance to `now`, the clock's reading: read CPU times at both ends of the window.
    pub(crate) fn advance_to(&mut self, now: u64) -> Result<(), Failed> {
        if now >= self.window.start_ns && self.cpu_before.is_none() {
            self.cpu_before = Some(Usage::at_start(self.options.observe)?);
        }
        while self.next_slice < self.window.slice_count()
            && now >= self.window.slice_end(self.next_slice)
        {
            self.next_slice += 1;
        }
        if now >= self.window.end_ns && self.cpu_after.is_none() {
            self.cpu_after = Some(Usage::at_end(self.options.observe)?);
        }
        Ok(())
    }

    /// End the window now, because all work is done. Returns its end.
    pub(crate) fn end_now(&mut self, now: u64) -> u64 {
        self.window.end_ns = now.clamp(self.window.start_ns + 1, self.window.end_ns);
        self.window.end_ns
    }

    /// End the window because a connection was lost: soon after `now`, so that the command reaches the workers in time. Returns the new
    /// end the first time, then `None`. Returns `failed` as an error if the window has not begun.
    pub(crate) fn interrupt(&mut self, failed: Failed, now: u64) -> Result<Option<u64>, Failed> {
        if self.interrupted.is_some() || now >= self.window.end_ns {
            return Ok(None);
        }
        if now <= self.window.start_ns {
            return Err(failed);
        }
        self.interrupted = Some(failed);
        Ok(Some(self.end_now(now + COMMAND_LEAD_NS)))
    }

    /// Add the counts of a worker that passed an edge of the window.
    pub(crate) fn add_edge(&mut self, passed: PassedEdge) -> Result<(), Failed> {
        match passed {
            PassedEdge::Start {
                warmup_transactions,
            } => {
                self.started_workers += 1;
                self.warmup_transactions += warmup_transactions;
                if self.started_workers == self.worker_count {
                    let since_start = now_ns().saturating_sub(self.window.start_ns);
                    emit_event(&Measuring {
                        unix_time_ns: unix_ns().saturating_sub(since_start),
                        warmup_transactions: self.warmup_transactions,
                    })?;
                }
                Ok(())
            }
            PassedEdge::Slice { index, slice } => self.add_slice_report(index, &slice),
            PassedEdge::End(totals) => {
                self.ended_workers += 1;
                self.totals.add(&totals);
                Ok(())
            }
        }
    }

    fn add_slice_report(&mut self, index: u64, slice: &Slice) -> Result<(), Failed> {
        self.totals.add_slice(slice);
        let (passed_workers, sum) = self.slices.entry(index).or_default();
        *passed_workers += 1;
        sum.add(slice);
        if *passed_workers < self.worker_count {
            return Ok(());
        }
        let Some((_, sum)) = self.slices.remove(&index) else {
            return Ok(());
        };
        let start = self.window.slice_start(index);
        emit_event(&Interval {
            start_ns: start - self.window.start_ns,
            length_ns: self.window.slice_end(index) - start,
            transactions: sum.transactions,
            queries: sum.counters.queries,
            classes: sum.counters.classes,
            errors: sum.counters.errors,
            reconnects: sum.reconnects,
            backlog: sum.backlog,
            p50_ns: sum.latency.value_at(0.50),
            p95_ns: sum.latency.value_at(0.95),
            p99_ns: sum.latency.value_at(0.99),
            max_ns: sum.latency.max(),
            latencies: self
                .options
                .report_latencies
                .then(|| sum.latency.to_event("transaction").data),
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.ended_workers == self.worker_count && self.cpu_after.is_some()
    }

    /// Make the final event. `kinds`: names of the latencies that the tallies recorded by kind.
    pub(crate) fn finish(self, kinds: &[&str]) -> Result<Finished, Failed> {
        let (Some(before), Some(after)) = (self.cpu_before, self.cpu_after) else {
            return Err(internal("the window ended without its CPU times"));
        };
        let totals = self.totals;
        let mut open_loop = self
            .options
            .open_loop
            .then(|| make_open_loop_account(&totals));
        if let Some(account) = &mut open_loop {
            let accounted = account.answered + account.unanswered + account.failed;
            if self.interrupted.is_some() {
                // A worker that received the command late has also served requests that were due after the end.
                account.due = account.due.max(accounted);
            }
            if accounted != account.due {
                return Err(internal(format!(
                    "{} requests were due and {accounted} are accounted for",
                    account.due
                )));
            }
        }
        Ok(Finished {
            services: Vec::new(),
            app_counters: BTreeMap::new(),
            elapsed_ns: self.window.end_ns - self.window.start_ns,
            transactions: totals.transactions,
            queries: totals.counters.queries,
            round_trips: totals.counters.round_trips,
            rows: totals.counters.rows,
            classes: totals.counters.classes,
            bytes: Bytes {
                to_server: totals.counters.to_server,
                to_client: totals.counters.to_client,
            },
            answered: None,
            lookups: self.options.has_lookups.then_some(Lookups {
                hits: totals.counters.hits,
                misses: totals.counters.misses,
            }),
            errors: count_errors_by_code(&totals),
            reconnects: totals.reconnects,
            lost: lost_connections(&totals),
            starved_receives: totals.starved,
            open_loop,
            fairness: compute_fairness(&totals.shares),
            tcp: tcp_facts(&totals.tcp),
            cpu: after.since(&before),
            peak_memory_bytes: read_peak_memory_bytes(),
            histograms: build_histograms(&totals, kinds),
            interrupted: self.interrupted,
        })
    }
}

fn count_errors_by_code(totals: &Totals) -> BTreeMap<String, u64> {
    let mut errors: BTreeMap<String, u64> = totals
        .errors
        .iter()
        .map(|(code, count)| (code.to_string(), *count))
        .collect();
    if totals.lost > 0 {
        errors.insert("disconnect".to_owned(), totals.lost);
    }
    errors
}

fn lost_connections(totals: &Totals) -> Option<Lost> {
    let (_, last) = totals.last_loss.clone()?;
    Some(Lost {
        at_end: totals.lost_at_end,
        last,
    })
}

fn make_open_loop_account(totals: &Totals) -> Account {
    Account {
        due: totals.due,
        answered: totals.transactions,
        unanswered: totals.unanswered_count,
        failed: 0,
        backlog_max: totals.backlog_max,
    }
}

fn build_histograms(totals: &Totals, kinds: &[&str]) -> Vec<Histogram> {
    let mut histograms = vec![totals.latency.to_event("transaction")];
    let named_latencies = [
        ("service", &totals.service),
        ("lateness", &totals.lateness),
        ("unanswered", &totals.unanswered),
        ("in_flight", &totals.in_flight),
        ("connect", &totals.connect),
        ("stage.wait", &totals.stages[0]),
        ("stage.transfer", &totals.stages[1]),
        ("stage.parse", &totals.stages[2]),
    ];
    histograms.extend(
        named_latencies
            .into_iter()
            .chain(kinds.iter().copied().zip(&totals.kinds))
            .filter(|(_, latency)| latency.count() > 0)
            .map(|(name, latency)| latency.to_event(name)),
    );
    histograms
}

fn compute_fairness(shares: &Shares) -> Fairness {
    let mean_and_deviation = |[sum, squares]: [f64; 2]| {
        let mean = sum / shares.connections.max(1.0);
        let variance = squares / shares.connections.max(1.0) - mean * mean;
        (mean, variance.max(0.0).sqrt())
    };
    let (done, busy) = (
        mean_and_deviation(shares.done),
        mean_and_deviation(shares.busy),
    );
    Fairness {
        transactions_mean: done.0,
        transactions_stddev: done.1,
        busy_mean_ns: busy.0,
        busy_stddev_ns: busy.1,
    }
}

/// Combine the states of TCP connections; `None` if there is none.
pub(crate) fn tcp_facts(infos: &[TcpInfo]) -> Option<TcpFacts> {
    let mut rtts: Vec<u64> = infos.iter().map(|info| info.rtt_ns).collect();
    rtts.sort_unstable();
    let sum = |field: fn(&TcpInfo) -> Option<u64>| infos.iter().map(field).sum::<Option<u64>>();
    Some(TcpFacts {
        connections: infos.len() as u32,
        rtt_p50_ns: *rtts.get(rtts.len() / 2)?,
        rtt_max_ns: *rtts.last()?,
        min_rtt_ns: infos.iter().filter_map(|info| info.min_rtt_ns).min(),
        retransmits: infos.iter().map(|info| info.retransmits).sum(),
        busy_ns: sum(|info| info.busy_ns),
        rwnd_limited_ns: sum(|info| info.rwnd_limited_ns),
        sndbuf_limited_ns: sum(|info| info.sndbuf_limited_ns),
    })
}

/// `VmHWM` of this process; 0 if the kernel does not report it.
fn read_peak_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix("kB"));
    kilobytes
        .and_then(|number| number.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
