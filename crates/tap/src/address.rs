//! Opens sockets: the one that the application connects to, and connections to the server as the client's user.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use howfar_contract::jobs::{Listen, Target, parse_numeric_address, socket_address};
use howfar_contract::{FailCode, Failed};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

/// Remove the file of a listening Unix socket, whether this process or another made it.
pub(crate) fn remove_socket_file(listen: &Listen) {
    if let Listen::Unix { path } = listen {
        // An error means that the file is already gone.
        let _ = fs::remove_file(path);
    }
}

/// A listening socket that does not block, and its port if it has one. All users may connect to a Unix socket: access is up to the
/// server.
pub(crate) fn listen(listen: &Listen) -> Result<(OwnedFd, Option<u16>), Failed> {
    let opened = match listen {
        Listen::Unix { path } => UnixListener::bind(path).and_then(|listener| {
            listener.set_nonblocking(true)?;
            fs::set_permissions(path, Permissions::from_mode(0o777))?;
            Ok((listener.into(), None))
        }),
        Listen::Tcp { host, port } => {
            TcpListener::bind(SocketAddr::new(parse_numeric_address(host)?, *port)).and_then(
                |listener| {
                    listener.set_nonblocking(true)?;
                    let port = listener.local_addr()?.port();
                    Ok((listener.into(), Some(port)))
                },
            )
        }
    };
    opened.map_err(|error| {
        let (address_text, advice) = match listen {
            Listen::Unix { path } => (
                path.clone(),
                "Give it a path that does not exist yet in a directory that does.",
            ),
            Listen::Tcp { host, port: 0 } => (
                format!("{host}, any port"),
                "Give it an address of this host.",
            ),
            Listen::Tcp { host, port } => (
                format!("{host}, port {port}"),
                "Give it an address of this host and a free port.",
            ),
        };
        Failed::new(
            FailCode::Connect,
            format!("the tap cannot listen on {address_text}: {error}"),
            advice,
        )
    })
}

/// Begin a connection to the server; it is connected, or (TCP) connecting. Acts as the client's user where the kernel reports one,
/// because a server may authenticate by user. Fails with `Errno::AGAIN` if the server's queue is full.
pub(crate) fn connect(server: &Target, client: &OwnedFd) -> Result<OwnedFd, ConnectError> {
    match server {
        Target::Unix { path } => {
            let address = SocketAddrUnix::new(path.as_str())?;
            let socket = open_socket(AddressFamily::UNIX)?;
            run_as_client_user(client, || net::connect(&socket, &address))?;
            Ok(socket)
        }
        Target::Tcp { host, port } => {
            let address = socket_address(host, *port).ok_or(Errno::INVAL)?;
            let socket = open_socket(if address.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            })?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            match net::connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Why a connection to the server could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{0}")]
    Kernel(#[from] Errno),
    #[error(
        "the client runs as user {0} and the tap cannot act as that user; run howfar as root or as that user"
    )]
    OtherUser(u32),
}

fn open_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Run `act` with the effective user of the process at the other end of `client`; the server sees that user.
fn run_as_client_user(
    client: &OwnedFd,
    act: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<(), ConnectError> {
    let own_uid = geteuid();
    let client_uid = match sockopt::socket_domain(client)? {
        AddressFamily::UNIX => sockopt::socket_peercred(client.as_fd())?.uid,
        _ => own_uid,
    };
    if client_uid == own_uid {
        return Ok(act()?);
    }
    let signal = rustix::process::parent_process_death_signal()
        .ok()
        .flatten();
    let become_user = |uid: Uid| set_thread_res_uid(None, uid, None);
    become_user(client_uid).map_err(|_| ConnectError::OtherUser(client_uid.as_raw()))?;
    let outcome = act();
    become_user(own_uid).expect("the process may return to its saved user");
    // The kernel clears the signal when the effective user changes. A recorder has none, as it outlives its parent.
    let _ = rustix::process::set_parent_process_death_signal(signal);
    Ok(outcome?)
}

/// Process and user at the other end of a Unix socket.
pub(crate) fn peer_credentials(socket: &OwnedFd) -> Option<(i32, u32)> {
    let is_unix = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::UNIX));
    let credentials = is_unix
        .then(|| sockopt::socket_peercred(socket).ok())
        .flatten()?;
    Some((
        credentials.pid.as_raw_nonzero().get(),
        credentials.uid.as_raw(),
    ))
}

/// Accept a client, with Nagle's algorithm off on TCP; None if none waits.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => {
            if !matches!(sockopt::socket_domain(&socket)?, AddressFamily::UNIX) {
                sockopt::set_tcp_nodelay(&socket, true)?;
            }
            Ok(Some(socket))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{
        Signal, parent_process_death_signal, set_parent_process_death_signal as set_signal,
    };
    use std::os::unix::net::UnixStream;

    /// The socket of a client that runs as `user`: the kernel stores the user that made a socket.
    fn connect_as(user: Uid) -> OwnedFd {
        set_thread_res_uid(None, user, None).expect("root may become any user");
        let (client, _) = UnixStream::pair().expect("a pair of sockets can be made");
        set_thread_res_uid(None, Uid::ROOT, None)
            .expect("the process may return to its saved user");
        client.into()
    }

    #[test]
    fn acting_as_another_user_keeps_the_parent_death_signal() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can act as another user");
            return;
        }
        let client = connect_as(Uid::from_raw(65534));
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            set_signal(signal).expect("the signal can be set");
            let mut effective_user = Uid::ROOT;
            let outcome = run_as_client_user(&client, || {
                effective_user = geteuid();
                Ok(())
            });
            assert!(outcome.is_ok());
            assert_eq!(effective_user.as_raw(), 65534);
            let signal_after = parent_process_death_signal().expect("the signal is known");
            assert_eq!(signal_after, signal);
        }
        set_signal(None).expect("the signal can be cleared");
    }
}
