//! What the link and the probes say: one JSON object a line on stdout.

use std::io::Write;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    BadJob,
    Connect,
    Protocol,
    Stalled,
    NotPermitted,
    Interface,
    Internal,
}

/// Why a job ended without a result: what was tried, what came back, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) advice: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn bad_job(message: impl Into<String>) -> Self {
        Self::new(
            Code::BadJob,
            message,
            "Run ./setup again, so that both halves of howfar are of one version.",
        )
    }
}

/// Segments that did not arrive, by cause. `queue`, `loss` and `outage` are properties of the link; any other spoils a trial.
/// Only of `socket` the kernel tells packets, each a segment or a super-packet of many; None: it does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Drops {
    pub(crate) queue: u64,
    pub(crate) loss: u64,
    pub(crate) outage: u64,
    pub(crate) arena: u64,
    pub(crate) socket: Option<u64>,
    pub(crate) transmit: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionStats {
    pub(crate) packets: u64,
    pub(crate) segments: u64,
    pub(crate) wire_bytes: u64,
    /// Segments that were let onto the line: what an outage or the queue took is not among them, what the line lost is.
    pub(crate) admitted: u64,
    pub(crate) drops: Drops,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    pub(crate) reordered: u64,
    pub(crate) queue_bytes_max: u64,
    pub(crate) queue_bytes_lately: u64,
    pub(crate) lateness_p50_ns: u64,
    pub(crate) lateness_p99_ns: u64,
    pub(crate) lateness_p999_ns: u64,
    pub(crate) lateness_max_ns: u64,
    pub(crate) cpu_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    LinkReady {
        realtime: bool,
        short_slice: bool,
        offload: bool,
    },
    LinkStats {
        to_server: Box<DirectionStats>,
        to_client: Box<DirectionStats>,
    },
    Listening {
        port: u16,
    },
    Rtt {
        count: u64,
        min_ns: u64,
        p50_ns: u64,
        p99_ns: u64,
        max_ns: u64,
    },
    Goodput {
        bytes: u64,
        elapsed_ns: u64,
        bits_per_second: f64,
        retransmits: Option<u64>,
        congestion_control: String,
        mss: u32,
    },
    Failed(Failure),
}

impl Event {
    /// Write it as one line and flush. A reader that has gone is no error here: stdin ends too, and that ends the job.
    pub(crate) fn emit(&self) {
        let mut line = serde_json::to_vec(self).expect("an event is always valid JSON");
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}
