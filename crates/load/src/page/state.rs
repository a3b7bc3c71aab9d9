//! Which page is handed out next, and what became of each: the window's tally, the schedule of arrivals and the limit of pages. Pure:
//! the caller gives the time.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use howfar_contract::Latency;
use howfar_contract::events::ServiceUse;
use howfar_contract::jobs::{Arrivals, PageJob};

use super::page_record::{self, PageRecord};
use super::workers::Report;
use crate::schedule::Schedule;
use crate::tally::{Edge, Ended, Tally, Window};

/// What a page reported in nanoseconds is a latency too.
const LATENCY: &str = "_ns";
/// Names that pages may report; further ones, as of a page that puts a number into them, are only counted.
const MOST_NAMES: usize = 256;
const LEFT_OUT: &str = "names_left_out";

/// A page under way.
#[derive(Debug, Clone, Copy)]
struct InProgress {
    intended_ns: u64,
    began_ns: u64,
}

/// Sums over the window beside those of the tally.
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

/// One worker's part.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerSlot {
    in_progress: Option<InProgress>,
    /// Pages and their time in the window.
    done: u64,
    busy_ns: u64,
}

/// All that workers share, but for their waits.
#[derive(Debug)]
pub(super) struct State {
    arrivals: Option<Arrivals>,
    seed: u64,
    load: Option<Load>,
    slots: Vec<WorkerSlot>,
    sums: Sums,
    /// Pages that may begin in the window; 0: no limit.
    most: u64,
    begun: u64,
    /// No page begins any more, because so many have.
    spent: bool,
    reports: Sender<Report>,
}

/// What a worker gets.
pub(super) enum Assignment {
    Page,
    /// Nothing is due before that moment; at the end of the numbers: nothing more at all.
    NoneBefore(u64),
}

impl State {
    pub(super) fn new(job: &PageJob, kinds: &[&'static str], reports: Sender<Report>) -> Self {
        Self {
            arrivals: job.arrivals,
            seed: job.seed,
            load: None,
            slots: vec![WorkerSlot::default(); job.workers as usize],
            sums: Sums {
                kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
                ..Sums::default()
            },
            most: job.pages,
            begun: 0,
            spent: false,
            reports,
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

    /// The window ends earlier than planned.
    pub(super) fn end_at(&mut self, at_ns: u64) {
        if let Some(load) = &mut self.load {
            load.tally.end_at(at_ns);
        }
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// A page for `worker`, free since `free_ns`, if there is one at `now`: it begins then.
    pub(super) fn assign(&mut self, worker: usize, now: u64, free_ns: u64) -> Assignment {
        let never = Assignment::NoneBefore(u64::MAX);
        let Some(load) = &mut self.load else {
            return never;
        };
        if self.spent {
            self.drained();
            return never;
        }
        let intended_ns = match &mut load.schedule {
            None => now,
            Some(schedule) => {
                let Some(due_ns) = schedule.take(now) else {
                    return Assignment::NoneBefore(schedule.next_ns());
                };
                load.tally.begun(due_ns, due_ns.max(free_ns), now);
                due_ns
            }
        };
        if self.most > 0 && load.tally.is_counting() {
            self.begun += 1;
            self.spent = self.begun == self.most;
            if let Some(schedule) = load.schedule.as_mut().filter(|_| self.spent) {
                schedule.close();
            }
        }
        self.slots[worker].in_progress = Some(InProgress {
            intended_ns,
            began_ns: now,
        });
        Assignment::Page
    }

    /// No page may begin any more: say so when none is under way.
    fn drained(&self) {
        if self.slots.iter().all(|slot| slot.in_progress.is_none()) {
            // A coordinator that is gone has reported why.
            let _ = self.reports.send(Report::Drained);
        }
    }

    /// The page of `worker` ended well at `now`.
    pub(super) fn ended(&mut self, worker: usize, record: &PageRecord, now: u64) {
        self.tick(now);
        let Some(InProgress {
            intended_ns,
            began_ns,
        }) = self.slots[worker].in_progress.take()
        else {
            return;
        };
        let Some(load) = &mut self.load else { return };
        let ended = Ended {
            intended_ns,
            began_ns,
            now: now.max(began_ns),
        };
        if load.tally.counts(&ended) {
            let slot = &mut self.slots[worker];
            slot.done += 1;
            slot.busy_ns += ended.now - began_ns;
            self.sums.count(record, &mut load.tally);
            for _ in 0..record.reopened {
                load.tally.totals.lost += 1;
                load.tally.reconnected();
            }
        }
        load.tally.transaction(&ended, &record.used);
    }

    /// The clock shows `now`: pass the edges of the window up to it.
    pub(super) fn tick(&mut self, now: u64) {
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
        let at = load.tally.next_edge_ns();
        if let Some(schedule) = &mut load.schedule {
            load.tally.take_stock(schedule);
        }
        match load.tally.next_edge() {
            Edge::Start => {
                for slot in &mut self.slots {
                    (slot.done, slot.busy_ns) = (0, 0);
                }
            }
            Edge::SliceEnd { last: true } => settle(load, &self.slots, at),
            Edge::SliceEnd { last: false } | Edge::None => {}
        }
        let reports = &self.reports;
        load.tally.pass(&mut |passed| {
            // A coordinator that is gone has reported why; then there is nobody to report to.
            let _ = reports.send(Report::Passed(passed));
        });
    }
}

impl Sums {
    /// A page that counts.
    fn count(&mut self, record: &PageRecord, tally: &mut Tally) {
        for &(kind, ns) in &record.latencies {
            tally.statement(kind, ns);
        }
        for used in &record.services {
            match self
                .services
                .iter_mut()
                .find(|sum| sum.service == used.service)
            {
                Some(sum) => page_record::add(sum, used),
                None => self.services.push(*used),
            }
        }
        for (name, &number) in &record.reported {
            let is_known = self.reported.contains_key(name);
            if !is_known && self.reported.len() >= MOST_NAMES {
                *self.reported.entry(LEFT_OUT.to_owned()).or_default() += 1;
                continue;
            }
            let sum = self.reported.entry(name.clone()).or_default();
            *sum = sum.saturating_add(number);
            if name.ends_with(LATENCY) {
                let kind = format!("told.{name}");
                let known = self.kinds.iter().position(|one| *one == kind);
                let at = known.unwrap_or_else(|| {
                    self.kinds.push(kind);
                    tally.totals.kinds.push(Latency::new());
                    self.kinds.len() - 1
                });
                tally.statement(at, number);
            }
        }
    }
}

/// The window is over: what is under way is written down.
fn settle(load: &mut Load, slots: &[WorkerSlot], end_ns: u64) {
    for slot in slots {
        load.tally.totals.shares.take(slot.done, slot.busy_ns);
        let Some(InProgress {
            intended_ns,
            began_ns,
        }) = slot.in_progress
        else {
            continue;
        };
        let age_ns = end_ns.saturating_sub(began_ns);
        load.tally.totals.in_flight.record(age_ns);
        if load.schedule.is_some() {
            load.tally.unanswered(intended_ns);
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
