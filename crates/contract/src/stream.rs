//! Messages as JSON lines. The first line of stdin is the job, and each line of stdout is an event.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::PROTOCOL_VERSION;
use crate::events::{Failed, internal};
use crate::jobs::Begin;

/// Write an event as one line to stdout, and flush stdout.
///
/// Returns an error if the reader has closed the pipe. Most callers then end, because they cannot report the error.
pub fn emit<T: Serialize>(event: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Write an event with [`emit`]. If the reader has closed the pipe, return a failure that ends the job.
pub fn emit_or_fail<T: Serialize>(event: &T) -> Result<(), Failed> {
    emit(event).map_err(|error| internal(format!("writing an event: {error}")))
}

/// Write the failure of a job as an event, if it failed, and return the exit code.
pub fn report(outcome: Result<(), Failed>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            // Without a reader, only the exit code shows the failure.
            let _ = emit(&failed);
            ExitCode::from(1)
        }
    }
}

/// Read the first line of stdin as a job of the kind `kind`. Further lines are not read.
pub fn read_job<T: DeserializeOwned>(kind: &str) -> Result<T, Failed> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    match read {
        Err(error) => Err(Failed::bad_job(format!(
            "the job on stdin could not be read: {error}"
        ))),
        Ok(0) => Err(Failed::bad_job(
            "stdin was closed before a job arrived".to_owned(),
        )),
        Ok(_) => parse_job(kind, &line),
    }
}

/// Read the next line of stdin as the command that starts a job with delayed start.
pub fn read_begin() -> Result<Begin, Failed> {
    read_command("when to begin")?.ok_or_else(|| {
        Failed::bad_job("the line that says when to begin was not read: stdin ended")
    })
}

/// Read the next line of stdin as a command, or return `None` at the end of stdin. `purpose` describes the command in errors.
pub fn read_command<T: DeserializeOwned>(purpose: &str) -> Result<Option<T>, Failed> {
    let command_error = |why: &dyn std::fmt::Display| {
        Failed::bad_job(format!("the line that says {purpose} was not read: {why}"))
    };
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Err(error) => Err(command_error(&error)),
        Ok(0) => Ok(None),
        Ok(_) => serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| command_error(&error)),
    }
}

/// Parse a job of the kind `kind`. The kind and the version are checked before all other fields, so that the error for a job of
/// another version names the version.
pub fn parse_job<T: DeserializeOwned>(kind: &str, line: &str) -> Result<T, Failed> {
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Failed::bad_job(format!("the job is not JSON: {error}")))?;
    let job_kind = value.get("job").and_then(Value::as_str);
    if job_kind != Some(kind) {
        return Err(Failed::bad_job(format!(
            "expected a job of kind `{kind}`, got {}",
            job_kind.unwrap_or("none")
        )));
    }
    let version = value.get("version").and_then(Value::as_u64);
    if version != Some(u64::from(PROTOCOL_VERSION)) {
        let job_version = version.map_or_else(|| "none".to_owned(), |number| number.to_string());
        return Err(Failed::bad_job(format!(
            "the job speaks contract version {job_version}, this engine speaks {PROTOCOL_VERSION}"
        )));
    }
    // The text is parsed again because serde_json gives line and column only for text.
    serde_json::from_str(line)
        .map_err(|error| Failed::bad_job(format!("the job does not follow the contract: {error}")))
}
