//! The web server's side of FastCGI 1.0: one request at a time to a responder, and its reply. Not implemented: roles other than the
//! responder, several requests over one connection at once (applications refuse them), queries for an application's limits.
//!
//! Start at [`write_request`] and [`Reply`].

mod cgi;
mod record;
mod reply;
mod request;

pub use cgi::{MAX_EXCERPT_BYTES, MAX_HEADER_BYTES, Response};
pub use reply::{End, ProtocolStatus, Reply};
pub use request::write_request;

/// The only version of the protocol.
const VERSION: u8 = 1;
/// The id of every request: a connection carries one at a time.
const REQUEST_ID: u16 = 1;
/// Bytes before the content of a record.
const HEADER_LEN: usize = 8;
/// Maximum content of a record.
const MAX_CONTENT_BYTES: usize = u16::MAX as usize;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Bytes that do not follow the protocol. Nothing after them can be trusted: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a record of version {0}")]
    Version(u8),
    #[error("a record of type {0}")]
    Kind(u8),
    #[error("a record of request {0}, where {REQUEST_ID} was sent")]
    Request(u16),
    #[error("an end of {0} bytes, not of 8")]
    End(u16),
    #[error("protocol status {0}")]
    Status(u8),
    #[error("headers of more than {MAX_HEADER_BYTES} bytes")]
    LongHeaders,
    #[error("{0}")]
    Unexpected(&'static str),
}
