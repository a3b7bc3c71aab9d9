//! Opens sockets that listen on, or connect to, a path or a numeric address.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use howfar_contract::jobs::{Target, parse_numeric_address};
use howfar_contract::{FailCode, Failed};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Number of connections that may wait to be accepted; the kernel may lower it to its own limit.
const ACCEPT_QUEUE: i32 = 4096;
/// Maximum time of a connect, and of each later read or write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Remove the socket file that [`listen`] made, if any.
pub(crate) fn remove_socket_file(target: &Target) {
    if let Target::Unix { path } = target {
        // An error means that the file is already gone.
        let _ = fs::remove_file(path);
    }
}

/// Open a non-blocking listening socket; returns it with its port, if it has one.
pub(crate) fn listen(target: &Target) -> Result<(OwnedFd, Option<u16>), Failed> {
    let result = match target {
        Target::Unix { path } => SocketAddrUnix::new(path.as_str())
            .map_err(io::Error::from)
            .and_then(|address| open_listener(AddressFamily::UNIX, &address)),
        Target::Tcp { host, port } => {
            let address = SocketAddr::new(parse_numeric_address(host)?, *port);
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            open_listener(family, &address)
        }
    };
    result.map_err(|error| {
        Failed::new(
            FailCode::Connect,
            format!("the null server cannot listen on {}: {error}", target_name(target)),
            "Give it a path that does not exist yet in a directory that does, or an address of this host and port 0.",
        )
    })
}

fn open_listener(
    family: AddressFamily,
    address: &impl SocketAddrArg,
) -> io::Result<(OwnedFd, Option<u16>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    if family != AddressFamily::UNIX {
        // Accepted sockets inherit this option: each answer is one small packet that must leave at once.
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    net::bind(&socket, address)?;
    net::listen(&socket, ACCEPT_QUEUE)?;
    let bound = SocketAddr::try_from(net::getsockname(&socket)?);
    Ok((socket, bound.ok().map(|address| address.port())))
}

/// Open a connected, blocking socket; each call blocks for at most ten seconds.
pub(crate) fn connect(target: &Target) -> Result<OwnedFd, Failed> {
    let result: io::Result<OwnedFd> = match target {
        Target::Unix { path } => UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            stream.set_write_timeout(Some(IO_TIMEOUT))?;
            Ok(stream.into())
        }),
        Target::Tcp { host, port } => {
            let address = SocketAddr::new(parse_numeric_address(host)?, *port);
            TcpStream::connect_timeout(&address, IO_TIMEOUT).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                stream.set_write_timeout(Some(IO_TIMEOUT))?;
                Ok(stream.into())
            })
        }
    };
    result.map_err(|error| {
        Failed::new(
            FailCode::Connect,
            format!("connecting to {} failed: {error}", target_name(target)),
            "Start `howfar-engine null` there first.",
        )
    })
}

/// Name of the target in messages.
pub(crate) fn target_name(target: &Target) -> String {
    match target {
        Target::Unix { path } => path.clone(),
        Target::Tcp { host, port } => format!("{host} port {port}"),
    }
}
