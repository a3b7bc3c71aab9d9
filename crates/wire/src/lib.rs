//! Protocol codecs without I/O: bytes in, messages out. No sockets, no clocks, no threads.
//!
//! Start at [`mysql`], [`redis`] or [`memcached`]. The last two share [`keyvalue`].

pub mod keyvalue;
pub mod memcached;
pub mod mysql;
pub mod redis;
