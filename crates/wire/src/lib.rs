//! Protocol codecs without I/O: bytes in, messages out. No sockets, no clocks, no threads.
//!
//! Start at [`mysql`], [`postgres`], [`redis`], [`memcached`] or [`fastcgi`]. Redis and Memcached share [`keyvalue`].

mod error_code;
pub mod fastcgi;
pub mod keyvalue;
pub mod memcached;
pub mod mysql;
pub mod postgres;
pub mod redis;

pub use error_code::ErrorCode;
