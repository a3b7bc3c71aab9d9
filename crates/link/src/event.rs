//! Events that the link and the probes report: one JSON object a line on stdout.

use schemars::JsonSchema;
use serde::Serialize;

/// Segments not delivered, by cause. `queue`, `loss` and `outage` are what was asked; any other voids a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Drops {
    pub(crate) queue: u64,
    pub(crate) loss: u64,
    pub(crate) outage: u64,
    pub(crate) arena: u64,
    /// What the emulator never saw, because a buffer of the kernel's had no
    /// room. Packets, each a segment or a super-packet of many: the kernel tells no more. None: it did not tell at
    /// all.
    pub(crate) socket: Option<u64>,
    pub(crate) transmit: u64,
}

/// Since the link began or since the last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DirectionStats {
    pub(crate) packets: u64,
    pub(crate) segments: u64,
    /// Bytes on the emulated wire: each segment with its Ethernet framing (preamble, FCS, gap: 38 bytes).
    pub(crate) wire_bytes: u64,
    /// Segments that came while the line was up and the queue had room: `loss` is a share of these. Both are
    /// counted when they come.
    pub(crate) admitted: u64,
    pub(crate) drops: Drops,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    /// Segments that left after one that had come later.
    pub(crate) reordered: u64,
    pub(crate) queue_bytes_max: u64,
    /// The most since the counters were last asked for, also without a reset. None: an engine of before.
    #[schemars(with = "Option<u64>", extend("default" = null))]
    pub(crate) queue_bytes_lately: u64,
    /// Below 0: early. None: nothing left, or an engine of before.
    #[schemars(extend("default" = null))]
    pub(crate) lateness_mean_ns: Option<i64>,
    /// How late packets left; 0 for those that left early.
    pub(crate) lateness_p50_ns: u64,
    pub(crate) lateness_p99_ns: u64,
    pub(crate) lateness_p999_ns: u64,
    pub(crate) lateness_max_ns: u64,
    pub(crate) cpu_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Packets pass from now on.
    #[schemars(title = "LinkReady")]
    LinkReady {
        realtime: bool,
        /// Not of the real-time class, but with a short time slice.
        short_slice: bool,
        /// virtio-net headers in force: super-packets are kept.
        offload: bool,
    },
    #[schemars(title = "LinkStats")]
    LinkStats {
        to_server: Box<DirectionStats>,
        to_client: Box<DirectionStats>,
    },
    #[schemars(title = "Listening")]
    Listening { port: u16 },
    #[schemars(title = "RttResult")]
    Rtt {
        count: u64,
        min_ns: u64,
        p50_ns: u64,
        p99_ns: u64,
        max_ns: u64,
    },
    #[schemars(title = "GoodputResult")]
    Goodput {
        bytes: u64,
        elapsed_ns: u64,
        bits_per_second: f64,
        retransmits: Option<u64>,
        congestion_control: String,
        mss: u32,
    },
}

impl Event {
    /// Write the event as one line. A reader that has exited is no error here: stdin ends too, and that ends the job.
    pub(crate) fn emit(&self) {
        let _ = howfar_contract::emit(self);
    }
}
