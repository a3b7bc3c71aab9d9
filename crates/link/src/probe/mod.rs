//! Probes of a link at rest: echo (the far end), round trip time, goodput. Plain TCP sockets, so that what they see is what a
//! program would see.
//!
//! A connection to the echo begins with a [`hello`] of 17 bytes: what the connection is for, and for a transfer the warm-up
//! and the measured window. All goodput is counted by the end that receives.

mod echo;
mod goodput;
mod hello;
mod rtt;
mod tcp;
mod window;

use std::io::BufRead;
use std::process::ExitCode;

use serde::Deserialize;

use crate::event::{Event, Failure};
use crate::job::check_version;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Towards {
    ToServer,
    ToClient,
}

/// A probe job; the fields mean what the Python side says.
#[derive(Debug, Deserialize)]
#[serde(tag = "job", rename_all = "lowercase", deny_unknown_fields)]
enum Job {
    Echo {
        version: u32,
        host: String,
    },
    Rtt {
        version: u32,
        host: String,
        port: u16,
        count: u32,
        #[serde(default = "default_timeout")]
        timeout_ns: u64,
    },
    Goodput {
        version: u32,
        host: String,
        port: u16,
        direction: Towards,
        warmup_ns: u64,
        measure_ns: u64,
    },
}

fn default_timeout() -> u64 {
    10_000_000_000
}

/// Read a probe job on stdin, run it, write events on stdout.
pub fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            Event::Failed(failure).emit();
            ExitCode::from(1)
        }
    }
}

fn serve() -> Result<(), Failure> {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Failure::bad_job(format!("cannot read the job: {error}")))?;
    let job: Job = serde_json::from_str(&line)
        .map_err(|error| Failure::bad_job(format!("the probe job does not parse: {error}")))?;
    let (Job::Echo { version, .. } | Job::Rtt { version, .. } | Job::Goodput { version, .. }) =
        &job;
    check_version(*version).map_err(Failure::bad_job)?;
    match job {
        Job::Echo { host, .. } => echo::serve(&host),
        Job::Rtt {
            host,
            port,
            count,
            timeout_ns,
            ..
        } => {
            rtt::measure(tcp::address(&host, port)?, count, timeout_ns)?.emit();
            Ok(())
        }
        Job::Goodput {
            host,
            port,
            direction,
            warmup_ns,
            measure_ns,
            ..
        } => {
            let hello = hello::Hello {
                mode: match direction {
                    Towards::ToServer => hello::Mode::Sink,
                    Towards::ToClient => hello::Mode::Source,
                },
                warmup_ns,
                measure_ns,
            };
            goodput::measure(tcp::address(&host, port)?, hello)?.emit();
            Ok(())
        }
    }
}
