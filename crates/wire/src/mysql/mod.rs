//! The client side of the MySQL and MariaDB protocol, version 4.1 and later. TLS is a layer below it and not part of this module.
//!
//! [`compress`] is the optional layer below packets, [`frame`] cuts the byte stream into packets, [`handshake`] and [`auth`] log
//! in, [`command`] encodes requests, [`reply`] decodes the replies to login and prepare, [`answer`] follows the answer to a query
//! at the lowest cost, and [`row`] decodes columns. [`server`] encodes the messages that a fake server sends.

pub mod answer;
pub mod auth;
pub mod command;
pub mod compress;
pub mod frame;
pub mod handshake;
mod read;
pub mod reply;
pub mod row;
pub mod server;

pub use answer::{Answer, Outcome};
pub use frame::Framer;
pub use read::Fields;
pub use reply::ServerError;

/// Bytes that do not follow the protocol. Nothing after them can be trusted: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a packet ended before its field `{0}`")]
    Short(&'static str),
    #[error("a packet of {size} bytes, more than the {limit} accepted here")]
    TooLong { size: usize, limit: usize },
    #[error("packet number {received} came where {expected} was due")]
    Sequence { expected: u8, received: u8 },
    #[error("a compressed frame {0}")]
    Compressed(&'static str),
    #[error("the server speaks protocol version {0}, not 10")]
    Version(u8),
    #[error("{0}")]
    Unexpected(&'static str),
}
