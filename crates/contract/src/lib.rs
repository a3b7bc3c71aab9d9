//! The Rust side of the contract with Python: jobs come in, events go out, histograms travel inside them.
//!
//! Not here: what a job means. Start at [`jobs::LoadJob`] and [`events`]; [`emit`] writes an event, [`read_job`] reads a job, [`report`] ends one.

mod bounds;
pub mod events;
pub mod histogram;
pub mod jobs;
mod schema;
mod stream;

pub use events::{FailCode, Failed, internal};
pub use histogram::Latency;
pub use schema::Contract;
pub use stream::{emit, parse_job, read_begin, read_command, read_job, report, tell};

/// Raised when a message changes its meaning; a job of another version is refused.
pub const PROTOCOL_VERSION: u32 = 2;

/// A day: no field names a longer time. What is longer is a mistake of a unit.
pub const LONGEST_NS: u64 = 86_400_000_000_000;
