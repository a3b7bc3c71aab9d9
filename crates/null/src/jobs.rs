//! The jobs and events of this crate, as `messages.py` defines them. Closed: an unknown field is a contract broken.

use howfar_record::events::Histogram;
use howfar_record::jobs::Target;
use howfar_record::{FailCode, Failed};
use serde::{Deserialize, Serialize};

/// Longest time any field may name: a day.
const LONGEST_NS: u64 = 86_400_000_000_000;
/// Longest service time that can be asked for.
const LONGEST_DELAY_NS: u64 = 60_000_000_000;
/// More threads than any machine of today has CPUs.
const MOST_THREADS: u32 = 1024;
/// Longest column of an answer: one packet holds it, and a worker's buffer a few of them.
const LONGEST_REPLY: u32 = 1 << 20;

/// Whose bytes are spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Flavour {
    /// Leaves definitions out that the client has from the prepare.
    #[default]
    Mariadb,
    Mysql,
}

/// Listen and answer from canned bytes until stdin ends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NullJob {
    #[serde(rename = "job")]
    _job: String,
    #[serde(rename = "version")]
    _version: u32,
    pub(crate) listen: Target,
    #[serde(default = "one")]
    pub(crate) threads: u32,
    #[serde(default = "sysbench_column")]
    pub(crate) reply_bytes: u32,
    #[serde(default)]
    pub(crate) delay_ns: u64,
    #[serde(default)]
    pub(crate) flavour: Flavour,
}

const fn one() -> u32 {
    1
}

/// The column `c` of sysbench's tables.
const fn sysbench_column() -> u32 {
    119
}

/// Clients may connect.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "event", rename = "null_ready")]
pub(crate) struct NullReady {
    pub(crate) port: Option<u16>,
}

/// Send and receive the same bytes on one connection, without anything around it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PingPongJob {
    #[serde(rename = "job")]
    _job: String,
    #[serde(rename = "version")]
    _version: u32,
    pub(crate) target: Target,
    pub(crate) warmup_ns: u64,
    pub(crate) measure_ns: u64,
}

/// The result. Rounds, time and CPU are of the measured window.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "pingpong")]
pub(crate) struct PingPong {
    pub(crate) rounds: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) request_bytes: u32,
    pub(crate) reply_bytes: u32,
    pub(crate) clock_step_ns: u64,
    pub(crate) clock_read_ns: f64,
    pub(crate) histogram: Histogram,
}

impl NullJob {
    /// The bounds that the types do not hold.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        held(&[
            (
                (1..=MOST_THREADS).contains(&self.threads),
                "threads must be 1..1024",
            ),
            (
                self.reply_bytes <= LONGEST_REPLY,
                "reply_bytes must be at most 1048576",
            ),
            (
                self.delay_ns <= LONGEST_DELAY_NS,
                "delay_ns must be at most a minute",
            ),
        ])
    }
}

impl PingPongJob {
    /// The bounds that the types do not hold.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        held(&[
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

fn held(rules: &[(bool, &str)]) -> Result<(), Failed> {
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
mod tests {
    use std::fs;
    use std::path::Path;

    use howfar_record::{Latency, parse_job};
    use serde_json::{Value, json};

    use super::*;

    fn text(name: &str) -> String {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/examples");
        fs::read_to_string(examples.join(name)).expect("an example beside the schemas")
    }

    fn written(event: &impl Serialize) -> Value {
        serde_json::to_value(event).expect("plain data")
    }

    #[test]
    fn the_examples_are_read() {
        let job: NullJob = parse_job("null", &text("job.null.json")).expect("a good job");
        job.check().expect("in bounds");
        assert_eq!((job.threads, job.reply_bytes, job.delay_ns), (1, 119, 0));
        assert_eq!(job.flavour, Flavour::Mariadb);
        let job: PingPongJob =
            parse_job("pingpong", &text("job.pingpong.json")).expect("a good job");
        job.check().expect("in bounds");
    }

    #[test]
    fn bad_jobs_are_refused() {
        for name in ["no-threads", "delay-of-hours"] {
            let job: NullJob = parse_job("null", &text(&format!("refused/job.null.{name}.json")))
                .expect("well formed");
            assert_eq!(job.check().expect_err(name).code, FailCode::BadJob);
        }
        let text = text("refused/job.null.unknown-field.json");
        assert!(parse_job::<NullJob>("null", &text).is_err());
    }

    #[test]
    fn events_are_written_as_the_contract_has_them() {
        let ready: Value = serde_json::from_str(&text("event.null_ready.json")).expect("JSON");
        assert_eq!(written(&NullReady { port: Some(40_123) }), ready);
        assert_eq!(
            written(&NullReady { port: None }),
            json!({"event": "null_ready", "port": null})
        );
        let result: Value = serde_json::from_str(&text("event.pingpong.json")).expect("JSON");
        let names = |value: &Value| -> Vec<String> {
            value.as_object().expect("a map").keys().cloned().collect()
        };
        let ours = PingPong {
            rounds: 0,
            elapsed_ns: 0,
            cpu_ns: 0,
            request_bytes: 24,
            reply_bytes: 0,
            clock_step_ns: 0,
            clock_read_ns: 0.0,
            histogram: Latency::new().event("round"),
        };
        assert_eq!(names(&written(&ours)), names(&result));
    }
}
