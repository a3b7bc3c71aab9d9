//! TCP connections of the probes: every wait is bounded.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use howfar_contract::{FailCode, Failed};

/// Time limit of a connect, and of a read or write that has no other limit.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Parse a numeric address.
pub(super) fn parse_address(host: &str, port: u16) -> Result<SocketAddr, Failed> {
    let host: IpAddr = host.parse().map_err(|_| {
        Failed::bad_job(format!(
            "host {host:?} is not a numeric address; resolve names before building the job"
        ))
    })?;
    Ok(SocketAddr::new(host, port))
}

/// Connect without Nagle's delay.
pub(super) fn connect(peer: SocketAddr, timeout: Duration) -> Result<TcpStream, Failed> {
    let stream = TcpStream::connect_timeout(&peer, timeout).map_err(|error| {
        Failed::new(
            FailCode::Connect,
            format!("cannot connect to the probe's far end {peer}: {error}"),
            "The link must be up, with addresses, routes and neighbours on both hosts, and the echo server must be listening.",
        )
    })?;
    prepare(&stream, timeout)
        .map_err(|error| connection_error(peer, "prepare the connection to", &error))?;
    Ok(stream)
}

/// Disable Nagle's algorithm and bound reads and writes.
pub(super) fn prepare(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// Translate an error of an open connection into a `Failed`.
pub(super) fn connection_error(peer: SocketAddr, action: &str, error: &io::Error) -> Failed {
    let code = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => FailCode::Stalled,
        io::ErrorKind::UnexpectedEof => FailCode::Protocol,
        _ => FailCode::Connect,
    };
    let reason = if code == FailCode::Stalled {
        "no answer in time".to_owned()
    } else {
        error.to_string()
    };
    Failed::new(
        code,
        format!("cannot {action} {peer}: {reason}"),
        "Check the link's statistics: drops, or an interface that is down, would explain it.",
    )
}
