//! The link's job and the later commands, as they come on stdin.

use std::num::NonZeroU64;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effects::Nanos;
use crate::effects::random_stream::RandomStream;

mod effects;

pub(crate) use effects::{Jitter, Loss, Outage, RateStep};

/// One direction of a link. `delay_ns` is what the user set (half the RTT); `compensate_ns` is taken off it by
/// calibration.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Direction {
    /// Which of the two it is, from the field of the message that it lies in: they draw numbers of their own.
    #[serde(skip)]
    pub(crate) name: &'static str,
    /// None: unshaped, or given by `rate_trace`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(crate) rate_bps: Option<NonZeroU64>,
    /// A rate that changes: the steps follow each other and begin anew after the last. At least one has a rate.
    #[serde(default)]
    #[schemars(length(max = 100_000))]
    pub(crate) rate_trace: Vec<RateStep>,
    /// The delay requested.
    #[schemars(range(max = 60_000_000_000_u64))]
    pub(crate) delay_ns: u64,
    /// Taken off the delay: what the way costs without any.
    #[serde(default)]
    pub(crate) compensate_ns: i64,
    /// Limit of the queue before the bottleneck, in wire bytes.
    #[schemars(range(min = 1, max = 68_719_476_736_u64))]
    pub(crate) queue_bytes: u64,
    #[serde(default)]
    pub(crate) jitter: Option<Jitter>,
    /// May jitter let a later packet overtake? Otherwise it waits for the one before.
    #[serde(default)]
    pub(crate) reorder: bool,
    #[serde(default)]
    pub(crate) loss: Option<Loss>,
    /// Chance of a segment to arrive twice.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) duplicate: f64,
    /// Chance of a segment to arrive with one bit turned over.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) corrupt: f64,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub(crate) outages: Vec<Outage>,
    /// Seed of all random decisions.
    #[serde(default)]
    pub(crate) seed: u64,
}

/// One minute: a longer delay is a mistaken unit, and would need more memory than is available.
const MAX_DELAY: u64 = 60_000_000_000;
/// 1 Tb/s.
const MAX_RATE: u64 = 1_000_000_000_000;
const MAX_QUEUE: u64 = 64 << 30;

impl Direction {
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.rate_bps.map(NonZeroU64::get)
    }

    /// The delay after compensation, never below zero.
    pub(crate) fn effective_delay(&self) -> Nanos {
        let delay = i128::from(self.delay_ns) - i128::from(self.compensate_ns);
        delay.clamp(0, i128::from(MAX_DELAY)) as u64
    }

    /// The highest rate of the direction at any time; None if unshaped.
    pub(crate) fn max_rate(&self) -> Option<u64> {
        let steps = self.rate_trace.iter().map(|step| step.rate_bps);
        steps.chain(self.rate_bps()).max()
    }

    /// The random numbers of one effect that has begun `times_begun` times before.
    pub(crate) fn random_stream(&self, effect: &str, times_begun: u64) -> RandomStream {
        let name = format!("{}.{effect}", self.name);
        if times_begun == 0 {
            RandomStream::new(self.seed, &name)
        } else {
            RandomStream::new(self.seed, &format!("{name}.{times_begun}"))
        }
    }

    /// Set the direction's name and check the request.
    fn check(&mut self, name: &'static str) -> Result<(), String> {
        self.name = name;
        if self.delay_ns > MAX_DELAY {
            return Err(format!(
                "{name}.delay_ns is {}, more than a minute",
                self.delay_ns
            ));
        }
        if self.rate_bps().is_some_and(|rate| rate > MAX_RATE) {
            return Err(format!("{name}.rate_bps is above 1 Tb/s"));
        }
        if self.queue_bytes == 0 || self.queue_bytes > MAX_QUEUE {
            return Err(format!(
                "{name}.queue_bytes is {}, not in 1 .. 64 GiB",
                self.queue_bytes
            ));
        }
        if self.rate_bps.is_some() && !self.rate_trace.is_empty() {
            return Err(format!("{name} has both a rate and a trace of rates"));
        }
        self.check_effects()
            .map_err(|error| format!("{name}.{error}"))
    }

    fn check_effects(&self) -> Result<(), String> {
        effects::check_trace(&self.rate_trace, MAX_RATE)?;
        self.jitter.as_ref().map_or(Ok(()), Jitter::check)?;
        self.loss.as_ref().map_or(Ok(()), Loss::check)?;
        effects::check_chance("duplicate", self.duplicate)?;
        effects::check_chance("corrupt", self.corrupt)?;
        self.outages.iter().try_for_each(|outage| outage.check())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Realtime {
    /// A real-time class when permitted, else a short slice.
    #[default]
    Auto,
    Off,
}

/// The job's name, as a type: any other name does not parse.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LinkName {
    Link,
}

/// Join two packet interfaces of the present network namespace. Lives until stdin ends.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "link"))]
    _job: LinkName,
    #[schemars(extend("const" = 2))]
    version: u32,
    pub(crate) client_interface: String,
    pub(crate) server_interface: String,
    pub(crate) to_server: Direction,
    pub(crate) to_client: Direction,
    #[serde(default)]
    pub(crate) realtime: Realtime,
}

