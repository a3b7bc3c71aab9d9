//! The connection to the server, from its connect on.

use std::os::fd::OwnedFd;

use howfar_contract::jobs::Target;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, sockopt};

use crate::address::{self, ConnectError};
use crate::end::{SocketEnd, now_ns};

/// Pause before retrying a server whose queue is full.
pub(crate) const RETRY_NS: u64 = 1_000_000;
/// How long after the client's connect such a server is retried.
const RETRY_TIMEOUT_NS: u64 = 10_000_000_000;

/// The state of the connection to the server.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// Connect, but not before this time.
    Due {
        at_ns: u64,
    },
    /// TCP: the handshake is in progress.
    Connecting(SocketEnd),
    Open(SocketEnd),
}

impl Upstream {
    pub(crate) fn handle_readiness(&mut self, flags: EventFlags) {
        if let Self::Connecting(end) | Self::Open(end) = self {
            end.handle_readiness(flags);
        }
    }

    /// Advance the connection as far as the server allows now. `opened_ns`: when `client` connected; `on_socket` is called with the
    /// new socket.
    pub(crate) fn connect(
        &mut self,
        server: &Target,
        client: &OwnedFd,
        opened_ns: u64,
        on_socket: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), ConnectError> {
        match self {
            Self::Due { at_ns } if *at_ns <= now_ns() => match address::connect(server, client) {
                Ok(socket) => {
                    on_socket(&socket)?;
                    let end = SocketEnd::new(socket);
                    *self = match server {
                        Target::Unix { .. } => Self::Open(end),
                        Target::Tcp { .. } => Self::Connecting(end),
                    };
                }
                Err(ConnectError::Kernel(Errno::AGAIN))
                    if now_ns() < opened_ns + RETRY_TIMEOUT_NS =>
                {
                    *at_ns = now_ns() + RETRY_NS;
                }
                Err(error) => return Err(error),
            },
            Self::Connecting(end) if end.readable || end.writable => {
                sockopt::socket_error(&end.socket)??;
                // A connect that another process began may not be complete yet.
                if net::getpeername(&end.socket).is_ok() {
                    if let Self::Connecting(end) = std::mem::replace(self, Self::Due { at_ns: 0 }) {
                        *self = Self::Open(end);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
