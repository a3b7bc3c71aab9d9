//! Load by pages: each worker asks for one page at a time, and a page is a script of round trips or a real application's work.
//!
//! One operating system thread a worker, with blocking sockets, on purpose: an application's workers are processes, each with one
//! request in hand, and it is the kernel that shares the CPUs among them. The load job's event loop is another thing, built to
//! disturb a server's measurement least; here the client is part of what is measured.
//!
//! [`Page`] is what a worker does for one page; [`script`] and [`visitor`] are the two kinds. [`dispatcher`] hands out pages and [`state`]
//! counts what became of them, [`workers`] has the threads. Not here: the contract (`howfar_contract::jobs::page`).

mod cpu;
mod dispatcher;
mod page_record;
mod script;
mod service;
mod state;
mod visitor;
mod workers;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::Failed;
use howfar_contract::events::{Finished, Ready, Receipt};
use howfar_contract::jobs::{Application, PageJob};

use crate::clock::now_ns;
use crate::coordinator::own_cpus;
use crate::held;
use crate::socket::allow_descriptors;
use crate::tally::Window;
use crate::window::{Collected, WindowOptions, emit_event, tcp_facts};
pub(crate) use page_record::PageRecord;
use workers::{Report, Workers};

/// Longest time between two looks while nothing happens.
const LOOK_NS: u64 = 1_000_000_000;
/// One of SQL, Redis, Memcached.
const SERVICES: u64 = 3;

/// What a worker does for one page.
pub(crate) trait Page: Send {
    /// Connect where connections stay; before the load.
    fn open(&mut self) -> Result<(), Failed>;

    /// One page, from its first step to the end of its last; gives the moment of that end. All that it did goes into `record`.
    fn run_one(&mut self, record: &mut PageRecord) -> Result<u64, Failed>;

    /// The connections that stay, once they are open: what the kernel knows of them is read at the window's end, while the worker may
    /// have a page in hand.
    fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
    }

    /// Say goodbye where connections stay.
    fn leave(&mut self);
}

/// All that is there before the first page.
pub(crate) struct PageSetup {
    pub(crate) receipt: Receipt,
    /// The receipt of each of a script's services.
    pub(crate) services: BTreeMap<&'static str, Receipt>,
    /// Names of the latencies that records count by kind, in the order of their numbers.
    pub(crate) kinds: Vec<&'static str>,
    /// One for each worker.
    pub(crate) pages: Vec<Box<dyn Page>>,
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: &PageJob) -> Result<(), Failed> {
    job.check()?;
    allow_descriptors(u64::from(job.workers) * SERVICES)?;
    let cpus = own_cpus()?;
    let began = now_ns();
    let setup = match &job.application {
        Application::Script(script) => script::setup(job, script, &cpus)?,
        Application::FastCgi(fastcgi) => visitor::setup(job, fastcgi, &cpus)?,
    };
    let mut workers = Workers::start(job, &setup.kinds, setup.pages)?;
    workers.opened()?;
    emit_event(&Ready {
        receipt: setup.receipt,
        connections: job.workers,
        prepared_statements: 0,
        connect_ns: now_ns() - began,
        services: setup.services,
    })?;

    let origin_ns = held::origin_ns(job.held)?;
    let start_ns = origin_ns + job.warmup_ns;
    let window = Window {
        start_ns,
        end_ns: start_ns + job.measure_ns,
        interval_ns: job.interval_ns,
    };
    workers.dispatcher.begin(origin_ns, window);
    let collected = attend(job, &mut workers, window)?;
    // Before the workers end: who watches the machine meanwhile ends with this event, and pages in hand are not in the window.
    emit_event(&reported(collected, &workers)?)?;
    workers.dismiss();
    Ok(())
}

/// From the word to begin until the window is over and all of it is reported.
fn attend<'a>(
    job: &'a PageJob,
    workers: &mut Workers,
    window: Window,
) -> Result<Collected<'a>, Failed> {
    let mut collected = Collected::new(options(job), window, 1);
    while !collected.is_complete() {
        let now = now_ns();
        if now >= collected.next_edge() {
            collected.reach(now)?;
            workers.dispatcher.look(now);
        }
        let wake_ns = collected.next_edge().min(now + LOOK_NS);
        match workers.next_report(wake_ns.saturating_sub(now_ns()))? {
            Some(Report::Passed(passed)) => collected.take(passed)?,
            Some(Report::Drained) => {
                let at_ns = collected.end_now(now_ns());
                workers.dispatcher.end_at(at_ns);
                // CPU times belong to the window as it now is.
                collected.reach(now_ns())?;
            }
            Some(Report::Opened(_) | Report::Left | Report::Failed(_)) | None => {}
        }
    }
    Ok(collected)
}

fn options(job: &PageJob) -> WindowOptions<'_> {
    let keys = match &job.application {
        Application::Script(script) => script.redis.is_some() || script.memcached.is_some(),
        Application::FastCgi(_) => false,
    };
    WindowOptions {
        observe: &job.observe,
        open_loop: job.arrivals.is_some(),
        keys,
        latencies: job.held,
    }
}

fn reported(collected: Collected<'_>, workers: &Workers) -> Result<Finished, Failed> {
    let sums = workers.dispatcher.sums();
    let kinds: Vec<&str> = sums.kinds.iter().map(String::as_str).collect();
    let mut finished = collected.finish(&kinds)?;
    finished.tcp = tcp_facts(&workers.tcp());
    finished.services = sums.services;
    finished.reported = sums.reported;
    Ok(finished)
}
