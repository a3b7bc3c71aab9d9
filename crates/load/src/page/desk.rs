//! Where workers come for their next page and tell of the last: one tally for all of them, behind one lock.
//!
//! A page is milliseconds, its entry here a few microseconds outside of every page; so the lock is nearly always free, and one
//! tally keeps what a tally for each of a thousand threads could not: memory small, and marks of the window that are passed in
//! time though a worker may wait for its server.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use howfar_record::Latency;
use howfar_record::events::ServiceUse;
use howfar_record::jobs::{Arrivals, PageJob};

use super::crew::Report;
use super::note::{self, Note};
use crate::clock::now_ns;
use crate::schedule::Schedule;
use crate::tally::{Ended, Mark, Tally, Window};

/// What a page told in nanoseconds is a latency too.
const LATENCY: &str = "_ns";

/// A page to run.
#[derive(Debug, Clone, Copy)]
struct InHand {
    intended_ns: u64,
    began_ns: u64,
}

/// Sums over the window beside those of the tally.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    /// Names of the tally's kinds.
    pub(crate) kinds: Vec<String>,
    pub(crate) services: Vec<ServiceUse>,
    pub(crate) told: BTreeMap<String, u64>,
}

/// The load, once it has begun.
#[derive(Debug)]
struct Load {
    origin_ns: u64,
    tally: Tally,
    schedule: Option<Schedule>,
    /// Pages due before the window's start.
    due_at_start: u64,
}

/// One worker's part.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    in_hand: Option<InHand>,
    /// Pages and their time in the window.
    done: u64,
    busy_ns: u64,
}

#[derive(Debug)]
struct Ledger {
    load: Option<Load>,
    places: Vec<Place>,
    sums: Sums,
    /// Pages that may begin in the window; 0: no limit.
    most: u64,
    begun: u64,
    /// No page begins any more, because so many have.
    spent: bool,
    over: bool,
    /// Workers without work, beside the one that watches for the next arrival.
    idle: usize,
    watched: bool,
    reports: Sender<Report>,
}

/// Shared by all workers and the conductor.
#[derive(Debug)]
pub(crate) struct Desk {
    arrivals: Option<Arrivals>,
    seed: u64,
    ledger: Mutex<Ledger>,
    changed: Condvar,
}

