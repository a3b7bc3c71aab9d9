//! Collects what the workers passed on into the events of the measured window.

use std::collections::BTreeMap;

use howfar_record::events::{Bytes, Classes, Fairness, Finished, Interval, Measuring};
use howfar_record::jobs::LoadJob;
use howfar_record::{Failed, emit};

use crate::clock::{now_ns, unix_ns};
use crate::login::internal;
use crate::tally::{Passed, Slice, Totals, Window};
use crate::usage::Usage;
use crate::workload::Kind;

/// Write an event. Nobody may be left to read it; then the job ends.
pub(crate) fn tell<T: serde::Serialize>(event: &T) -> Result<(), Failed> {
    emit(event).map_err(|error| internal(format!("stdout is closed: {error}")))
}

/// The window as far as it is known.
pub(crate) struct Collected<'a> {
    job: &'a LoadJob,
    window: Window,
    workers: usize,
    began: usize,
    warmup_transactions: u64,
    /// Slices that not all workers have passed, with how many have.
    slices: BTreeMap<u64, (usize, Slice)>,
    ended: usize,
    totals: Totals,
    before: Option<Usage>,
    after: Option<Usage>,
    next_slice: u64,
}

impl<'a> Collected<'a> {
    pub(crate) fn new(job: &'a LoadJob, window: Window, workers: usize) -> Self {
        Self {
            job,
            window,
            workers,
            began: 0,
            warmup_transactions: 0,
            slices: BTreeMap::new(),
            ended: 0,
            totals: Totals::default(),
            before: None,
            after: None,
            next_slice: 0,
        }
    }

    /// The next moment at which [`Collected::reach`] has something to do.
    pub(crate) fn next_mark(&self) -> u64 {
        if self.before.is_none() {
            self.window.start_ns
        } else if self.next_slice < self.window.slices() {
            self.window.slice_end(self.next_slice)
        } else {
            u64::MAX
        }
    }

    /// The clock shows `now`: read CPU times at both ends of the window.
    pub(crate) fn reach(&mut self, now: u64) -> Result<(), Failed> {
        if now >= self.window.start_ns && self.before.is_none() {
            self.before = Some(Usage::at_start(&self.job.observe)?);
        }
        while self.next_slice < self.window.slices()
            && now >= self.window.slice_end(self.next_slice)
        {
            self.next_slice += 1;
        }
        if now >= self.window.end_ns && self.after.is_none() {
            self.after = Some(Usage::at_end(&self.job.observe)?);
        }
        Ok(())
    }

    /// A worker passed a mark.
    pub(crate) fn take(&mut self, passed: Passed) -> Result<(), Failed> {
        match passed {
            Passed::Start {
                warmup_transactions,
            } => {
                self.began += 1;
                self.warmup_transactions += warmup_transactions;
                if self.began == self.workers {
                    let since_start = now_ns().saturating_sub(self.window.start_ns);
                    tell(&Measuring {
                        unix_time_ns: unix_ns().saturating_sub(since_start),
                        warmup_transactions: self.warmup_transactions,
                    })?;
                }
                Ok(())
            }
            Passed::Slice { index, slice } => self.slice(index, &slice),
            Passed::End(totals) => {
                self.ended += 1;
                self.totals.add(&totals);
                Ok(())
            }
        }
    }

    fn slice(&mut self, index: u64, slice: &Slice) -> Result<(), Failed> {
        let (workers, sum) = self.slices.entry(index).or_default();
        *workers += 1;
        sum.add(slice);
        if *workers < self.workers {
            return Ok(());
        }
        let Some((_, sum)) = self.slices.remove(&index) else {
            return Ok(());
        };
        let start = self.window.slice_start(index);
        tell(&Interval {
            start_ns: start - self.window.start_ns,
            length_ns: self.window.slice_end(index) - start,
            transactions: sum.transactions,
            queries: sum.used.queries,
            classes: Classes::default(),
            errors: sum.used.errors,
            reconnects: 0,
            backlog: 0,
            p50_ns: sum.latency.at(0.50),
            p95_ns: sum.latency.at(0.95),
            p99_ns: sum.latency.at(0.99),
            max_ns: sum.latency.max(),
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.ended == self.workers && self.after.is_some()
    }

    pub(crate) fn finish(self) -> Result<(), Failed> {
        let (Some(before), Some(after)) = (self.before, self.after) else {
            return Err(internal("the window ended without its CPU times"));
        };
        let totals = self.totals;
        let mut histograms = vec![totals.latency.event("transaction")];
        let kinds = Kind::ALL.into_iter().zip(&totals.kinds);
        histograms.extend(
            kinds
                .filter(|(_, latency)| latency.count() > 0)
                .map(|(kind, latency)| latency.event(kind.name())),
        );
        tell(&Finished {
            elapsed_ns: self.window.end_ns - self.window.start_ns,
            transactions: totals.transactions,
            queries: totals.used.queries,
            turns: totals.used.turns,
            rows: totals.used.rows,
            classes: Classes::default(),
            reconnects: 0,
            open_loop: None,
            fairness: Fairness::default(),
            tcp: None,
            peak_memory_bytes: 0,
            bytes: Bytes {
                to_server: totals.used.to_server,
                to_client: totals.used.to_client,
            },
            errors: totals
                .errors
                .iter()
                .map(|(code, count)| (code.to_string(), *count))
                .collect(),
            cpu: after.since(&before),
            histograms,
        })
    }
}
