//! The load engine: one job in, its events out.
//!
//! [`workload`] defines the statements, [`distribution`] the rows that they use, and `schedule` their times in an open loop. A
//! worker per CPU drives its connections and counts; the coordinator opens connections, starts the workers, sets the time and
//! collects results. Not here: protocols (`howfar-wire`), the contract (`howfar-contract`).

mod acknowledged;
mod bare;
mod channel;
mod client;
mod clock;
mod connecting;
mod connection;
mod connection_error;
mod context;
mod coordinator;
mod counts;
pub mod digits;
pub mod distribution;
mod exchange;
mod failure;
pub mod random_stream;
#[cfg(any(test, fuzzing))]
pub mod fuzzing {
    pub use crate::login::fuzzing::conversation;
}
mod handshake;
mod job_over;
mod login;
mod page;
mod ping;
mod protocol;
mod receipt;
mod remote_start;
mod repeat;
mod ring;
mod schedule;
mod session;
mod signals;
mod socket;
mod sockopt;
mod statements;
mod tables;
mod tally;
mod tcp_info;
mod transport;
mod usage;
mod watch;
mod window;
mod worker;
pub mod workload;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;

use howfar_contract::jobs::{PageJob, PingJob, RepeatJob, TablesJob, UsageJob, WatchJob};
use howfar_contract::{Failed, internal, read_job, report};

/// Read a load job on stdin, run it, write events on stdout.
pub fn run() -> ExitCode {
    run_reporting(|| read_job("load").and_then(coordinator::run))
}

/// Exchange only the bytes of one request and its answer on each connection of a load job: the minimum that any client must do.
pub fn run_bare() -> ExitCode {
    run_reporting(|| read_job("load").and_then(bare::run))
}

/// Run a job of pages.
pub fn run_page() -> ExitCode {
    run_reporting(|| read_job("page").and_then(|job| page::run(&job)))
}

/// Run a job that times connections and requests, one at a time.
pub fn run_ping() -> ExitCode {
    run_reporting(|| read_job("ping").and_then(|job| ping::run(&job)))
}

/// Run a job that creates, warms or drops a workload's tables.
pub fn run_tables() -> ExitCode {
    run_reporting(|| read_job("tables").and_then(tables::run))
}

/// Check a job of this kind without running it.
pub fn check(kind: &str) -> ExitCode {
    run_reporting(|| match kind {
        "tables" => read_job("tables").and_then(|job: TablesJob| job.check()),
        "page" => read_job("page").and_then(|job: PageJob| job.check()),
        "load" => read_job("load").and_then(|job| coordinator::check(&job).map(drop)),
        "watch" => read_job("watch").and_then(|job: WatchJob| job.check()),
        "repeat" => read_job("repeat").and_then(|job: RepeatJob| job.check()),
        "ping" => read_job("ping").and_then(|job: PingJob| job.check()),
        "usage" => read_job("usage").and_then(|job: UsageJob| job.check()),
        other => Err(Failed::bad_job(format!(
            "jobs of the kind `{other}` cannot be checked"
        ))),
    })
}

/// Run a job that watches a load's keys become visible.
pub fn run_watch() -> ExitCode {
    run_reporting(|| read_job("watch").and_then(|job| watch::run(&job)))
}

/// Run a job that repeats recorded pages.
pub fn run_repeat() -> ExitCode {
    run_reporting(|| read_job("repeat").and_then(|job| repeat::run(&job)))
}

/// Run a job that measures CPU time for a load elsewhere.
pub fn run_usage() -> ExitCode {
    run_reporting(|| read_job("usage").and_then(|job| remote_start::run_usage(&job)))
}

/// Run `work` and report any failure as a `failed` event.
fn run_reporting(work: impl FnOnce() -> Result<(), Failed>) -> ExitCode {
    report(catch_panics("the coordinator", work))
}

/// Run `work`; a panic becomes an error that names `component`.
fn catch_panics(component: &str, work: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic_text(panic.as_ref());
        Err(internal(format!("{component} panicked: {reason}")))
    })
}

/// Start a named thread that is not joined.
fn spawn_thread(
    name: impl Into<String>,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), Failed> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started
        .map(drop)
        .map_err(|error| internal(format!("starting a thread: {error}")))
}

/// The message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
