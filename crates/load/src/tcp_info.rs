//! The kernel's state of a TCP connection: the fields of `TCP_INFO` that a load generator can use.
#![allow(unsafe_code)] // getsockopt takes a pointer and the length of what it may fill; this file holds nothing else

use std::os::fd::{AsFd, AsRawFd};

/// Length of the kernel's structure up to and including `tcpi_sndbuf_limited`, the last field that is read here.
const STRUCT_BYTES: usize = 192;
/// Offsets of fields. The structure only ever grows at its end: older kernels fill less of it.
const PATH_MTU: usize = 60;
const RTT_US: usize = 68;
const TOTAL_RETRANS: usize = 100;
const MIN_RTT_US: usize = 148;
const BUSY_US: usize = 168;
const RWND_LIMITED_US: usize = 176;
const SNDBUF_LIMITED_US: usize = 184;
/// The kernel's value before it has seen a round trip.
const NO_MIN_RTT: u32 = u32::MAX;
const NS_PER_US: u64 = 1000;

/// Values since the connection began. `None` if this kernel does not report a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time.
    pub(crate) rtt_ns: u64,
    pub(crate) min_rtt_ns: Option<u64>,
    /// Retransmitted segments.
    pub(crate) retransmits: u64,
    /// Bytes of the largest packet that the path is known to carry.
    pub(crate) path_mtu: u32,
    /// Time with data in flight or waiting to be sent; the next two are parts of it.
    pub(crate) busy_ns: Option<u64>,
    pub(crate) rwnd_limited_ns: Option<u64>,
    pub(crate) sndbuf_limited_ns: Option<u64>,
}

/// `None` for a socket that is not TCP, and where a user-mode emulator hides the values.
pub(crate) fn read(socket: impl AsFd) -> Option<TcpInfo> {
    let (bytes, length) = fetch(socket)?;
    parse(bytes.get(..length)?)
}

/// The kernel's structure, and how many of its bytes were filled.
fn fetch(socket: impl AsFd) -> Option<([u8; STRUCT_BYTES], usize)> {
    let mut bytes = [0_u8; STRUCT_BYTES];
    let mut length = STRUCT_BYTES as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length` bytes into an array of that length,
    // for which any bytes are a value.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (answer == 0).then_some((bytes, length as usize))
}

/// The fields that the kernel filled.
fn parse(bytes: &[u8]) -> Option<TcpInfo> {
    let us = |value: u64| value * NS_PER_US;
    Some(TcpInfo {
        rtt_ns: us(u64::from(read_u32(bytes, RTT_US)?)),
        min_rtt_ns: read_u32(bytes, MIN_RTT_US)
            .filter(|&rtt| rtt != NO_MIN_RTT)
            .map(|rtt| us(u64::from(rtt))),
        retransmits: u64::from(read_u32(bytes, TOTAL_RETRANS)?),
        path_mtu: read_u32(bytes, PATH_MTU)?,
        busy_ns: read_u64(bytes, BUSY_US).map(us),
        rwnd_limited_ns: read_u64(bytes, RWND_LIMITED_US).map(us),
        sndbuf_limited_ns: read_u64(bytes, SNDBUF_LIMITED_US).map(us),
    })
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(part.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(part.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_that_was_used_tells() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (mut far, _) = listener.accept().expect("accepts");
        let mut byte = [0];
        for _ in 0..10 {
            near.write_all(&[1]).expect("sent");
            far.read_exact(&mut byte).expect("received");
            far.write_all(&byte).expect("answered");
            near.read_exact(&mut byte).expect("received");
        }
        let (_, filled) = fetch(&near).expect("TCP");
        if filled < RTT_US {
            assert_eq!(read(&near), None, "an emulator fills a few bytes only");
            return;
        }
        let info = read(&near).expect("TCP");
        assert!(info.rtt_ns > 0, "{info:?}");
        assert!(info.min_rtt_ns.is_some_and(|rtt| rtt > 0), "{info:?}");
        assert!(info.busy_ns.is_some(), "{info:?}");
    }

    #[test]
    fn a_unix_socket_has_none() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(read(&one), None);
    }

    #[test]
    fn an_older_kernel_tells_less() {
        let mut bytes = [0_u8; STRUCT_BYTES];
        bytes[RTT_US..RTT_US + 4].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[MIN_RTT_US..MIN_RTT_US + 4].copy_from_slice(&NO_MIN_RTT.to_ne_bytes());
        let old = parse(&bytes[..104]).expect("the oldest fields");
        assert_eq!((old.rtt_ns, old.busy_ns), (7000, None));
        let new = parse(&bytes).expect("all fields");
        assert_eq!((new.min_rtt_ns, new.busy_ns), (None, Some(0)));
        assert_eq!(parse(&bytes[..50]), None);
    }
}
