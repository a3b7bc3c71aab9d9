//! Assigns pages and counts their outcomes: the window's tally, the schedule of arrivals and the limit of pages. Pure: the caller
//! passes the time.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use howfar_contract::events::ServiceUse;
use howfar_contract::jobs::{Arrivals, PageJob};
use howfar_contract::{Failed, Latency};

use super::page_record::{self, PageRecord};
use crate::schedule::Schedule;
use crate::tally::{Edge, PassedEdge, Tally, TransactionTimes, Window};

/// An event that a worker or the dispatcher sends to the coordinator.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// A worker has opened its persistent connections.
    Opened(Vec<Arc<OwnedFd>>),
    Passed(PassedEdge),
    /// No further page may begin, and none is in progress.
    Drained,
    Failed(Failed),
    /// A worker has ended.
    Ended,
}

/// Suffix of the names of reported numbers that are nanoseconds; these numbers are also recorded as latencies.
const LATENCY_SUFFIX: &str = "_ns";
/// Maximum number of names that pages may report; further ones, as of a page that puts numbers into names, are only counted.
const MAX_NAMES: usize = 256;
const OMITTED_NAMES: &str = "names_left_out";

/// A page in progress.
#[derive(Debug, Clone, Copy)]
struct PageInProgress {
    intended_ns: u64,
    began_ns: u64,
}

/// Sums over the window in addition to those of the tally.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    /// Names of the tally's kinds.
    pub(crate) kinds: Vec<String>,
    pub(crate) services: Vec<ServiceUse>,
    pub(crate) reported: BTreeMap<String, u64>,
}

/// The load, once it has begun.
#[derive(Debug)]
struct Load {
    origin_ns: u64,
    tally: Tally,
    schedule: Option<Schedule>,
}

/// One worker's state.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerSlot {
    in_progress: Option<PageInProgress>,
    /// Number of pages that ended in the window, and the sum of their times.
    completed_pages: u64,
    busy_ns: u64,
}

/// The state that workers share, except for their waits.
#[derive(Debug)]
pub(super) struct State {
    arrivals: Option<Arrivals>,
    seed: u64,
    load: Option<Load>,
    slots: Vec<WorkerSlot>,
    sums: Sums,
    /// Maximum number of pages that may begin in the window; 0 for no limit.
    max_pages: u64,
    begun_pages: u64,
    /// Whether `max_pages` have begun: then no further page may begin.
    is_limit_reached: bool,
    to_coordinator: Sender<WorkerEvent>,
}

/// The answer to a worker that asks for a page.
pub(super) enum Assignment {
    Page,
    /// No page is due before this time; `u64::MAX` if there are no more pages.
    NoneBefore(u64),
}

