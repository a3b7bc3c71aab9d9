//! The kernel's state of a TCP connection: the fields of `TCP_INFO` that a load generator can use.

use std::os::fd::AsFd;

use crate::sockopt::get_option;

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

/// Read the state of a connection. `None` for a socket that is not TCP, and where a user-mode emulator hides the values.
pub(crate) fn read(socket: impl AsFd) -> Option<TcpInfo> {
    let (bytes, length) = fetch(socket)?;
    parse(bytes.get(..length)?)
}

/// The kernel's structure, and the number of its bytes that were filled.
fn fetch(socket: impl AsFd) -> Option<([u8; STRUCT_BYTES], usize)> {
    let zeros = [0_u8; STRUCT_BYTES];
    get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, zeros)
}

/// The fields that the kernel filled.
fn parse(bytes: &[u8]) -> Option<TcpInfo> {
    let to_ns = |value: u64| value * NS_PER_US;
    Some(TcpInfo {
        rtt_ns: to_ns(u64::from(read_u32(bytes, RTT_US)?)),
        min_rtt_ns: read_u32(bytes, MIN_RTT_US)
            .filter(|&rtt| rtt != NO_MIN_RTT)
            .map(|rtt| to_ns(u64::from(rtt))),
        retransmits: u64::from(read_u32(bytes, TOTAL_RETRANS)?),
        path_mtu: read_u32(bytes, PATH_MTU)?,
        busy_ns: read_u64(bytes, BUSY_US).map(to_ns),
        rwnd_limited_ns: read_u64(bytes, RWND_LIMITED_US).map(to_ns),
        sndbuf_limited_ns: read_u64(bytes, SNDBUF_LIMITED_US).map(to_ns),
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
    fn a_used_connection_has_values() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it connects");
        let (mut server, _) = listener.accept().expect("it accepts");
        let mut byte = [0];
        for _ in 0..10 {
            client.write_all(&[1]).expect("it is sent");
            server.read_exact(&mut byte).expect("it arrives");
            server.write_all(&byte).expect("it is sent");
            client.read_exact(&mut byte).expect("it arrives");
        }
        let (_, filled) = fetch(&client).expect("it is TCP");
        if filled < RTT_US {
            assert_eq!(read(&client), None, "an emulator fills a few bytes only");
            return;
        }
        let info = read(&client).expect("it is TCP");
        assert!(info.rtt_ns > 0, "{info:?}");
        assert!(info.min_rtt_ns.is_some_and(|rtt| rtt > 0), "{info:?}");
        assert!(info.busy_ns.is_some(), "{info:?}");
    }

    #[test]
    fn a_unix_socket_has_no_values() {
        let (socket, _peer) = UnixStream::pair().expect("a pair opens");
        assert_eq!(read(&socket), None);
    }

    #[test]
    fn an_older_kernel_reports_fewer_values() {
        let mut bytes = [0_u8; STRUCT_BYTES];
        bytes[RTT_US..RTT_US + 4].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[MIN_RTT_US..MIN_RTT_US + 4].copy_from_slice(&NO_MIN_RTT.to_ne_bytes());
        let old = parse(&bytes[..104]).expect("it has the oldest fields");
        assert_eq!((old.rtt_ns, old.busy_ns), (7000, None));
        let new = parse(&bytes).expect("it has all fields");
        assert_eq!((new.min_rtt_ns, new.busy_ns), (None, Some(0)));
        assert_eq!(parse(&bytes[..50]), None);
    }
}
