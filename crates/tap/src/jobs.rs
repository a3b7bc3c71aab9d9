//! The job, the command and the events of the tap. Closed: an unknown field is a contract broken.

use howfar_contract::jobs::{Listen, Target};
use howfar_contract::{FailCode, Failed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest round trip that can be added.
const LONGEST_DELAY_NS: u64 = 60_000_000_000;

/// Pass connections on to a server, with an added delay a round trip. Lives until stdin ends.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TapJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "tap"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) listen: Listen,
    /// Everybody may connect to the listening socket: the server itself decides who may.
    pub(crate) server: Target,
}

/// Take the counts and begin new ones, with another delay.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TapDelay {
    #[serde(rename = "command")]
    #[schemars(extend("const" = "tap_delay"))]
    _command: String,
    /// Added to each round trip, half of it in each direction.
    #[schemars(range(max = 60_000_000_000_u64))]
    pub(crate) delay_ns: u64,
}

impl TapDelay {
    /// Read a command.
    pub(crate) fn parse(line: &str) -> Result<Self, Failed> {
        let command: Self = serde_json::from_str(line).map_err(|error| {
            Failed::bad_job(format!("the command does not follow the contract: {error}"))
        })?;
        if command.delay_ns > LONGEST_DELAY_NS {
            return Err(Failed::new(
                FailCode::BadJob,
                "the job does not follow the contract: delay_ns must be at most a minute"
                    .to_owned(),
                "Correct the option that gave this value.",
            ));
        }
        Ok(command)
    }
}

/// Clients may connect.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tap_ready")]
#[schemars(title = "TapReady")]
pub(crate) struct TapReady {
    /// None: a Unix socket.
    pub(crate) port: Option<u16>,
}

/// What passed since the last command.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tap_counts")]
#[schemars(title = "TapCounts")]
pub(crate) struct TapCounts {
    pub(crate) connections: u64,
    /// Connections that the tap could not make to the server, and why the last one failed.
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
    /// Connections that are open now.
    pub(crate) open: u64,
    /// A run of bytes to the server that bytes to the client answer.
    pub(crate) round_trips: u64,
    pub(crate) bytes_to_server: u64,
    pub(crate) bytes_to_client: u64,
    /// How long a round trip was held in both directions together, in the mean; 0 without one.
    pub(crate) held_ns: u64,
}
