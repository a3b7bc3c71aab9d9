//! Statements without their literals, by the recorder's own rules: which of a user's statements a recording means.

use std::process::ExitCode;

use howfar_contract::events::Digests;
use howfar_contract::jobs::{DigestsJob, SqlProtocol};
use howfar_contract::{FailCode, Failed, emit, read_job};
use howfar_record::{Dialect, Salt, digest};

pub(crate) fn print() -> ExitCode {
    match read_job("digests").and_then(|job| tell(&job)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

fn tell(job: &DigestsJob) -> Result<(), Failed> {
    let dialect = match job.protocol {
        SqlProtocol::Mysql => Dialect::Mysql { backslash: true },
        SqlProtocol::Postgresql => Dialect::Postgres { backslash: false },
    };
    let salt = Salt::default();
    let text = |sql: &String| digest(sql.as_bytes(), dialect, &salt).text;
    let texts = job.statements.iter().map(text).collect();
    emit(&Digests { texts }).map_err(|error| {
        let message = format!("writing an event: {error}");
        Failed::new(
            FailCode::Internal,
            message,
            "Please report this with the command you ran.",
        )
    })
}