impl LinkJob {
    /// Parse and check one line. An error is a message for the user.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut job: Self = serde_json::from_str(line)
            .map_err(|error| format!("the link job does not parse: {error}"))?;
        check_version(job.version)?;
        job.to_server.check("to_server")?;
        job.to_client.check("to_client")?;
        if job.client_interface == job.server_interface {
            return Err(format!(
                "client_interface and server_interface are both {}",
                job.client_interface
            ));
        }
        Ok(job)
    }
}

/// A later line on stdin.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Command {
    /// A later line on the link's stdin: change parameters without losing a packet.
    #[schemars(title = "SetLink")]
    Set {
        to_server: Box<Direction>,
        to_client: Box<Direction>,
    },
    /// A later line on the link's stdin: answer with a `link_stats` event. `reset` starts the counters anew after
    /// it.
    #[schemars(title = "AskStats")]
    Stats {
        #[serde(default)]
        reset: bool,
    },
}

impl Command {
    /// Parse and check one line. An error is a message for the user.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut command: Self = serde_json::from_str(line)
            .map_err(|error| format!("the link command does not parse: {error}"))?;
        if let Self::Set {
            to_server,
            to_client,
        } = &mut command
        {
            to_server.check("to_server")?;
            to_client.check("to_client")?;
        }
        Ok(command)
    }
}

/// Refuse a job of another contract version.
pub(crate) fn check_version(version: u32) -> Result<(), String> {
    const CONTRACT_VERSION: u32 = 2;
    if version == CONTRACT_VERSION {
        return Ok(());
    }
    Err(format!(
        "the job speaks contract {version}, this engine speaks {CONTRACT_VERSION}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTION: &str =
        r#"{"rate_bps":1000000000,"delay_ns":100000,"compensate_ns":7000,"queue_bytes":1250000}"#;

    fn job(to_client: &str) -> String {
        format!(
            r#"{{"job":"link","version":2,"client_interface":"lc","server_interface":"ls","to_server":{DIRECTION},"to_client":{to_client},"realtime":"auto"}}"#
        )
    }

    #[test]
    fn a_job_parses() {
        let job = LinkJob::parse(&job(
            r#"{"rate_bps":null,"delay_ns":5,"compensate_ns":9,"queue_bytes":1}"#,
        ))
        .expect("the job is valid");
        assert_eq!(job.to_server.effective_delay(), 93_000);
        assert_eq!(job.to_server.rate_bps(), Some(1_000_000_000));
        assert_eq!(
            (job.to_client.rate_bps(), job.to_client.effective_delay()),
            (None, 0)
        );
    }

    #[test]
    fn invalid_jobs_are_refused() {
        for (direction, word) in [
            (r#"{"rate_bps":0,"delay_ns":5,"queue_bytes":1}"#, "nonzero"),
            (
                r#"{"rate_bps":9,"delay_ns":5,"queue_bytes":0}"#,
                "queue_bytes",
            ),
            (r#"{"rate_bps":9,"delay_ns":-5,"queue_bytes":9}"#, "parse"),
            (
                r#"{"rate_bps":9,"delay_ns":5,"queue_bytes":9,"lost":1}"#,
                "lost",
            ),
            (
                r#"{"rate_bps":9,"delay_ns":5,"queue_bytes":9,"duplicate":1.5}"#,
                "to_client.duplicate",
            ),
            (
                r#"{"rate_bps":9,"delay_ns":99999999999,"queue_bytes":9}"#,
                "minute",
            ),
        ] {
            let error = LinkJob::parse(&job(direction)).expect_err(direction);
            assert!(error.contains(word), "{error}");
        }
        let other_version = job(DIRECTION).replace(r#""version":2"#, r#""version":3"#);
        assert!(
            LinkJob::parse(&other_version)
                .expect_err("the version is unknown")
                .contains("contract 3")
        );
    }

    /// Rust accepts the examples of the contract and refuses those that Python refuses.
    #[test]
    fn the_contract_examples_parse_or_are_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/examples");
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).expect(name);
        let job = LinkJob::parse(&read("job.link.effects.json")).expect("the job is valid");
        assert_eq!(job.to_server.seed, u64::MAX);
        assert_eq!(job.to_server.outages.len(), 2);
        assert!(LinkJob::parse(&read("job.link.json")).is_ok());
        assert!(Command::parse(&read("command.set.effects.json")).is_ok());
        for entry in
            std::fs::read_dir(format!("{folder}/refused")).expect("the folder of examples exists")
        {
            let name = entry
                .expect("the folder is readable")
                .file_name()
                .into_string()
                .expect("the name is UTF-8");
            if name.starts_with("job.link.") {
                assert!(
                    LinkJob::parse(&read(&format!("refused/{name}"))).is_err(),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn commands_parse() {
        assert!(matches!(
            Command::parse(r#"{"command":"stats","reset":true}"#),
            Ok(Command::Stats { reset: true })
        ));
        let set = format!(r#"{{"command":"set","to_server":{DIRECTION},"to_client":{DIRECTION}}}"#);
        assert!(matches!(Command::parse(&set), Ok(Command::Set { .. })));
        assert!(Command::parse(r#"{"command":"stop"}"#).is_err());
    }
}
