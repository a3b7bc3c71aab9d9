//! The threads of a page job, and what they say to the coordinator.

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

/// How long workers may take to end the pages in hand and say goodbye.
const GOODBYE_NS: u64 = 2_000_000_000;

/// From a worker, or from the dispatcher, to the coordinator.
#[derive(Debug)]
pub(crate) enum Report {
    /// A worker has opened what stays open.
    Opened(Vec<Arc<OwnedFd>>),
    Passed(Passed),
    /// No page may begin any more, and none is under way.
    Drained,
    Failed(Failed),
    /// A worker's last word.
    Left,
}

/// All workers, with their lines.
pub(crate) struct Workers {
    pub(crate) dispatcher: Arc<Dispatcher>,
    reports: Receiver<Report>,
    count: usize,
    /// Connections that stay.
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

    /// Wait until all have opened what stays open: each bounds its own waits.
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

    /// The next report within so many nanoseconds. A failure is one.
    pub(crate) fn next_report(&mut self, within_ns: u64) -> Result<Option<Report>, Failed> {
        match self.reports.recv_timeout(Duration::from_nanos(within_ns)) {
            Ok(Report::Failed(failed)) => Err(failed),
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(internal("all workers are gone")),
        }
    }

    /// What the kernel knows of the TCP connections that stay.
    pub(crate) fn tcp(&self) -> Vec<TcpInfo> {
        let sockets = self.sockets.iter();
        sockets.filter_map(tcp_info::read).collect()
    }

    /// Let the workers end; what they cannot end in time ends with the process. All is reported: whatever fails now changes nothing.
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

/// A worker's life, of which every end is a report.
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
    // Arrivals ring when they are due, not up to 50 µs later. Without it they would only be less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    page.open()?;
    let _ = reports.send(Report::Opened(page.sockets()));
    if let Some(origin_ns) = dispatcher.begun() {
        // All begin by the clock, so that a limited number of pages begins inside the window.
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
