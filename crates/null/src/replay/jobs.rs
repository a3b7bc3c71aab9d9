//! The jobs and events of a replay.

use howfar_contract::jobs::{Listen, Target, Tls};
use howfar_contract::{Failed, LONGEST_NS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::speech::{AnswerSpec, Speech};
use super::stream::ServerTls;
use crate::jobs::check_rules;

const MAX_STEPS: usize = 1_000_000;
const MAX_CONNECTIONS: u32 = 10_000;

/// A server that answers each request with as many bytes, after as long, as the request says. Lives until stdin ends.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "answer"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) listen: Listen,
    #[serde(default)]
    pub(crate) tls: Option<ServerTls>,
    /// `sizes` unless a program in between reads a protocol.
    #[serde(default)]
    pub(crate) speech: Speech,
}

/// One round trip, begun `gap_ns` after the one before it ended.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayStep {
    /// Which of the replay's connections. One that no step opens is opened before the first page.
    #[schemars(range(max = 10_000))]
    pub(crate) connection: u32,
    /// Open the connection first, again if it is open.
    #[serde(default)]
    pub(crate) opens: bool,
    #[serde(default)]
    #[schemars(range(max = howfar_contract::LONGEST_NS))]
    pub(crate) gap_ns: u64,
    #[serde(default)]
    #[schemars(range(max = howfar_contract::LONGEST_NS))]
    pub(crate) server_ns: u64,
    /// At least 16 are sent.
    #[schemars(range(max = 1_073_741_824))]
    pub(crate) bytes_to_server: u32,
    /// At least 8 are sent.
    #[schemars(range(max = 1_073_741_824))]
    pub(crate) bytes_to_client: u32,
}

/// The round trips of one page, and the time after the last of them.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayPage {
    #[schemars(length(min = 1))]
    pub(crate) steps: Vec<ReplayStep>,
    #[serde(default)]
    #[schemars(range(max = howfar_contract::LONGEST_NS))]
    pub(crate) rest_ns: u64,
}

/// Pages, one after the other, against a server that was started with an `answer` job.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "replay"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) target: Target,
    /// Verified against `ca_file` and `server_name`.
    #[serde(default)]
    pub(crate) tls: Option<Tls>,
    /// As the server's.
    #[serde(default)]
    pub(crate) speech: Speech,
    #[schemars(length(min = 1))]
    pub(crate) pages: Vec<ReplayPage>,
}

/// One page of a replay, in the order of the job.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "replayed")]
#[schemars(title = "Replayed")]
#[allow(clippy::struct_field_names)] // All fields are times, and their names carry the unit.
pub(crate) struct Replayed {
    pub(crate) took_ns: u64,
    /// Time to open each connection: the socket, then TLS.
    pub(crate) opened_ns: Vec<u64>,
    /// Time of each step, from its first byte sent to its answer's last.
    pub(crate) round_trips_ns: Vec<u64>,
    /// Sum over all steps: how long after its gap a request was sent, or the client waited for a processor.
    pub(crate) client_late_ns: u64,
    /// How long after its service time an answer was sent, and the server waited for a processor.
    pub(crate) server_late_ns: u64,
}

/// The TLS negotiation of the protocols is not implemented.
const TLS_RULE: &str = "tls needs the speech `sizes`";

impl AnswerJob {
    /// Check the bounds that the types do not enforce.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        check_rules(&[(self.tls.is_none() || self.speech == Speech::Sizes, TLS_RULE)])
    }
}

impl ReplayStep {
    /// The answer that the request of this step specifies.
    pub(super) fn answer_spec(&self) -> AnswerSpec {
        let mut answer_spec = AnswerSpec::default();
        answer_spec[..4].copy_from_slice(&self.bytes_to_client.to_be_bytes());
        answer_spec[4..].copy_from_slice(&self.server_ns.to_be_bytes());
        answer_spec
    }
}

impl ReplayJob {
    /// Check the bounds that the types do not enforce.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        let steps = || self.pages.iter().flat_map(|page| &page.steps);
        check_rules(&[
            (
                !self.pages.is_empty() && self.pages.iter().all(|page| !page.steps.is_empty()),
                "a replay has pages, and each has steps",
            ),
            (
                steps().count() <= MAX_STEPS,
                "a replay has at most 1000000 steps",
            ),
            (
                steps().all(|step| step.connection <= MAX_CONNECTIONS),
                "connection must be at most 10000",
            ),
            (
                steps().all(|step| step.gap_ns.max(step.server_ns) <= LONGEST_NS)
                    && self.pages.iter().all(|page| page.rest_ns <= LONGEST_NS),
                "gap_ns, server_ns and rest_ns must be at most a day",
            ),
            (
                steps().all(|step| step.bytes_to_server.max(step.bytes_to_client) <= 1 << 30),
                "bytes_to_server and bytes_to_client must be at most 1073741824",
            ),
            (
                self.tls
                    .as_ref()
                    .is_none_or(|tls| tls.ca_file.is_some() && tls.server_name.is_some()),
                "tls needs ca_file and server_name",
            ),
            (self.tls.is_none() || self.speech == Speech::Sizes, TLS_RULE),
        ])
    }
}

#[cfg(test)]
mod tests {
    use howfar_contract::parse_job;

    use super::*;
    use crate::jobs::tests::read_example;

    #[test]
    fn the_examples_are_valid_jobs() {
        let job: ReplayJob =
            parse_job("replay", &read_example("job.replay.json")).expect("the job is valid");
        job.check().expect("the job is within bounds");
        let job: AnswerJob =
            parse_job("answer", &read_example("job.answer.json")).expect("the job is valid");
        assert!(job.tls.is_some());
    }

    #[test]
    fn a_page_without_steps_is_refused() {
        let text = read_example("refused/job.replay.no-steps.json");
        let job: ReplayJob = parse_job("replay", &text).expect("the job is well formed");
        assert!(job.check().is_err());
    }
}
