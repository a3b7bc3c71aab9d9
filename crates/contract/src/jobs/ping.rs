//! The ping job: connections and small requests to one server, one at a time, each timed. Commands on later lines say what is done when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Password, SessionJob, SqlProtocol, Target, check_rules};
use crate::events::Failed;

/// Maximum rounds of one `ask`.
const MAX_ROUNDS: u32 = 1_000_000;
/// Maximum words of a request.
const MAX_WORDS: usize = 8;

/// A protocol as a server of any kind speaks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PingProtocol {
    Mysql,
    Postgresql,
    Redis,
    Memcached,
}

impl PingProtocol {
    /// The SQL protocol; `None` for a key-value store.
    pub fn sql(self) -> Option<SqlProtocol> {
        match self {
            Self::Mysql => Some(SqlProtocol::Mysql),
            Self::Postgresql => Some(SqlProtocol::Postgresql),
            Self::Redis | Self::Memcached => None,
        }
    }
}

/// Time connections and requests to one server, one at a time. The job itself does nothing: it follows the commands on its stdin, and
/// ends with it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingJob {
    #[schemars(extend("const" = "ping"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub protocol: PingProtocol,
    pub target: Target,
    /// Empty for the default user of Redis, and for Memcached.
    pub user: String,
    #[serde(default)]
    pub password: Password,
    /// Name of the database; with Redis its number, or empty.
    pub database: String,
    #[serde(default)]
    pub session: SessionJob,
    /// Longest time for each step of a connection, and for each answer.
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub step_timeout_ns: u64,
}

impl PingJob {
    /// Check the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), Failed> {
        let sql = self
            .protocol
            .sql()
            .map(|sql| sql.session_rules(&self.session));
        check_rules(
            self,
            sql.unwrap_or_default()
                .into_iter()
                .chain(self.session.rules()),
        )
    }
}

/// One request. SQL is one word, a command of Redis its words, of Memcached the words of its line. No words: the protocol's own ping.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingRequest {
    #[schemars(length(max = MAX_WORDS))]
    pub words: Vec<String>,
}

/// A later line on a ping job's stdin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum PingCommand {
    /// A later line on a ping job's stdin: open a connection, timing each step; the open one is closed first, with the
    /// protocol's goodbye. Answered by `opened` or `not_opened`.
    #[schemars(title = "OpenConnection")]
    Open {},
    /// A later line on a ping job's stdin: send these requests in turn, each after the answer to the one before, for so many rounds.
    /// Answered by `asked`.
    #[schemars(title = "AskInTurn")]
    Ask {
        #[schemars(length(min = 1, max = 8))]
        requests: Vec<PingRequest>,
        #[schemars(range(min = 1, max = MAX_ROUNDS))]
        rounds: u32,
        /// No round begins later than this after the first one.
        #[schemars(range(max = crate::LONGEST_NS))]
        within_ns: u64,
        /// When the first round is to begin, by the monotonic clock; 0: at once.
        #[serde(default)]
        at_ns: u64,
    },
    /// A later line on a ping job's stdin: send one request and give its answer's rows. Answered by `fetched`.
    #[schemars(title = "FetchAnswer")]
    Fetch {
        request: PingRequest,
        /// Without, the answer may be large: bytes and times alone.
        rows: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_and_commands_are_refused() {
        let parse = |text: &str| serde_json::from_str::<PingCommand>(text);
        assert_eq!(
            parse(r#"{"command":"open"}"#).expect("a command"),
            PingCommand::Open {}
        );
        let asks = r#"{"command":"ask","requests":[{"words":[]},{"words":["SELECT 1"]}],"rounds":3,"within_ns":9}"#;
        assert!(parse(asks).is_ok());
        assert!(parse(&asks.replace("rounds", "times")).is_err());
        assert!(parse(r#"{"command":"drop"}"#).is_err());
    }
}
