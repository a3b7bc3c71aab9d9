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

/// Move bytes from the front of `input` to `buffer`, until `buffer` has `length` bytes.
fn fill_up_to(buffer: &mut Vec<u8>, length: usize, input: &mut &[u8]) {
    let (part, rest) = input.split_at(length.saturating_sub(buffer.len()).min(input.len()));
    buffer.extend_from_slice(part);
    *input = rest;
}

/// The bytes of `left` xor those of `right`, as many as the shorter one has.
fn xor(left: &[u8], right: impl IntoIterator<Item = u8>) -> Vec<u8> {
    left.iter()
        .zip(right)
        .map(|(left, right)| left ^ right)
        .collect()
}
