//! One worker's counts. Nothing here is shared: a worker owns its tally and sends parts of it to the coordinator.

use howfar_contract::{Failed, Latency};
use howfar_wire::ErrorCode;

use crate::counts::{Counters, Slice, Stage, Totals};
use crate::schedule::Schedule;

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

    pub(crate) fn slice_count(&self) -> u64 {
        (self.end_ns - self.start_ns)
            .div_ceil(self.interval_ns)
            .max(1)
    }
}

/// An edge of the window that a worker has passed, with the counts up to it.
#[derive(Debug)]
pub(crate) enum PassedEdge {
    Start { warmup_transactions: u64 },
    Slice { index: u64, slice: Box<Slice> },
    End(Box<Totals>),
}

/// The kind of the next edge of the window; `None` after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    Start,
    /// The last slice ends with the window.
    SliceEnd {
        is_last: bool,
    },
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Warmup,
    Slice(u64),
    Over,
}

/// Times of a successful transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransactionTimes {
    /// Closed loop: when its first byte was sent; open loop: when it was due.
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    pub(crate) now: u64,
}

/// A worker's counts of transactions. In a closed loop a transaction counts at the time at which it ended, in an open loop at the
/// time at which it was due.
#[derive(Debug)]
pub(crate) struct Tally {
    window: Window,
    is_open_loop: bool,
    phase: Phase,
    next_edge_ns: u64,
    warmup_transactions: u64,
    /// Statements answered, inside the window and outside.
    pub(crate) answered: u64,
    /// Open loop: requests due before the window's start.
    due_at_start: u64,
    pub(crate) slice: Box<Slice>,
    pub(crate) totals: Box<Totals>,
}

impl Tally {
    pub(crate) fn new(window: Window, kind_count: usize, is_open_loop: bool) -> Self {
        let mut totals = Box::<Totals>::default();
        totals.kinds.resize_with(kind_count, Latency::new);
        Self {
            window,
            is_open_loop,
            phase: Phase::Warmup,
            next_edge_ns: window.start_ns,
            warmup_transactions: 0,
            answered: 0,
            due_at_start: 0,
            slice: Box::default(),
            totals,
        }
    }

    /// Time of the next edge; `u64::MAX` after the window.
    #[inline]
    pub(crate) fn next_edge_ns(&self) -> u64 {
        self.next_edge_ns
    }

    pub(crate) fn next_edge(&self) -> Edge {
        match self.phase {
            Phase::Warmup => Edge::Start,
            Phase::Slice(index) => Edge::SliceEnd {
                is_last: index + 1 >= self.window.slice_count(),
            },
            Phase::Over => Edge::None,
        }
    }

    /// End the window earlier than planned.
    pub(crate) fn end_at(&mut self, end_ns: u64) {
        self.window.end_ns = end_ns.clamp(self.window.start_ns, self.window.end_ns);
        if let Phase::Slice(index) = self.phase {
            self.next_edge_ns = self.window.slice_end(index);
        }
    }