impl State {
    pub(super) fn new(
        job: &PageJob,
        kinds: &[&'static str],
        to_coordinator: Sender<WorkerEvent>,
    ) -> Self {
        Self {
            arrivals: job.arrivals,
            seed: job.seed,
            load: None,
            slots: vec![WorkerSlot::default(); job.workers as usize],
            sums: Sums {
                kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
                ..Sums::default()
            },
            max_pages: job.pages,
            begun_pages: 0,
            is_limit_reached: false,
            to_coordinator,
        }
    }

    /// The load begins at `origin_ns`.
    pub(super) fn begin(&mut self, origin_ns: u64, window: Window) {
        let schedule = self
            .arrivals
            .map(|arrivals| Schedule::new(&arrivals, (0, 1), self.seed, origin_ns, 0));
        self.load = Some(Load {
            origin_ns,
            tally: Tally::new(window, self.sums.kinds.len(), schedule.is_some()),
            schedule,
        });
    }

    /// When the load begins or began, once that is known.
    pub(super) fn origin_ns(&self) -> Option<u64> {
        self.load.as_ref().map(|load| load.origin_ns)
    }

    /// End the window earlier than planned.
    pub(super) fn end_at(&mut self, at_ns: u64) {
        if let Some(load) = &mut self.load {
            load.tally.end_at(at_ns);
        }
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Assign a page to `worker`, free since `free_since_ns`, if one is due at `now`; it begins at once.
    pub(super) fn assign(&mut self, worker: usize, now: u64, free_since_ns: u64) -> Assignment {
        let no_more_pages = Assignment::NoneBefore(u64::MAX);
        let Some(load) = &mut self.load else {
            return no_more_pages;
        };
        if self.is_limit_reached {
            self.report_if_drained();
            return no_more_pages;
        }
        let intended_ns = match &mut load.schedule {
            None => now,
            Some(schedule) => {
                let Some(due_ns) = schedule.take(now) else {
                    return Assignment::NoneBefore(schedule.next_ns());
                };
                load.tally
                    .record_lateness(due_ns, due_ns.max(free_since_ns), now);
                due_ns
            }
        };
        if self.max_pages > 0 && load.tally.is_counting() {
            self.begun_pages += 1;
            self.is_limit_reached = self.begun_pages == self.max_pages;
            if let Some(schedule) = load.schedule.as_mut().filter(|_| self.is_limit_reached) {
                schedule.close();
            }
        }
        self.slots[worker].in_progress = Some(PageInProgress {
            intended_ns,
            began_ns: now,
        });
        Assignment::Page
    }

    /// Report that no further page may begin, if none is in progress.
    fn report_if_drained(&self) {
        if self.slots.iter().all(|slot| slot.in_progress.is_none()) {
            // The error is ignored: a coordinator that has ended has already reported why.
            let _ = self.to_coordinator.send(WorkerEvent::Drained);
        }
    }

    /// Count the page of `worker`, which ended successfully at `now`.
    pub(super) fn end_page(&mut self, worker: usize, record: &PageRecord, now: u64) {
        self.pass_due_edges(now);
        let Some(PageInProgress {
            intended_ns,
            began_ns,
        }) = self.slots[worker].in_progress.take()
        else {
            return;
        };
        let Some(load) = &mut self.load else { return };
        let times = TransactionTimes {
            intended_ns,
            began_ns,
            now: now.max(began_ns),
        };
        if load.tally.is_counted(&times) {
            let slot = &mut self.slots[worker];
            slot.completed_pages += 1;
            slot.busy_ns += times.now - began_ns;
            self.sums.add_page(record, &mut load.tally);
            for _ in 0..record.reopened {
                load.tally.totals.lost += 1;
                load.tally.count_reconnect();
            }
        }
        load.tally.count_transaction(&times, &record.counters);
    }

    /// Pass the edges of the window up to `now`, the clock's reading.
    pub(super) fn pass_due_edges(&mut self, now: u64) {
        while self
            .load
            .as_ref()
            .is_some_and(|load| now >= load.tally.next_edge_ns())
        {
            self.pass_edge();
        }
    }

    #[cold]
    fn pass_edge(&mut self) {
        let Some(load) = &mut self.load else { return };
        let edge_ns = load.tally.next_edge_ns();
        if let Some(schedule) = &mut load.schedule {
            load.tally.count_due_requests(schedule);
        }
        match load.tally.next_edge() {
            Edge::Start => {
                for slot in &mut self.slots {
                    (slot.completed_pages, slot.busy_ns) = (0, 0);
                }
            }
            Edge::SliceEnd { is_last: true } => close_window(load, &self.slots, edge_ns),
            Edge::SliceEnd { is_last: false } | Edge::None => {}
        }
        let to_coordinator = &self.to_coordinator;
        load.tally.pass_edge(&mut |passed| {
            // The error is ignored: a coordinator that has ended has already reported why.
            let _ = to_coordinator.send(WorkerEvent::Passed(passed));
        });
    }
}

impl Sums {
    /// Add a page that ended in the window.
    fn add_page(&mut self, record: &PageRecord, tally: &mut Tally) {
        for &(kind, ns) in &record.latencies {
            tally.record_statement(kind, ns);
        }
        for usage in &record.services {
            match self
                .services
                .iter_mut()
                .find(|sum| sum.service == usage.service)
            {
                Some(sum) => page_record::add_usage(sum, usage),
                None => self.services.push(*usage),
            }
        }
        for (name, &number) in &record.reported {
            let is_known = self.reported.contains_key(name);
            if !is_known && self.reported.len() >= MAX_NAMES {
                *self.reported.entry(OMITTED_NAMES.to_owned()).or_default() += 1;
                continue;
            }
            let sum = self.reported.entry(name.clone()).or_default();
            *sum = sum.saturating_add(number);
            if name.ends_with(LATENCY_SUFFIX) {
                let kind = format!("told.{name}");
                let index = self.kinds.iter().position(|known_kind| *known_kind == kind);
                let index = index.unwrap_or_else(|| {
                    self.kinds.push(kind);
                    tally.totals.kinds.push(Latency::new());
                    self.kinds.len() - 1
                });
                tally.record_statement(index, number);
            }
        }
    }
}

/// Record each worker's share and unfinished page at the end of the window.
fn close_window(load: &mut Load, slots: &[WorkerSlot], end_ns: u64) {
    for slot in slots {
        load.tally
            .totals
            .shares
            .add_connection(slot.completed_pages, slot.busy_ns);
        let Some(PageInProgress {
            intended_ns,
            began_ns,
        }) = slot.in_progress
        else {
            continue;
        };
        let age_ns = end_ns.saturating_sub(began_ns);
        load.tally.totals.in_flight.record(age_ns);
        if load.schedule.is_some() {
            load.tally.count_unanswered(intended_ns);
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
