//! Probes of a link at rest: echo, round trip time, goodput.
use std::process::ExitCode;

/// Read a probe job on stdin, run it, write events on stdout.
pub fn run() -> ExitCode {
    ExitCode::from(1)
}
