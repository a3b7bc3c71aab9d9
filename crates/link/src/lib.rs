//! The link emulator.
use std::process::ExitCode;

pub mod probe;

/// Read a link job on stdin, join the interfaces until stdin ends, write events on stdout.
pub fn run() -> ExitCode {
    ExitCode::from(1)
}
