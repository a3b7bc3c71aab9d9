//! The Rust side of the contract with Python: jobs, events, histograms.

/// Raised when a message changes its meaning; a job of another version is refused.
pub const PROTOCOL_VERSION: u32 = 1;
