//! The SQL protocol of a job, and rules for features that only some protocols have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PsMode, Rule, SessionJob, Workload};

/// SQL protocol of a server. MariaDB uses `mysql`. A workload of keys has its own protocols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SqlProtocol {
    #[default]
    Mysql,
    Postgresql,
}

impl SqlProtocol {
    /// Return the rules of this protocol for a session.
    pub(super) fn session_rules(self, session: &SessionJob) -> Vec<Rule> {
        let postgres = self == Self::Postgresql;
        vec![
            (
                !postgres || session.compression.is_none(),
                "PostgreSQL does not compress its protocol",
            ),
            (
                postgres || session.tls.as_ref().is_none_or(|tls| !tls.direct),
                "direct TLS needs the protocol `postgresql`",
            ),
        ]
    }

    /// Return the rules of this protocol for a session and a workload.
    pub(super) fn rules(self, session: &SessionJob, workload: &Workload) -> Vec<Rule> {
        let postgres = self == Self::Postgresql;
        let mode = workload.ps_mode();
        let mut rules = self.session_rules(session);
        rules.extend([
            (
                !postgres || workload.key_value().is_none(),
                "a workload of keys cannot be combined with the protocol `postgresql`",
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
