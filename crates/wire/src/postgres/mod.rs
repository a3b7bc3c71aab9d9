//! The client side of PostgreSQL's protocol, version 3.0. TLS is a layer below it and not part of this module.
//!
//! [`frame`] cuts the byte stream into messages, [`auth`] proves a password, [`request`] encodes requests, [`reply`] decodes single
//! messages, and [`answer`] follows the answer to a request at the lowest cost.

pub mod answer;
pub mod auth;
pub mod frame;
pub mod reply;
pub mod request;

pub use answer::{Answer, Outcome};
pub use frame::Framer;

/// Bytes that do not follow the protocol. Nothing after them can be trusted: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a message ended before its field `{0}`")]
    Short(&'static str),
    #[error("a message of {size} bytes, more than the {limit} accepted here")]
    TooLong { size: usize, limit: usize },
    #[error("a message of length {0}, which is less than its own header")]
    Length(i32),
    #[error("a message of type {:?}, which does not belong there", char::from(*.0))]
    Kind(u8),
    /// The message is valid, but this client has no rows to send.
    #[error("it asks for the rows of a COPY")]
    CopyIn,
    #[error("{0}")]
    Unexpected(&'static str),
}
