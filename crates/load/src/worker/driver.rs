//! The driver that serves the sockets, epoll or an `io_uring`: the choice, and the few things that differ between them.
//!
//! Under both, epoll handles connections being opened and the wake-up descriptor; a ring watches the epoll descriptor (`uring`).

use std::io;
use std::os::fd::OwnedFd;

use howfar_contract::jobs::Driver as Requested;
use howfar_contract::{FailCode, Failed};

use crate::ring::{Ring, Token};
use crate::socket::send_some;

/// Minimum number of a worker's connections for a ring: with fewer, each answer wakes the worker separately, as under epoll.
const MIN_RING_CONNECTIONS: usize = 8;

/// The driver of one worker.
#[derive(Debug)]
pub(crate) enum Driver {
    Epoll,
    Ring(Box<Ring>),
}

/// A socket's registration with its driver.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) token: Token,
    /// The ring's batch that holds the socket's last send.
    batch: u64,
}

impl Registration {
    pub(crate) fn new(token: Token) -> Self {
        Self { token, batch: 0 }
    }
}

impl Driver {
    /// Send what can be sent now, possibly nothing. Returns the number of bytes that the driver has taken.
    #[inline]
    pub(crate) fn send(
        &mut self,
        socket: &OwnedFd,
        registration: &mut Registration,
        bytes: &[u8],
    ) -> io::Result<usize> {
        match self {
            Self::Epoll => send_some(socket, bytes),
            // A socket's next send must wait while the last one is in a batch whose outcome is unknown.
            Self::Ring(ring) if registration.batch == ring.batch() => Ok(0),
            Self::Ring(ring) => {
                registration.batch = ring.batch();
                ring.send(socket, registration.token, bytes)?;
                Ok(bytes.len())
            }
        }
    }

    /// The driver's name in the receipt.
    pub(crate) fn name(rings: &[Ring]) -> &'static str {
        if rings.is_empty() {
            "epoll"
        } else {
            "io_uring"
        }
    }
}

/// Call `make` to make rings if the driver is to be one; return its result, else the default (no rings). With `auto` a ring is chosen
/// for workers with enough connections, `share` each.
pub(super) fn try_make<T: Default>(
    requested: Requested,
    share: usize,
    make: impl FnOnce() -> io::Result<T>,
) -> Result<T, Failed> {
    match requested {
        Requested::Epoll => Ok(T::default()),
        Requested::Auto if share < MIN_RING_CONNECTIONS => Ok(T::default()),
        // Fall back for any reason: epoll does the same, and the receipt reports which driver served.
        Requested::Auto => Ok(make().unwrap_or_default()),
        Requested::IoUring => make().map_err(|error| {
            Failed::new(
                FailCode::Interface,
                format!("io_uring cannot be had: {error}"),
                "Use Linux 6.1 or later where neither kernel.io_uring_disabled nor a container's seccomp profile forbids it, or ask \
                 for driver `auto` or `epoll`.",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden() -> io::Result<Vec<u8>> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn auto_falls_back_and_io_uring_does_not() {
        assert_eq!(try_make(Requested::Auto, 64, forbidden).ok(), Some(vec![]));
        let failed = try_make(Requested::IoUring, 64, forbidden).expect_err("rings are forbidden");
        assert!(matches!(failed.code, FailCode::Interface));
        assert!(failed.message.contains("not permitted"), "{failed:?}");
    }

    #[test]
    fn a_ring_is_made_for_many_connections_or_on_request() {
        let make = || Ok(vec![1]);
        assert_eq!(try_make(Requested::Auto, 64, make).ok(), Some(vec![1]));
        assert_eq!(try_make(Requested::Auto, 1, make).ok(), Some(vec![]));
        assert_eq!(try_make(Requested::IoUring, 1, make).ok(), Some(vec![1]));
        let never = || -> io::Result<Vec<u8>> { panic!("epoll needs no ring") };
        assert_eq!(try_make(Requested::Epoll, 64, never).ok(), Some(vec![]));
    }
}
