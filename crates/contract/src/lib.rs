//! The Rust side of the contract with Python: jobs are read, and events, some with histograms, are written.
//!
//! Other crates run the jobs. Start at [`jobs::LoadJob`] and [`events`]; [`emit`] writes an event, [`read_job`] reads a job, [`report`]
//! ends one.

mod bounds;
pub mod events;
pub mod histogram;
pub mod jobs;
mod schema;
mod stream;

pub use events::{FailCode, Failed, internal};
pub use histogram::Latency;
pub use schema::Contract;
pub use stream::{emit, emit_or_fail, parse_job, read_begin, read_command, read_job, report};

/// Version of the contract, raised when a message changes its meaning. A job of another version is refused.
pub const PROTOCOL_VERSION: u32 = 2;

/// Maximum of every field with a time: a day. A longer time is assumed to have the wrong unit.
pub const LONGEST_NS: u64 = 86_400_000_000_000;
