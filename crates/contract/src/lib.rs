//! The messages between Python and the Rust engine. Python sends a job; the engine answers with events.
//!
//! Other crates run the jobs. Start reading at [`jobs::LoadJob`] and [`events`]. [`read_job`] reads a job, [`emit`] writes an event,
//! and [`report`] writes the final error, if any.

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

/// Version of the messages, increased whenever a message changes its meaning. The engine refuses a job that has another version.
pub const PROTOCOL_VERSION: u32 = 2;

/// Maximum value of every field that holds a time: one day in nanoseconds. A longer time probably has the wrong unit.
pub const LONGEST_NS: u64 = 86_400_000_000_000;
