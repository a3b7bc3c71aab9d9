//! What one worker counts. Nothing here is shared: a worker owns its tally and sends parts of it away.

use std::collections::BTreeMap;

use howfar_record::Latency;

use crate::workload::{KINDS, Kind};

/// The measured window on the monotonic clock, and its slices.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_field_names)] // the unit belongs to the name
pub(crate) struct Window {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) interval_ns: u64,
}

impl Window {
    /// End of slice `index`; the last one ends with the window.
    pub(crate) fn slice_end(&self, index: u64) -> u64 {
        self.start_ns
            .saturating_add((index + 1).saturating_mul(self.interval_ns))
            .min(self.end_ns)
    }

    pub(crate) fn slice_start(&self, index: u64) -> u64 {
        self.start_ns
            .saturating_add(index.saturating_mul(self.interval_ns))
            .min(self.end_ns)
    }

    pub(crate) fn slices(&self) -> u64 {
        (self.end_ns - self.start_ns).div_ceil(self.interval_ns)
    }
}

/// What a transaction used, summed while it runs and counted when it ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Use {
    pub(crate) queries: u64,
    pub(crate) turns: u64,
    pub(crate) rows: u64,
    pub(crate) to_server: u64,
    pub(crate) to_client: u64,
    pub(crate) errors: u64,
}

impl Use {
    pub(crate) fn add(&mut self, other: &Self) {
        self.queries += other.queries;
        self.turns += other.turns;
        self.rows += other.rows;
        self.to_server += other.to_server;
        self.to_client += other.to_client;
        self.errors += other.errors;
    }
}

/// One worker's share of one interval.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    pub(crate) transactions: u64,
    pub(crate) used: Use,
    pub(crate) latency: Latency,
}

impl Slice {
    pub(crate) fn add(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.used.add(&other.used);
        self.latency.add(&other.latency);
    }
}

/// One worker's share of the whole window.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) transactions: u64,
    pub(crate) used: Use,
    pub(crate) errors: BTreeMap<u16, u64>,
    pub(crate) latency: Latency,
    pub(crate) kinds: [Latency; KINDS],
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.used.add(&other.used);
        for (code, count) in &other.errors {
            *self.errors.entry(*code).or_default() += count;
        }
        self.latency.add(&other.latency);
        for (mine, others) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.add(others);
        }
    }
}

/// A mark of the window that a worker has passed.
#[derive(Debug)]
pub(crate) enum Passed {
    Start { warmup_transactions: u64 },
    Slice { index: u64, slice: Box<Slice> },
    End(Box<Totals>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Warmup,
    Slice(u64),
    Over,
}

/// Counts by the time at which things ended; a comparison per event decides to which part they belong.
#[derive(Debug)]
pub(crate) struct Tally {
    window: Window,
    phase: Phase,
    next_mark_ns: u64,
    warmup_transactions: u64,
    slice: Box<Slice>,
    totals: Box<Totals>,
}

impl Tally {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            phase: Phase::Warmup,
            next_mark_ns: window.start_ns,
            warmup_transactions: 0,
            slice: Box::default(),
            totals: Box::default(),
        }
    }

    /// Tell `publish` of each mark up to `now`. Cheap when there is none.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, publish: &mut impl FnMut(Passed)) {
        while now >= self.next_mark_ns {
            self.pass(publish);
        }
    }

    #[cold]
    fn pass(&mut self, publish: &mut impl FnMut(Passed)) {
        let next = match self.phase {
            Phase::Warmup => {
                publish(Passed::Start {
                    warmup_transactions: self.warmup_transactions,
                });
                Phase::Slice(0)
            }
            Phase::Slice(index) => {
                // Double buffering: the full slice goes away, an empty one takes its place.
                publish(Passed::Slice {
                    index,
                    slice: std::mem::take(&mut self.slice),
                });
                if index + 1 == self.window.slices() {
                    publish(Passed::End(std::mem::take(&mut self.totals)));
                    Phase::Over
                } else {
                    Phase::Slice(index + 1)
                }
            }
            Phase::Over => Phase::Over,
        };
        self.phase = next;
        self.next_mark_ns = match next {
            Phase::Warmup => self.window.start_ns,
            Phase::Slice(index) => self.window.slice_end(index),
            Phase::Over => u64::MAX,
        };
    }

    /// A statement was answered.
    #[inline]
    pub(crate) fn statement(&mut self, kind: Kind, latency_ns: u64) {
        if matches!(self.phase, Phase::Slice(_)) {
            self.totals.kinds[kind as usize].record(latency_ns);
        }
    }

    /// A transaction ended well.
    #[inline]
    pub(crate) fn transaction(&mut self, latency_ns: u64, used: &Use) {
        match self.phase {
            Phase::Warmup => self.warmup_transactions += 1,
            Phase::Slice(_) => {
                self.totals.transactions += 1;
                self.totals.used.add(used);
                self.totals.latency.record(latency_ns);
                self.slice.transactions += 1;
                self.slice.used.add(used);
                self.slice.latency.record(latency_ns);
            }
            Phase::Over => {}
        }
    }

    /// The server asked to try again.
    #[cold]
    pub(crate) fn error(&mut self, code: u16) {
        if matches!(self.phase, Phase::Slice(_)) {
            *self.totals.errors.entry(code).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Window 100..=350 in slices of 100: the last is half as long.
    #[test]
    fn what_ends_inside_the_window_is_counted_once() {
        let mut tally = Tally::new(Window {
            start_ns: 100,
            end_ns: 350,
            interval_ns: 100,
        });
        let mut marks = Vec::new();
        let used = Use {
            queries: 16,
            ..Use::default()
        };
        for now in [50, 99, 100, 199, 200, 349, 350, 400] {
            tally.advance(now, &mut |mark| marks.push(mark));
            tally.transaction(10, &used);
        }
        let mut slices = Vec::new();
        let mut totals = None;
        for mark in marks {
            match mark {
                Passed::Start {
                    warmup_transactions,
                } => assert_eq!(warmup_transactions, 2),
                Passed::Slice { index, slice } => slices.push((index, slice.transactions)),
                Passed::End(end) => {
                    totals = Some((end.transactions, end.used.queries, end.latency.count()));
                }
            }
        }
        assert_eq!(slices, [(0, 2), (1, 1), (2, 1)]);
        assert_eq!(totals, Some((4, 64, 4)));
    }

    #[test]
    fn an_idle_worker_passes_all_marks_at_once() {
        let mut tally = Tally::new(Window {
            start_ns: 0,
            end_ns: 10,
            interval_ns: 3,
        });
        let mut marks = 0;
        tally.advance(u64::MAX - 1, &mut |_| marks += 1);
        assert_eq!(marks, 1 + 4 + 1);
    }
}
