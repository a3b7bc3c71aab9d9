//! The ends of the link: packet sockets on two interfaces, super-packets kept by virtio-net headers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::event::{Code, Failure};
use crate::sys;

const ETH_P_ALL: u16 = 3;
/// Room for what arrives while the thread does not run; memory is used only when it is needed.
const SOCKET_BUFFER: i32 = 256 << 20;
/// Without the right to exceed the system's limit, this much is asked and whatever is given is taken.
const SOCKET_BUFFER_MODEST: i32 = 8 << 20;
/// Options that are newer than libc's list: see packet(7).
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_QDISC_BYPASS: i32 = 20;

/// Hears what the host at the far end of an interface sends.
#[derive(Debug)]
pub(crate) struct Receiver {
    fd: OwnedFd,
    dropped: u64,
}

/// Sends towards the host at the far end of an interface. A socket of its own, so that the two directions share nothing.
#[derive(Debug)]
pub(crate) struct Transmitter {
    fd: OwnedFd,
}

impl Receiver {
    pub(crate) fn open(name: &str) -> Result<Self, Failure> {
        let fd = open(name, |fd, interface| {
            sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
            sys::set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER).or_else(
                |_| sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER_MODEST),
            )?;
            sys::bind_packet(fd, interface, ETH_P_ALL)
        })?;
        Ok(Self { fd, dropped: 0 })
    }

    /// One packet, if there is any.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<sys::Received>> {
        match sys::receive(self.fd.as_fd(), room) {
            Ok(received) => Ok(Some(received)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Packets that the socket had no room for, since it was opened.
    pub(crate) fn dropped(&mut self) -> u64 {
        // The kernel's counter starts anew at each reading; an unreadable one adds nothing, and cannot happen on an
        // open packet socket.
        self.dropped += sys::packet_drops(self.fd.as_fd()).unwrap_or(0);
        self.dropped
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transmitter {
    pub(crate) fn open(name: &str) -> Result<Self, Failure> {
        let fd = open(name, |fd, interface| {
            sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
            // A virtual cable has no queue of its own; older kernels without the option lose only a little time.
            let _ = sys::set_option(fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1);
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SOCKET_BUFFER).or_else(
                |_| sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SOCKET_BUFFER_MODEST),
            )?;
            sys::bind_packet(fd, interface, 0)
        })?;
        Ok(Self { fd })
    }

    /// Send one packet: its headers, then its payload (which may be empty).
    pub(crate) fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        sys::send(self.fd.as_fd(), head, body)
    }
}

fn open(
    name: &str,
    prepare: impl FnOnce(BorrowedFd<'_>, i32) -> io::Result<()>,
) -> Result<OwnedFd, Failure> {
    let interface = sys::interface_index(name).map_err(|error| failure(name, "find", &error))?;
    let fd =
        sys::packet_socket().map_err(|error| failure(name, "open a packet socket on", &error))?;
    prepare(fd.as_fd(), interface)
        .map_err(|error| failure(name, "prepare a packet socket on", &error))?;
    Ok(fd)
}

/// Translate an operating-system error at the border.
pub(crate) fn failure(name: &str, tried: &str, error: &io::Error) -> Failure {
    let message = format!("cannot {tried} interface {name}: {error}");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Failure::new(
            Code::NotPermitted,
            message,
            "Packet sockets need CAP_NET_RAW in the network namespace: run howfar as root, or allow user namespaces.",
        ),
        _ => Failure::new(
            Code::Interface,
            message,
            "The laboratory's interfaces must exist and be up as long as the link lives; see `ip link` in its middle namespace.",
        ),
    }
}
