//! What the kernel knows of a TCP connection.

use std::os::fd::AsFd;

/// Of one connection. `None`: this kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) rtt_ns: u64,
    pub(crate) min_rtt_ns: Option<u64>,
    pub(crate) retransmits: u64,
    pub(crate) busy_ns: Option<u64>,
    pub(crate) rwnd_limited_ns: Option<u64>,
    pub(crate) sndbuf_limited_ns: Option<u64>,
}

/// `None` for a socket that is not TCP.
pub(crate) fn read(_socket: impl AsFd) -> Option<TcpInfo> {
    None
}
