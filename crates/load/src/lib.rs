//! The load engine: one job in, its events out.
//!
//! [`workload`] defines what is requested, [`distribution`] of which rows, and `schedule` when in an open loop; a worker per CPU
//! drives its connections and counts; the coordinator opens connections, starts the workers, sets the time and collects results. Not
//! here: protocols (`howfar-wire`), the contract (`howfar-contract`).

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
pub mod draws;
mod exchange;
mod failure;
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

use howfar_contract::{Failed, internal, read_job, report};

/// Read a load job on stdin, run it, write events on stdout.
pub fn run() -> ExitCode {
    guarded(|| read_job("load").and_then(coordinator::run))
}

/// Exchange only the bytes of one request and its answer on each connection of a load job: the minimum that any client must do.
pub fn run_bare() -> ExitCode {
    guarded(|| read_job("load").and_then(bare::run))
}

/// Run a job of pages.
pub fn run_page() -> ExitCode {
    guarded(|| read_job("page").and_then(|job| page::run(&job)))
}

/// Run a job that times connections and requests, one at a time.
pub fn run_ping() -> ExitCode {
    guarded(|| read_job("ping").and_then(|job| ping::run(&job)))
}

/// Run a job that creates, warms or drops a workload's tables.
pub fn run_tables() -> ExitCode {
    guarded(|| read_job("tables").and_then(tables::run))
}

/// Run a job that watches a load's keys become visible.
pub fn run_watch() -> ExitCode {
    guarded(|| read_job("watch").and_then(|job| watch::run(&job)))
}

/// Run a job that repeats recorded pages.
pub fn run_repeat() -> ExitCode {
    guarded(|| read_job("repeat").and_then(|job| repeat::run(&job)))
}

/// Run a job that measures CPU time for a load elsewhere.
pub fn run_usage() -> ExitCode {
    guarded(|| read_job("usage").and_then(|job| remote_start::run_usage(&job)))
}

/// Run `work` and report any failure as a `failed` event.
fn guarded(work: impl FnOnce() -> Result<(), Failed>) -> ExitCode {
    report(catch_panics("the coordinator", work))
}

/// The outcome of `work`; a panic becomes an error.
fn catch_panics(who: &str, work: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic_text(panic.as_ref());
        Err(internal(format!("{who} panicked: {reason}")))
    })
}

/// The message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