impl Desk {
    pub(crate) fn new(job: &PageJob, kinds: &[&'static str], reports: Sender<Report>) -> Self {
        Self {
            arrivals: job.arrivals,
            seed: job.seed,
            ledger: Mutex::new(Ledger {
                load: None,
                places: vec![Place::default(); job.workers as usize],
                sums: Sums {
                    kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
                    ..Sums::default()
                },
                most: job.pages,
                begun: 0,
                spent: false,
                over: false,
                idle: 0,
                watched: false,
                reports,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whoever panicked with it in hand has told so, and that ends the job.
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The load begins at `origin_ns`.
    pub(crate) fn begin(&self, origin_ns: u64, window: Window) {
        let schedule = self
            .arrivals
            .map(|arrivals| Schedule::new(&arrivals, (0, 1), self.seed, origin_ns, 0));
        let mut ledger = self.lock();
        let kinds = ledger.sums.kinds.len();
        ledger.load = Some(Load {
            origin_ns,
            tally: Tally::new(window, kinds, schedule.is_some()),
            schedule,
            due_at_start: 0,
        });
        drop(ledger);
        self.changed.notify_all();
    }

    /// The window ends earlier than planned.
    pub(crate) fn end_at(&self, at_ns: u64) {
        let mut ledger = self.lock();
        if let Some(load) = &mut ledger.load {
            load.tally.end_at(at_ns);
        }
        ledger.tick(now_ns());
    }

    /// The clock shows `now`: pass the marks of the window.
    pub(crate) fn look(&self, now: u64) {
        self.lock().tick(now);
    }

    /// No more pages.
    pub(crate) fn close(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    pub(crate) fn sums(&self) -> Sums {
        self.lock().sums.clone()
    }

    /// Wait for the load, and give the moment at which it begins. `None`: there will be none.
    pub(crate) fn begun(&self) -> Option<u64> {
        let ledger = self.lock();
        let waits = |ledger: &mut Ledger| ledger.load.is_none() && !ledger.over;
        let ledger = self
            .changed
            .wait_while(ledger, waits)
            .unwrap_or_else(PoisonError::into_inner);
        ledger.load.as_ref().map(|load| load.origin_ns)
    }

    /// Worker `place` has ended the page of `note`, if any, at `now`. True when it has another: it begins at once.
    pub(crate) fn next(&self, place: usize, note: Option<&Note>, now: u64) -> bool {
        let mut ledger = self.lock();
        if let Some(note) = note {
            ledger.ended(place, note, now);
        }
        let free_ns = now;
        let mut now = now;
        while !ledger.over {
            ledger.tick(now);
            match ledger.hand_out(place, now, free_ns) {
                Handed::Page => {
                    // Somebody else has to watch for the next arrival.
                    let wake = ledger.idle > 0 && !ledger.watched;
                    drop(ledger);
                    if wake {
                        self.changed.notify_one();
                    }
                    return true;
                }
                Handed::NoneBefore(due_ns) if due_ns < u64::MAX && !ledger.watched => {
                    ledger.watched = true;
                    let patience = Duration::from_nanos(due_ns.saturating_sub(now));
                    let waited = self.changed.wait_timeout(ledger, patience);
                    ledger = waited.unwrap_or_else(PoisonError::into_inner).0;
                    ledger.watched = false;
                }
                Handed::NoneBefore(_) => {
                    ledger.idle += 1;
                    let waited = self.changed.wait(ledger);
                    ledger = waited.unwrap_or_else(PoisonError::into_inner);
                    ledger.idle -= 1;
                }
            }
            now = now_ns();
        }
        false
    }
}

enum Handed {
    Page,
    /// Nothing is due before that moment; at the end of the numbers: nothing more at all.
    NoneBefore(u64),
}

impl Ledger {
    fn hand_out(&mut self, place: usize, now: u64, free_ns: u64) -> Handed {
        let never = Handed::NoneBefore(u64::MAX);
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
                    return Handed::NoneBefore(schedule.next_ns());
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
        self.places[place].in_hand = Some(InHand {
            intended_ns,
            began_ns: now,
        });
        Handed::Page
    }

    /// No page may begin any more: say so when none is under way.
    fn drained(&self) {
        if self.places.iter().all(|place| place.in_hand.is_none()) {
            // A conductor that is gone has told why.
            let _ = self.reports.send(Report::Drained);
        }
    }

    fn ended(&mut self, place: usize, note: &Note, now: u64) {
        self.tick(now);
        let Some(InHand {
            intended_ns,
            began_ns,
        }) = self.places[place].in_hand.take()
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
            let place = &mut self.places[place];
            place.done += 1;
            place.busy_ns += ended.now - began_ns;
            self.sums.count(note, &mut load.tally);
        }
        load.tally.transaction(&ended, &note.used);
    }

    fn tick(&mut self, now: u64) {
        while self
            .load
            .as_ref()
            .is_some_and(|load| now >= load.tally.next_mark_ns())
        {
            self.mark();
        }
    }

    #[cold]
    fn mark(&mut self) {
        let Some(load) = &mut self.load else { return };
        let at = load.tally.next_mark_ns();
        match load.tally.next_mark() {
            Mark::Start => {
                for place in &mut self.places {
                    (place.done, place.busy_ns) = (0, 0);
                }
                if let Some(schedule) = &mut load.schedule {
                    load.due_at_start = schedule.due_before(at);
                }
            }
            Mark::SliceEnd { last } => {
                if let Some(schedule) = &mut load.schedule {
                    let backlog = schedule.backlog(at);
                    load.tally.slice.backlog = backlog;
                    let most = &mut load.tally.totals.backlog_max;
                    *most = backlog.max(*most);
                }
                if last {
                    settle(load, &self.places, at);
                }
            }
            Mark::None => return,
        }
        let reports = &self.reports;
        load.tally.pass(&mut |passed| {
            // A conductor that is gone has told why; then there is nobody to report to.
            let _ = reports.send(Report::Passed(passed));
        });
    }
}

impl Sums {
    /// A page that counts.
    fn count(&mut self, note: &Note, tally: &mut Tally) {
        for &(kind, ns) in &note.latencies {
            tally.statement(kind, ns);
        }
        for used in &note.services {
            match self
                .services
                .iter_mut()
                .find(|sum| sum.service == used.service)
            {
                Some(sum) => note::add(sum, used),
                None => self.services.push(*used),
            }
        }
        for (name, &number) in &note.told {
            let sum = self.told.entry(name.clone()).or_default();
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

/// The window is over: what is owed is written down.
fn settle(load: &mut Load, places: &[Place], end_ns: u64) {
    for place in places {
        load.tally.totals.shares.take(place.done, place.busy_ns);
        let Some(InHand {
            intended_ns,
            began_ns,
        }) = place.in_hand
        else {
            continue;
        };
        let age_ns = end_ns.saturating_sub(began_ns);
        load.tally.totals.in_flight.record(age_ns);
        if load.schedule.is_some() {
            load.tally.unanswered(intended_ns);
        }
    }
    let Some(schedule) = &mut load.schedule else {
        return;
    };
    load.tally.totals.due = schedule
        .due_before(end_ns)
        .saturating_sub(load.due_at_start);
    // What nobody has begun: a copy goes through it, the schedule itself goes on.
    let mut rest = schedule.clone();
    while let Some(due_ns) = rest.take(end_ns - 1) {
        load.tally.unanswered(due_ns);
    }
}
