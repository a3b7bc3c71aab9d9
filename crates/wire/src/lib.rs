//! Protocol codecs without I/O: bytes in, messages out. No sockets, no clocks, no threads.
//!
//! Start at [`mysql`], [`postgres`], [`redis`], [`memcached`] or [`fastcgi`]. Redis and Memcached share [`keyvalue`].

mod error_code;
pub mod fastcgi;
pub mod keyvalue;
pub mod memcached;
pub mod mysql;
pub mod postgres;
pub mod recognise;
pub mod redis;
pub mod sql;

pub use error_code::ErrorCode;

/// Move bytes from the front of `input` to `kept`, until `kept` has `length` bytes.
fn keep_up_to(kept: &mut Vec<u8>, length: usize, input: &mut &[u8]) {
    let (part, rest) = input.split_at(length.saturating_sub(kept.len()).min(input.len()));
    kept.extend_from_slice(part);
    *input = rest;
}
