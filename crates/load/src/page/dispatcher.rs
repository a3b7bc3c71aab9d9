//! Where workers come for their next page and tell of the last: one [`State`] for all of them, behind one lock.
//!
//! A page is milliseconds, its entry here a few microseconds outside of every page; so the lock is nearly always free, and one
//! tally keeps what a tally for each of a thousand threads could not: memory small, and edges of the window that are passed in
//! time though a worker may wait for its server.

use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use howfar_contract::jobs::PageJob;

use super::page_record::PageRecord;
use super::state::{Assignment, State, Sums};
use super::workers::Report;
use crate::clock::now_ns;
use crate::tally::Window;

#[derive(Debug)]
struct Shared {
    state: State,
    /// No more pages.
    over: bool,
    /// Workers without work, beside the one that watches for the next arrival.
    idle: usize,
    watched: bool,
}

/// Shared by all workers and the coordinator.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Dispatcher {
    pub(crate) fn new(job: &PageJob, kinds: &[&'static str], reports: Sender<Report>) -> Self {
        Self {
            shared: Mutex::new(Shared {
                state: State::new(job, kinds, reports),
                over: false,
                idle: 0,
                watched: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whoever panicked with it in hand has reported so, and that ends the job.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The load begins at `origin_ns`.
    pub(crate) fn begin(&self, origin_ns: u64, window: Window) {
        self.lock().state.begin(origin_ns, window);
        self.changed.notify_all();
    }

    /// The window ends earlier than planned.
    pub(crate) fn end_at(&self, at_ns: u64) {
        let state = &mut self.lock().state;
        state.end_at(at_ns);
        state.tick(now_ns());
    }

    /// The clock shows `now`: pass the edges of the window.
    pub(crate) fn look(&self, now: u64) {
        self.lock().state.tick(now);
    }

    /// No more pages.
    pub(crate) fn close(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    pub(crate) fn sums(&self) -> Sums {
        self.lock().state.sums().clone()
    }

    /// Wait for the load, and give the moment at which it begins. `None`: there will be none.
    pub(crate) fn begun(&self) -> Option<u64> {
        let shared = self.lock();
        let waits = |shared: &mut Shared| shared.state.origin_ns().is_none() && !shared.over;
        let shared = self
            .changed
            .wait_while(shared, waits)
            .unwrap_or_else(PoisonError::into_inner);
        shared.state.origin_ns()
    }

    /// `worker` is free since `free_ns`, after a page and its end, if there was one. True when it has another: it begins at
    /// once.
    pub(crate) fn next(
        &self,
        worker: usize,
        page: Option<(&PageRecord, u64)>,
        free_ns: u64,
    ) -> bool {
        let mut shared = self.lock();
        if let Some((record, ended_ns)) = page {
            shared.state.ended(worker, record, ended_ns);
        }
        while !shared.over {
            // Counting the last page is no part of the next one.
            let now = now_ns();
            shared.state.tick(now);
            match shared.state.assign(worker, now, free_ns) {
                Assignment::Page => {
                    // Somebody else has to watch for the next arrival.
                    let wake = shared.idle > 0 && !shared.watched;
                    drop(shared);
                    if wake {
                        self.changed.notify_one();
                    }
                    return true;
                }
                Assignment::NoneBefore(due_ns) if due_ns < u64::MAX && !shared.watched => {
                    shared.watched = true;
                    let patience = Duration::from_nanos(due_ns.saturating_sub(now));
                    let waited = self.changed.wait_timeout(shared, patience);
                    shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                    shared.watched = false;
                }
                Assignment::NoneBefore(_) => {
                    shared.idle += 1;
                    let waited = self.changed.wait(shared);
                    shared = waited.unwrap_or_else(PoisonError::into_inner);
                    shared.idle -= 1;
                }
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
