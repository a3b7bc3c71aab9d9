//! The threads of a page job, and their reports to the coordinator.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use howfar_contract::jobs::PageJob;
use howfar_contract::{Failed, internal};

use super::dispatcher::Dispatcher;
use super::{Page, PageRecord};
use crate::clock::now_ns;
use crate::tally::Passed;
use crate::tcp_info::{self, TcpInfo};

/// Time limit for workers to end their present pages and close their connections.
const GOODBYE_NS: u64 = 2_000_000_000;

/// A report from a worker or the dispatcher to the coordinator.
#[derive(Debug)]
pub(crate) enum Report {
    /// A worker has opened its persistent connections.
    Opened(Vec<Arc<OwnedFd>>),
    Passed(Passed),
    /// No further page may begin, and none is in progress.
    Drained,
    Failed(Failed),
    /// A worker has ended.
    Left,
}

/// All workers, with their persistent connections.
pub(crate) struct Workers {
    pub(crate) dispatcher: Arc<Dispatcher>,
    reports: Receiver<Report>,
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
        let (to_coordinator, reports) = mpsc::channel();
        let dispatcher = Arc::new(Dispatcher::new(job, kinds, to_coordinator.clone()));
        let workers = pages.len();
        for (worker, page) in pages.into_iter().enumerate() {
            let (dispatcher, reports) = (Arc::clone(&dispatcher), to_coordinator.clone());
            thread::Builder::new()
                .name(format!("page-{worker}"))
                .spawn(move || guarded(&dispatcher, worker, page, &reports))
                .map_err(|error| internal(format!("starting a thread: {error}")))?;
        }
        Ok(Self {
            dispatcher,
            reports,
            count: workers,
            sockets: Vec::new(),
        })
    }

    /// Wait until all workers have opened their persistent connections; each worker limits its own waits.
    pub(crate) fn opened(&mut self) -> Result<(), Failed> {
        for _ in 0..self.count {
            match self.reports.recv() {
                Ok(Report::Opened(sockets)) => self.sockets.extend(sockets),
                Ok(Report::Failed(failed)) => return Err(failed),
                other => return Err(internal(format!("a worker said {other:?} before the load"))),
            }
        }
        Ok(())
    }

    /// The next report, or `None` if none comes within `within_ns`. A reported failure is returned as an error.
    pub(crate) fn next_report(&mut self, within_ns: u64) -> Result<Option<Report>, Failed> {
        match self.reports.recv_timeout(Duration::from_nanos(within_ns)) {
            Ok(Report::Failed(failed)) => Err(failed),
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(internal("all workers are gone")),
        }
    }

    /// The kernel's state of the persistent TCP connections.
    pub(crate) fn tcp(&self) -> Vec<TcpInfo> {
        let sockets = self.sockets.iter();
        sockets.filter_map(tcp_info::read).collect()
    }

    /// Let the workers end; those that do not in time end with the process. Results are already reported, so failures are ignored.
    pub(crate) fn dismiss(&mut self) {
        self.dispatcher.close();
        let until_ns = now_ns() + GOODBYE_NS;
        let mut left = 0;
        while left < self.count {
            let rest_ns = until_ns.saturating_sub(now_ns());
            match self.reports.recv_timeout(Duration::from_nanos(rest_ns)) {
                Ok(Report::Left | Report::Failed(_)) => left += 1,
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

/// Run a worker; failures and panics become reports.
fn guarded(
    dispatcher: &Dispatcher,
    worker: usize,
    mut page: Box<dyn Page>,
    reports: &Sender<Report>,
) {
    let life = || work(dispatcher, worker, page.as_mut(), reports);
    if let Err(failed) = crate::unpanicked("a worker", life) {
        // A coordinator that is gone has reported why.
        let _ = reports.send(Report::Failed(failed));
    }
}

fn work(
    dispatcher: &Dispatcher,
    worker: usize,
    page: &mut dyn Page,
    reports: &Sender<Report>,
) -> Result<(), Failed> {
    // Timers of arrivals fire when they are due, not up to 50 µs later. If the call fails, they are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    page.open()?;
    let _ = reports.send(Report::Opened(page.sockets()));
    if let Some(origin_ns) = dispatcher.begun() {
        // Wait for the origin of the load, so that a limited number of pages begins inside the window.
        thread::sleep(Duration::from_nanos(origin_ns.saturating_sub(now_ns())));
        let mut record = PageRecord::default();
        let mut more = dispatcher.next(worker, None, now_ns());
        while more {
            record.clear();
            let ended_ns = page.run_one(&mut record)?;
            more = dispatcher.next(worker, Some((&record, ended_ns)), now_ns());
        }
    }
    page.leave();
    let _ = reports.send(Report::Left);
    Ok(())
}
