//! Opens sockets without blocking, by Unix path or numeric address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use howfar_contract::jobs::{Target, socket_address};
use howfar_contract::{FailCode, Failed};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The address of a server, parsed once.
#[derive(Debug, Clone)]
pub(crate) enum Address {
    Unix(net::SocketAddrUnix),
    Tcp(SocketAddr),
}

/// State after the start of a non-blocking connect.
pub(crate) enum ConnectStart {
    Connected(OwnedFd),
    /// In progress; the socket becomes writable when the connect succeeds or fails.
    Pending(OwnedFd),
    /// The server's queue of new connections is full (Unix sockets only): try again.
    Busy,
}

impl Address {
    pub(crate) fn parse(target: &Target) -> Result<Self, Failed> {
        let bad_address = |message: String| {
            Failed::new(
                FailCode::BadJob,
                message,
                "Correct the address of the server.",
            )
        };
        match target {
            Target::Unix { path } => net::SocketAddrUnix::new(path.as_str())
                .map(Self::Unix)
                .map_err(|_| bad_address(format!("`{path}` is no path of a socket: it may have 1 to 107 bytes and no zero byte"))),
            Target::Tcp { host, port } => socket_address(host, *port)
                .map(Self::Tcp)
                .ok_or_else(|| bad_address(format!("`{host}` is no numeric address"))),
        }
    }

    pub(crate) fn family(&self) -> &'static str {
        match self {
            Self::Unix(_) => "unix",
            Self::Tcp(SocketAddr::V4(_)) => "inet",
            Self::Tcp(SocketAddr::V6(_)) => "inet6",
        }
    }

    /// Begin to connect.
    pub(crate) fn connect(&self) -> io::Result<ConnectStart> {
        let family = match self {
            Self::Unix(_) => AddressFamily::UNIX,
            Self::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let socket = net::socket_with(
            family,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )?;
        let connected = match self {
            Self::Unix(address) => net::connect(&socket, address),
            Self::Tcp(address) => {
                // Each query is one small packet that must leave at once.
                sockopt::set_tcp_nodelay(&socket, true)?;
                net::connect(&socket, address)
            }
        };
        match connected {
            Ok(()) => Ok(ConnectStart::Connected(socket)),
            Err(Errno::INPROGRESS) => Ok(ConnectStart::Pending(socket)),
            Err(Errno::AGAIN) => Ok(ConnectStart::Busy),
            Err(error) => Err(error.into()),
        }
    }
}

/// Descriptors needed besides the connections: standard streams, epolls, rings, eventfds, files read for CPU times, and sockets
/// that a ring is about to close while their connections open again.
const OTHER_DESCRIPTORS: u64 = 256;

/// Raise this process's descriptor limit to fit `connections`, within the hard limit.
pub(crate) fn allow_descriptors(connections: u64) -> Result<(), Failed> {
    let needed = connections + OTHER_DESCRIPTORS;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(max) = limit.maximum.filter(|&max| max < needed) {
        return Err(Failed::new(
            FailCode::NotPermitted,
            format!(
                "{connections} connections need {needed} file descriptors, and this process may have {max}"
            ),
            "Raise the limit (ulimit -Hn, or LimitNOFILE of the service), or use fewer connections.",
        ));
    }
    limit.current = Some(needed);
    setrlimit(Resource::Nofile, limit).map_err(|error| {
        Failed::new(
            FailCode::NotPermitted,
            format!("allowing {needed} file descriptors failed: {error}"),
            "Raise the limit (ulimit -n) before starting.",
        )
    })
}

/// The outcome of a pending connect.
pub(crate) fn connect_result(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// Send what the socket takes now, possibly nothing.
#[inline]
pub(crate) fn send_some(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    match net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
