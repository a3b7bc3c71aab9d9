//! The threads of a page job, and their events for the coordinator.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use howfar_contract::jobs::PageJob;
use howfar_contract::{Failed, internal};

use super::dispatcher::Dispatcher;
use super::state::WorkerEvent;
use super::{Page, PageRecord};
use crate::clock::{now_ns, sleep_until};
use crate::tcp_info::{self, TcpInfo};

/// Time limit for workers to end their present pages and close their connections.
const STOP_TIMEOUT_NS: u64 = 2_000_000_000;

/// All workers, with their persistent connections.
pub(crate) struct Workers {
    pub(crate) dispatcher: Arc<Dispatcher>,
    worker_events: Receiver<WorkerEvent>,
    count: usize,
    /// Persistent connections.
    sockets: Vec<Arc<OwnedFd>>,
}

impl Workers {
    /// Start a thread for each of `pages`. None is pinned: the kernel shares the CPUs among them, as among processes.
    pub(crate) fn start(
        job: &PageJob,
        kinds: &[&'static str],
        pages: Vec<Box<dyn Page>>,
    ) -> Result<Self, Failed> {
        let (to_coordinator, worker_events) = mpsc::channel();
        let dispatcher = Arc::new(Dispatcher::new(job, kinds, to_coordinator.clone()));
        let workers = pages.len();
        for (worker, page) in pages.into_iter().enumerate() {
            let (dispatcher, to_coordinator) = (Arc::clone(&dispatcher), to_coordinator.clone());
            crate::spawn_thread(format!("page-{worker}"), move || {
                run_worker(&dispatcher, worker, page, &to_coordinator);
            })?;
        }
        Ok(Self {
            dispatcher,
            worker_events,
            count: workers,
            sockets: Vec::new(),
        })
    }

    /// Wait until all workers have opened their persistent connections; each worker limits its own waits.
    pub(crate) fn wait_until_opened(&mut self) -> Result<(), Failed> {
        for _ in 0..self.count {
            match self.worker_events.recv() {
                Ok(WorkerEvent::Opened(sockets)) => self.sockets.extend(sockets),
                Ok(WorkerEvent::Failed(failed)) => return Err(failed),
                other => return Err(internal(format!("a worker sent {other:?} before the load"))),
            }
        }
        Ok(())
    }

    /// The next event, or `None` if none comes within `timeout_ns`. A reported failure is returned as an error.
    pub(crate) fn next_event(&mut self, timeout_ns: u64) -> Result<Option<WorkerEvent>, Failed> {
        match self
            .worker_events
            .recv_timeout(Duration::from_nanos(timeout_ns))
        {
            Ok(WorkerEvent::Failed(failed)) => Err(failed),
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(internal("all workers are gone")),
        }
    }

    /// The kernel's state of the persistent TCP connections.
    pub(crate) fn tcp_infos(&self) -> Vec<TcpInfo> {
        let sockets = self.sockets.iter();
        sockets.filter_map(tcp_info::read).collect()
    }

    /// Let the workers end; those that do not in time end with the process. Results are already reported, so failures are ignored.
    pub(crate) fn stop(&mut self) {
        self.dispatcher.close();
        let until_ns = now_ns() + STOP_TIMEOUT_NS;
        let mut ended = 0;
        while ended < self.count {
            let remaining_ns = until_ns.saturating_sub(now_ns());
            match self
                .worker_events
                .recv_timeout(Duration::from_nanos(remaining_ns))
            {
                Ok(WorkerEvent::Ended | WorkerEvent::Failed(_)) => ended += 1,
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

/// Run a worker; failures and panics become events.
fn run_worker(
    dispatcher: &Dispatcher,
    worker: usize,
    mut page: Box<dyn Page>,
    to_coordinator: &Sender<WorkerEvent>,
) {
    let run = || run_pages(dispatcher, worker, page.as_mut(), to_coordinator);
    if let Err(failed) = crate::catch_panics("a worker", run) {
        // The error is ignored: a coordinator that has ended has already reported why.
        let _ = to_coordinator.send(WorkerEvent::Failed(failed));
    }
}

fn run_pages(
    dispatcher: &Dispatcher,
    worker: usize,
    page: &mut dyn Page,
    to_coordinator: &Sender<WorkerEvent>,
) -> Result<(), Failed> {
    // By default timers may fire up to 50 µs late. If this call fails, arrivals are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    page.open()?;
    let _ = to_coordinator.send(WorkerEvent::Opened(page.sockets()));
    if let Some(origin_ns) = dispatcher.wait_for_start() {
        // Begin no page before the load does: pages before the window do not count towards a limited number of pages.
        sleep_until(origin_ns);
        let mut record = PageRecord::default();
        let mut has_page = dispatcher.next(worker, None, now_ns());
        while has_page {
            record.clear();
            let ended_ns = page.run_page(&mut record)?;
            has_page = dispatcher.next(worker, Some((&record, ended_ns)), now_ns());
        }
    }
    page.close();
    let _ = to_coordinator.send(WorkerEvent::Ended);
    Ok(())
}
