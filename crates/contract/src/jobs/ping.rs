//! The ping job, which measures the latency of opening connections and of small requests, one at a time. Commands on later lines of
//! stdin control it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ServerLogin, SessionJob, SqlProtocol, check_rules};
use crate::events::Failed;

/// Maximum number of rounds of an `ask` command.
const MAX_ROUNDS: u32 = 1_000_000;
/// Maximum number of words of a request.
const MAX_WORDS: usize = 8;

/// Protocol of an SQL server or a key-value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PingProtocol {
    Mysql,
    Postgresql,
    Redis,
    Memcached,
}

impl PingProtocol {
    /// Return the SQL protocol, or `None` for a key-value store.
    pub fn sql(self) -> Option<SqlProtocol> {
        match self {
            Self::Mysql => Some(SqlProtocol::Mysql),
            Self::Postgresql => Some(SqlProtocol::Postgresql),
            Self::Redis | Self::Memcached => None,
        }
    }
}

/// Measure the latency of opening connections and of requests to one server, one at a time. The job executes the commands on its stdin
/// and ends at the end of stdin.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingJob {
    #[schemars(extend("const" = "ping"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub protocol: PingProtocol,
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub session: SessionJob,
    /// Time limit for each step of opening a connection and for each answer.
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub step_timeout_ns: u64,
}

impl PingJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
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

/// One request. An SQL statement is one word; a Redis command is a list of words, and so is the line of a Memcached command. Without
/// words, it is the protocol's own ping.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingRequest {
    #[schemars(length(max = MAX_WORDS))]
    pub words: Vec<String>,
}

/// A command on a later line of a ping job's stdin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum PingCommand {
    /// Command of a ping job: open a connection and measure each step. A connection that is already open is first closed as the
    /// protocol prescribes. The answer is the event `opened` or `not_opened`.
    #[schemars(title = "OpenConnection")]
    Open {},
    /// Command of a ping job: send these requests one after the other, each after the answer to the previous one, and repeat this for
    /// a number of rounds. The answer is the event `asked`.
    #[schemars(title = "AskInTurn")]
    Ask {
        #[schemars(length(min = 1, max = 8))]
        requests: Vec<PingRequest>,
        #[schemars(range(min = 1, max = MAX_ROUNDS))]
        rounds: u32,
        /// Time after the first round's start at which no further round begins.
        #[schemars(range(max = crate::LONGEST_NS))]
        within_ns: u64,
        /// Time of the first round's start on the monotonic clock. 0: immediately.
        #[serde(default)]
        at_ns: u64,
    },
    /// Command of a ping job: send one request, and return the rows of its answer. The answer is the event `fetched`.
    #[schemars(title = "FetchAnswer")]
    Fetch {
        request: PingRequest,
        /// Whether to return rows. If not, only times and bytes are returned, and the answer may be large.
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
