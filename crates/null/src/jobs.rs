//! The jobs and events of the null server and the ping-pong. Unknown fields are errors.

use howfar_contract::events::Histogram;
use howfar_contract::jobs::{Listen, Target};
use howfar_contract::{FailCode, Failed, LONGEST_NS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest service time that can be requested.
const MAX_DELAY_NS: u64 = 60_000_000_000;
/// Maximum threads: more than the CPUs of any present machine.
const MAX_THREADS: u32 = 1024;
/// Longest column of an answer: it fits into one packet, and a few of them into a worker's buffer.
const MAX_REPLY_BYTES: u32 = 1 << 20;

/// Whose bytes are spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Flavour {
    /// Leaves definitions out that the client has from the prepare.
    #[default]
    Mariadb,
    Mysql,
}

/// A server that answers every statement from bytes made beforehand. Lives until stdin ends.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NullJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "null"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    /// A path that does not exist yet, or an address of this host.
    pub(crate) listen: Listen,
    #[serde(default = "default_threads")]
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) threads: u32,
    /// Length of the one column of the one row that answers a SELECT.
    #[serde(default = "sysbench_column")]
    #[schemars(range(max = 1_048_576))]
    pub(crate) reply_bytes: u32,
    /// Service time: every answer waits for so long, however many wait beside it.
    #[serde(default)]
    #[schemars(range(max = 60_000_000_000_u64))]
    pub(crate) delay_ns: u64,
    /// MariaDB leaves out of an execute's answer the definitions that the client has from the prepare.
    #[serde(default)]
    pub(crate) flavour: Flavour,
}

const fn default_threads() -> u32 {
    1
}

/// Length of the column `c` in sysbench's tables.
const fn sysbench_column() -> u32 {
    119
}

/// Clients may connect.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "null_ready")]
#[schemars(title = "NullReady")]
pub(crate) struct NullReady {
    /// None: a Unix socket.
    pub(crate) port: Option<u16>,
}

/// One request to a null server and its answer, blocking, again and again on one connection: the floor for every
/// client.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PingPongJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "pingpong"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) target: Target,
    #[schemars(range(max = howfar_contract::LONGEST_NS))]
    pub(crate) warmup_ns: u64,
    #[schemars(range(min = 1, max = howfar_contract::LONGEST_NS))]
    pub(crate) measure_ns: u64,
}

/// Rounds, time and CPU of the measured window.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "pingpong")]
#[schemars(title = "PingPong")]
pub(crate) struct PingPong {
    pub(crate) rounds: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) request_bytes: u32,
    pub(crate) reply_bytes: u32,
    /// The smallest step that the clock was seen to make.
    pub(crate) clock_step_ns: u64,
    /// What one reading of it costs.
    pub(crate) clock_read_ns: f64,
    /// From one answer to the next; its kind is `round`.
    pub(crate) histogram: Histogram,
}

impl NullJob {
    /// Check the bounds that the types do not enforce.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        check_rules(&[
            (
                (1..=MAX_THREADS).contains(&self.threads),
                "threads must be 1..1024",
            ),
            (
                self.reply_bytes <= MAX_REPLY_BYTES,
                "reply_bytes must be at most 1048576",
            ),
            (
                self.delay_ns <= MAX_DELAY_NS,
                "delay_ns must be at most a minute",
            ),
        ])
    }
}

impl PingPongJob {
    /// Check the bounds that the types do not enforce.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        check_rules(&[
            (
                (1..=LONGEST_NS).contains(&self.measure_ns),
                "measure_ns must be above 0 and at most a day",
            ),
            (
                self.warmup_ns <= LONGEST_NS,
                "warmup_ns must be at most a day",
            ),
            (
                !matches!(self.target, Target::Tcp { port: 0, .. }),
                "port must be above 0",
            ),
        ])
    }
}

/// Fail with the first rule that does not hold.
pub(crate) fn check_rules(rules: &[(bool, &str)]) -> Result<(), Failed> {
    match rules.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, rule)) => Err(Failed::new(
            FailCode::BadJob,
            format!("the job does not follow the contract: {rule}"),
            "Correct the option that gave this value.",
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use howfar_contract::{Latency, parse_job};
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn read_example(name: &str) -> String {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/examples");
        fs::read_to_string(examples.join(name)).expect("the example exists beside the schemas")
    }

    fn to_json(event: &impl Serialize) -> Value {
        serde_json::to_value(event).expect("the event can be serialized")
    }

    #[test]
    fn the_examples_are_valid_jobs() {
        let job: NullJob =
            parse_job("null", &read_example("job.null.json")).expect("the job is valid");
        job.check().expect("the job is within bounds");
        assert_eq!((job.threads, job.reply_bytes, job.delay_ns), (1, 119, 0));
        assert_eq!(job.flavour, Flavour::Mariadb);
        let job: PingPongJob =
            parse_job("pingpong", &read_example("job.pingpong.json")).expect("the job is valid");
        job.check().expect("the job is within bounds");
    }

    #[test]
    fn bad_jobs_are_refused() {
        for name in ["no-threads", "delay-of-hours"] {
            let text = read_example(&format!("refused/job.null.{name}.json"));
            let job: NullJob = parse_job("null", &text).expect("the job is well formed");
            assert_eq!(job.check().expect_err(name).code, FailCode::BadJob);
        }
        let text = read_example("refused/job.null.unknown-field.json");
        assert!(parse_job::<NullJob>("null", &text).is_err());
    }

    #[test]
    fn events_match_the_examples_of_the_contract() {
        let example = |name| -> Value {
            serde_json::from_str(&read_example(name)).expect("the example is JSON")
        };
        let ready = example("event.null_ready.json");
        assert_eq!(to_json(&NullReady { port: Some(40_123) }), ready);
        assert_eq!(
            to_json(&NullReady { port: None }),
            json!({"event": "null_ready", "port": null})
        );
        let field_names = |value: &Value| -> Vec<String> {
            let fields = value.as_object().expect("the event is an object");
            fields.keys().cloned().collect()
        };
        let result = PingPong {
            rounds: 0,
            elapsed_ns: 0,
            cpu_ns: 0,
            request_bytes: 24,
            reply_bytes: 0,
            clock_step_ns: 0,
            clock_read_ns: 0.0,
            histogram: Latency::new().to_event("round"),
        };
        assert_eq!(
            field_names(&to_json(&result)),
            field_names(&example("event.pingpong.json"))
        );
    }
}
