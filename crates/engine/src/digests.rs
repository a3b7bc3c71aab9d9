//! Reduces statements to digests by the recorder's rules, to find which of a user's statements a recording refers to.

use std::process::ExitCode;

use howfar_contract::events::Digests;
use howfar_contract::jobs::{DigestsJob, SqlProtocol};
use howfar_contract::{emit_or_fail, read_job, report};
use howfar_record::{Dialect, Salt, digest};

pub(crate) fn run() -> ExitCode {
    report(read_job("digests").and_then(|job| emit_or_fail(&compute_digests(&job))))
}

fn compute_digests(job: &DigestsJob) -> Digests {
    let dialect = match job.protocol {
        SqlProtocol::Mysql => Dialect::Mysql { backslash: true },
        SqlProtocol::Postgresql => Dialect::Postgres { backslash: false },
    };
    let salt = Salt::default();
    let text = |sql: &String| digest(sql.as_bytes(), dialect, &salt).text;
    Digests {
        texts: job.statements.iter().map(text).collect(),
    }
}
