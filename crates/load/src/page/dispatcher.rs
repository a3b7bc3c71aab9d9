//! Hands out pages to workers and takes the records of finished ones: one [`State`] for all workers, behind one lock.
//!
//! A page takes milliseconds, a call here a few microseconds between pages, so the lock is nearly always free. A single tally, unlike
//! one for each of a thousand threads, keeps memory small, and passes the edges of the window in time even while workers wait for
//! their servers.

use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use howfar_contract::jobs::PageJob;

use super::page_record::PageRecord;
use super::state::{Assignment, State, Sums, WorkerEvent};
use crate::clock::now_ns;
use crate::tally::Window;

#[derive(Debug)]
struct Shared {
    state: State,
    /// No more pages may begin.
    closed: bool,
    /// Idle workers, without the one that waits for the next arrival.
    idle: usize,
    /// Whether a worker waits until the next arrival is due.
    awaits_arrival: bool,
}

/// Shared by all workers and the coordinator.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Dispatcher {
    pub(crate) fn new(
        job: &PageJob,
        kinds: &[&'static str],
        to_coordinator: Sender<WorkerEvent>,
    ) -> Self {
        Self {
            shared: Mutex::new(Shared {
                state: State::new(job, kinds, to_coordinator),
                closed: false,
                idle: 0,
                awaits_arrival: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Lock the state. A poisoned lock is taken: the worker that panicked with it reports its panic, which ends the job.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The load begins at `origin_ns`.
    pub(crate) fn begin(&self, origin_ns: u64, window: Window) {
        self.lock().state.begin(origin_ns, window);
        self.changed.notify_all();
    }

    /// End the window earlier than planned.
    pub(crate) fn end_at(&self, at_ns: u64) {
        let state = &mut self.lock().state;
        state.end_at(at_ns);
        state.pass_due_edges(now_ns());
    }

    /// Pass the edges of the window up to `now`, the clock's reading.
    pub(crate) fn pass_due_edges(&self, now: u64) {
        self.lock().state.pass_due_edges(now);
    }

    /// Hand out no more pages.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn sums(&self) -> Sums {
        self.lock().state.sums().clone()
    }

    /// Wait until the start of the load is known, and return it. `None` if there will be no load.
    pub(crate) fn wait_for_start(&self) -> Option<u64> {
        let shared = self.lock();
        let is_waiting = |shared: &mut Shared| shared.state.origin_ns().is_none() && !shared.closed;
        let shared = self
            .changed
            .wait_while(shared, is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        shared.state.origin_ns()
    }

    /// Wait for the next page of `worker`, which has been free since `free_since_ns`. `finished_page`: the record and the end of its
    /// last page, if any. True if it has another page, which begins at once.
    pub(crate) fn next(
        &self,
        worker: usize,
        finished_page: Option<(&PageRecord, u64)>,
        free_since_ns: u64,
    ) -> bool {
        let mut shared = self.lock();
        if let Some((record, ended_ns)) = finished_page {
            shared.state.end_page(worker, record, ended_ns);
        }
        while !shared.closed {
            // Read the clock again: counting the last page is not part of the next one.
            let now = now_ns();
            shared.state.pass_due_edges(now);
            match shared.state.assign(worker, now, free_since_ns) {
                Assignment::Page => {
                    // Wake another worker, so that one waits for the next arrival.
                    let must_wake = shared.idle > 0 && !shared.awaits_arrival;
                    drop(shared);
                    if must_wake {
                        self.changed.notify_one();
                    }
                    return true;
                }
                Assignment::NoneBefore(due_ns) if due_ns < u64::MAX && !shared.awaits_arrival => {
                    shared.awaits_arrival = true;
                    let timeout = Duration::from_nanos(due_ns.saturating_sub(now));
                    let waited = self.changed.wait_timeout(shared, timeout);
                    shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                    shared.awaits_arrival = false;
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
