//! The SQL protocol of a job, and the features that only some protocols have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PsMode, Rule, SessionJob, Workload};

/// What the server of a workload of statements speaks, MySQL's standing for MariaDB's too; one of keys has a protocol of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SqlProtocol {
    #[default]
    Mysql,
    Postgresql,
}

impl SqlProtocol {
    /// Rules for a session in this protocol.
    pub(super) fn session_rules(self, session: &SessionJob) -> Vec<Rule> {
        let postgres = self == Self::Postgresql;
        vec![
            (
                !postgres || session.compression.is_none(),
                "PostgreSQL does not compress its protocol",
            ),
            (
                postgres || session.tls.as_ref().is_none_or(|tls| !tls.direct),
                "TLS begins directly with PostgreSQL alone",
            ),
        ]
    }

    /// Rules for a session and a workload in this protocol.
    pub(super) fn rules(self, session: &SessionJob, workload: &Workload) -> Vec<Rule> {
        let postgres = self == Self::Postgresql;
        let mode = workload.ps_mode();
        let mut rules = self.session_rules(session);
        rules.extend([
            (
                !postgres || workload.key_value().is_none(),
                "a workload of keys has a protocol of its own",
            ),
            (
                postgres || workload.pgbench().is_none(),
                "pgbench's workloads need the protocol `postgresql`",
            ),
            (
                postgres || mode != PsMode::Extended,
                "db_ps_mode=extended needs the protocol `postgresql`",
            ),
            (
                session.pipeline <= 1
                    || postgres && matches!(mode, PsMode::Auto | PsMode::Extended),
                "a pipeline needs the protocol `postgresql`, and db_ps_mode=auto or extended",
            ),
            (
                session.pipeline <= 1 && mode != PsMode::Multi || !workload.has_think_time(),
                "think needs statements that are sent one at a time: neither db_ps_mode=multi nor a pipeline",
            ),
        ]);
        rules
    }
}
