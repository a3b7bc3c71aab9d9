//! Load by pages: each worker requests one page at a time, and a page is a script of round trips or the work of a real application.
//!
//! One operating system thread per worker, with blocking sockets, on purpose: an application's workers are processes, each handling
//! one request, and the kernel shares the CPUs among them. The load job's event loop is different: it is built to perturb the
//! measurement of a server as little as possible; here the client is part of what is measured.
//!
//! [`Page`] is a worker's implementation of a page; [`script`] and [`fastcgi`] are the two kinds. [`dispatcher`] hands out pages,
//! [`state`] counts their outcomes, [`workers`] has the threads. Not here: the contract (`howfar_contract::jobs::page`).

mod cpu;
mod dispatcher;
mod fastcgi;
mod page_record;
mod script;
mod service;
mod state;
mod workers;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::Failed;
use howfar_contract::events::{Finished, Ready, Receipt};
use howfar_contract::jobs::{Application, PageJob};

use crate::clock::now_ns;
use crate::coordinator::allowed_cpus;
use crate::remote_start;
use crate::socket::allow_descriptors;
use crate::tally::Window;
use crate::window::{WindowCollector, WindowOptions, emit_event, tcp_facts};
pub(crate) use page_record::PageRecord;
use state::WorkerEvent;
use workers::Workers;

/// Poll at least this often.
const POLL_NS: u64 = 1_000_000_000;
/// Connections per worker: a script uses at most one each of SQL, Redis and Memcached.
const MAX_SERVICES: u64 = 3;

/// A worker's implementation of a page.
pub(crate) trait Page: Send {
    /// Open persistent connections, if any; called before the load.
    fn open(&mut self) -> Result<(), Failed>;

    /// Run one page, from its first step to the end of its last; returns the time of that end. Its counts go into `record`.
    fn run_page(&mut self, record: &mut PageRecord) -> Result<u64, Failed>;

    /// The persistent connections, once open: their kernel state is read at the window's end, while the worker may be running a page.
    fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
    }

    /// Close persistent connections, if any.
    fn close(&mut self);
}

/// What is prepared before the first page.
pub(crate) struct PageSetup {
    pub(crate) receipt: Receipt,
    /// The receipt of each of a script's services.
    pub(crate) services: BTreeMap<&'static str, Receipt>,
    /// Names of latencies, indexed by the kind number used in `PageRecord`.
    pub(crate) kinds: Vec<&'static str>,
    /// Pages, one for each worker.
    pub(crate) pages: Vec<Box<dyn Page>>,
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: &PageJob) -> Result<(), Failed> {
    job.check()?;
    allow_descriptors(u64::from(job.workers) * MAX_SERVICES)?;
    let cpus = allowed_cpus()?;
    let began = now_ns();
    let setup = match &job.application {
        Application::Script(script) => script::setup(job, script, &cpus)?,
        Application::FastCgi(fastcgi) => fastcgi::setup(job, fastcgi, &cpus)?,
    };
    let mut workers = Workers::start(job, &setup.kinds, setup.pages)?;
    workers.wait_until_opened()?;
    emit_event(&Ready {
        receipt: setup.receipt,
        connections: job.workers,
        prepared_statements: 0,
        connect_ns: now_ns() - began,
        services: setup.services,
    })?;

    let origin_ns = remote_start::wait_for_origin(job.waits_for_begin)?;
    let start_ns = origin_ns + job.warmup_ns;
    let window = Window {
        start_ns,
        end_ns: start_ns + job.measure_ns,
        interval_ns: job.interval_ns,
    };
    workers.dispatcher.begin(origin_ns, window);
    let window_collector = collect_events(job, &mut workers, window)?;
    // Emit this before stopping the workers: observers of the machine stop at this event, and unfinished pages do not count.
    emit_event(&finished_event(window_collector, &workers)?)?;
    workers.stop();
    Ok(())
}

/// Collect events from the start of the load until the window is over and complete.
fn collect_events<'a>(
    job: &'a PageJob,
    workers: &mut Workers,
    window: Window,
) -> Result<WindowCollector<'a>, Failed> {
    let mut window_collector = WindowCollector::new(window_options(job), window, 1);
    while !window_collector.is_complete() {
        let now = now_ns();
        if now >= window_collector.next_edge() {
            window_collector.advance_to(now)?;
            workers.dispatcher.pass_due_edges(now);
        }
        let wake_ns = window_collector.next_edge().min(now + POLL_NS);
        match workers.next_event(wake_ns.saturating_sub(now_ns()))? {
            Some(WorkerEvent::Passed(passed)) => window_collector.add_edge(passed)?,
            Some(WorkerEvent::Drained) => {
                let at_ns = window_collector.end_now(now_ns());
                workers.dispatcher.end_at(at_ns);
                // The window just became shorter: read CPU times again for its new end.
                window_collector.advance_to(now_ns())?;
            }
            Some(WorkerEvent::Opened(_) | WorkerEvent::Ended | WorkerEvent::Failed(_)) | None => {}
        }
    }
    Ok(window_collector)
}

fn window_options(job: &PageJob) -> WindowOptions<'_> {
    let has_lookups = match &job.application {
        Application::Script(script) => script.redis.is_some() || script.memcached.is_some(),
        Application::FastCgi(_) => false,
    };
    WindowOptions {
        observe: &job.observe,
        open_loop: job.arrivals.is_some(),
        has_lookups,
        report_latencies: job.waits_for_begin,
    }
}

fn finished_event(
    window_collector: WindowCollector<'_>,
    workers: &Workers,
) -> Result<Finished, Failed> {
    let sums = workers.dispatcher.sums();
    let kinds: Vec<&str> = sums.kinds.iter().map(String::as_str).collect();
    let mut finished = window_collector.finish(&kinds)?;
    finished.tcp = tcp_facts(&workers.tcp_infos());
    finished.services = sums.services;
    finished.app_counters = sums.reported;
    Ok(finished)
}