    /// Whether the window is in progress.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        matches!(self.phase, Phase::Slice(_))
    }

    /// Open loop: read the schedule's counts at the next edge, before it is passed. At the window's end, requests that were due but
    /// not begun count as unanswered.
    pub(crate) fn count_due_requests(&mut self, schedule: &mut Schedule) {
        let edge_ns = self.next_edge_ns;
        match self.next_edge() {
            Edge::Start => self.due_at_start = schedule.due_before(edge_ns),
            Edge::SliceEnd { is_last } => {
                self.slice.backlog = schedule.backlog(edge_ns);
                self.totals.backlog_max = self.totals.backlog_max.max(self.slice.backlog);
                if is_last {
                    let due_at_end = schedule.due_before(edge_ns);
                    self.totals.due = due_at_end.saturating_sub(self.due_at_start);
                    // Consume a copy, so that the schedule itself can continue.
                    let mut copy = schedule.clone();
                    while let Some(due_ns) = copy.take(edge_ns - 1) {
                        self.count_unanswered(due_ns);
                    }
                }
            }
            Edge::None => {}
        }
    }

    /// Pass the next edge and publish the counts up to it.
    #[cold]
    pub(crate) fn pass_edge(&mut self, publish: &mut impl FnMut(PassedEdge)) {
        let next = match self.phase {
            Phase::Warmup => {
                publish(PassedEdge::Start {
                    warmup_transactions: self.warmup_transactions,
                });
                Phase::Slice(0)
            }
            Phase::Slice(index) => {
                // Send the full slice, and continue with an empty one.
                publish(PassedEdge::Slice {
                    index,
                    slice: std::mem::take(&mut self.slice),
                });
                if index + 1 >= self.window.slice_count() {
                    publish(PassedEdge::End(std::mem::take(&mut self.totals)));
                    Phase::Over
                } else {
                    Phase::Slice(index + 1)
                }
            }
            Phase::Over => Phase::Over,
        };
        self.phase = next;
        self.next_edge_ns = match next {
            Phase::Warmup => self.window.start_ns,
            Phase::Slice(index) => self.window.slice_end(index),
            Phase::Over => u64::MAX,
        };
    }

    /// Record the latency of an answered statement.
    #[inline]
    pub(crate) fn record_statement(&mut self, kind: usize, latency_ns: u64) {
        if self.is_counting() {
            self.totals.kinds[kind].record(latency_ns);
        }
    }

    pub(crate) fn record_stage(&mut self, stage: Stage, ns: u64) {
        if self.is_counting() {
            self.totals.stages[stage as usize].record(ns);
        }
    }

    /// Whether a transaction with these times counts.
    #[inline]
    pub(crate) fn is_counted(&self, times: &TransactionTimes) -> bool {
        self.is_counting() && (!self.is_open_loop || times.intended_ns >= self.window.start_ns)
    }

    /// Count a successful transaction.
    #[inline]
    pub(crate) fn count_transaction(&mut self, times: &TransactionTimes, counters: &Counters) {
        if !self.is_counted(times) {
            if self.phase == Phase::Warmup {
                self.warmup_transactions += 1;
            }
            return;
        }
        let latency_ns = times.now - times.intended_ns;
        if self.is_open_loop {
            self.totals.service.record(times.now - times.began_ns);
        }
        self.slice.transactions += 1;
        self.slice.counters.add(counters);
        self.slice.latency.record(latency_ns);
    }

    /// Open loop: record the lateness of a request that begins at `now`, but could have begun at `earliest_ns`.
    #[inline]
    pub(crate) fn record_lateness(&mut self, due_ns: u64, earliest_ns: u64, now: u64) {
        if due_ns >= self.window.start_ns && due_ns < self.window.end_ns {
            self.totals.lateness.record(now.saturating_sub(earliest_ns));
        }
    }

    /// Open loop, at the window's end: count a request that was due and has no answer.
    pub(crate) fn count_unanswered(&mut self, due_ns: u64) {
        if due_ns < self.window.start_ns || due_ns >= self.window.end_ns {
            return;
        }
        let age_ns = self.window.end_ns - due_ns;
        self.totals.unanswered_count += 1;
        self.totals.unanswered.record(age_ns);
        self.totals.latency.record(age_ns);
    }

    /// Count an error that the server answered.
    #[cold]
    pub(crate) fn count_error(&mut self, code: ErrorCode) {
        if self.is_counting() {
            *self.totals.errors.entry(code).or_default() += 1;
        }
    }

    #[cold]
    pub(crate) fn count_loss(&mut self, now: u64, failed: Failed) {
        if self.is_counting() {
            self.totals.lost += 1;
        }
        self.note_failed_reopen(now, failed);
    }

    /// Note a failed attempt to open a lost connection again.
    #[cold]
    pub(crate) fn note_failed_reopen(&mut self, now: u64, failed: Failed) {
        self.totals.last_loss = Some((now, failed));
    }

    /// Count a lost connection that is open again.
    #[cold]
    pub(crate) fn count_reconnect(&mut self) {
        if self.is_counting() {
            self.totals.reconnects += 1;
            self.slice.reconnects += 1;
        }
    }

    /// Record the time of opening a connection under load.
    pub(crate) fn record_connect(&mut self, ns: u64) {
        if self.is_counting() {
            self.totals.connect.record(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advance(tally: &mut Tally, now: u64, edges: &mut Vec<PassedEdge>) {
        while now >= tally.next_edge_ns() {
            tally.pass_edge(&mut |edge| edges.push(edge));
        }
    }

    fn tally(is_open_loop: bool) -> Tally {
        let window = Window {
            start_ns: 100,
            end_ns: 350,
            interval_ns: 100,
        };
        Tally::new(window, 1, is_open_loop)
    }

    /// The window is 100..350 in slices of 100, of which the last is half as long.
    #[test]
    fn a_transaction_that_ends_in_the_window_is_counted_once() {
        let mut tally = tally(false);
        let mut edges = Vec::new();
        let counters = Counters {
            queries: 16,
            ..Counters::default()
        };
        for now in [50, 99, 100, 199, 200, 349, 350, 400] {
            advance(&mut tally, now, &mut edges);
            let times = TransactionTimes {
                intended_ns: now - 10,
                began_ns: now - 10,
                now,
            };
            tally.count_transaction(&times, &counters);
        }
        let mut slices = Vec::new();
        let mut totals = Totals::default();
        for edge in edges {
            match edge {
                PassedEdge::Start {
                    warmup_transactions,
                } => assert_eq!(warmup_transactions, 2),
                PassedEdge::Slice { index, slice } => {
                    slices.push((index, slice.transactions));
                    totals.add_slice(&slice);
                }
                PassedEdge::End(end) => totals.add(&end),
            }
        }
        assert_eq!(slices, [(0, 2), (1, 1), (2, 1)]);
        let counted = (totals.counters.queries, totals.latency.count());
        assert_eq!((totals.transactions, counted), (4, (64, 4)));
    }

    /// Requests due at 90 and 110, answered at 120 and 400: one was due before the window, one has no answer in it.
    #[test]
    fn an_open_loop_counts_requests_due_in_the_window() {
        let mut tally = tally(true);
        let mut edges = Vec::new();
        advance(&mut tally, 120, &mut edges);
        let times = TransactionTimes {
            intended_ns: 90,
            began_ns: 95,
            now: 120,
        };
        tally.count_transaction(&times, &Counters::default());
        tally.count_unanswered(110);
        tally.count_unanswered(350);
        advance(&mut tally, 400, &mut edges);
        let Some(PassedEdge::End(totals)) = edges.pop() else {
            panic!("the window is over")
        };
        let answered = edges.iter().map(|edge| match edge {
            PassedEdge::Slice { slice, .. } => slice.transactions,
            _ => 0,
        });
        assert_eq!((answered.sum::<u64>(), totals.unanswered_count), (0, 1));
        assert_eq!((totals.latency.count(), totals.latency.max()), (1, 240));
    }

    #[test]
    fn a_window_that_ends_early_has_its_last_slice_there() {
        let mut tally = tally(false);
        let mut edges = Vec::new();
        advance(&mut tally, 150, &mut edges);
        tally.end_at(160);
        assert_eq!(tally.next_edge(), Edge::SliceEnd { is_last: true });
        advance(&mut tally, 160, &mut edges);
        assert_eq!(edges.len(), 3);
        assert_eq!(tally.next_edge(), Edge::None);
    }

    /// At 250 a worker is in its second slice, and learns that the window was over at 190, in the first.
    #[test]
    fn a_worker_that_passes_the_end_late_has_its_last_edge() {
        let mut tally = tally(false);
        let mut edges = Vec::new();
        advance(&mut tally, 250, &mut edges);
        tally.end_at(190);
        assert_eq!(tally.next_edge(), Edge::SliceEnd { is_last: true });
        advance(&mut tally, 250, &mut edges);
        assert!(matches!(edges.last(), Some(PassedEdge::End(_))));
        assert_eq!(tally.next_edge(), Edge::None);
    }
}
