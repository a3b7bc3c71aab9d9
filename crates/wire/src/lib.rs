//! Protocol codecs without I/O: bytes in, messages out. No sockets, no clocks, no threads.
//!
//! Start at [`mysql`].

pub mod mysql;
