//! Packet sockets on existing interfaces: the ends of virtual cables in the middle of the laboratory. The kernel timestamps a
//! packet when the sender hands it over, so waking up late here adds no delay.
//!
//! A packet is a virtio-net header of ten bytes, which keeps super-packets intact, followed by the Ethernet frame.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::sys;
use howfar_contract::{FailCode, Failed};

const ETH_P_ALL: u16 = 3;
/// Room for what arrives while the thread does not run; memory is used only when it is needed.
const SOCKET_BUFFER: i32 = 256 << 20;
/// Requested without the right to exceed the system's limit; the kernel may grant less.
const UNPRIVILEGED_SOCKET_BUFFER: i32 = 8 << 20;
/// Options that are newer than libc's list: see packet(7).
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_QDISC_BYPASS: i32 = 20;

const PERMISSION: &str = "Packet sockets need CAP_NET_RAW in the network namespace: run howfar as root, or allow user namespaces.";

/// Receives what the host at one end sends.
#[derive(Debug)]
pub(crate) struct Receiver {
    fd: Arc<OwnedFd>,
}

/// Counts the packets that the receiver never saw. Separate from the receiver, for use in another thread: the query may take longer
/// than a packet may wait.
#[derive(Debug)]
pub(crate) struct DropCounter {
    fd: Arc<OwnedFd>,
    total: u64,
}

/// Sends towards the host at one end. Separate from the receiver, so that the two directions share nothing.
#[derive(Debug)]
pub(crate) struct Transmitter {
    fd: OwnedFd,
}

/// An open end of the link.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) receiver: Receiver,
    pub(crate) transmitter: Transmitter,
    pub(crate) drop_counter: DropCounter,
}

/// Open the end on the interface called `name`.
pub(crate) fn open(name: &str) -> Result<End, Failed> {
    let interface =
        sys::interface_index(name).map_err(|error| interface_error(name, "find", &error))?;
    let check_open = |fd: io::Result<OwnedFd>| {
        fd.map_err(|error| interface_error(name, "open a packet socket on", &error))
    };
    let fd = Arc::new(check_open(open_receiver(interface))?);
    Ok(End {
        receiver: Receiver {
            fd: Arc::clone(&fd),
        },
        transmitter: Transmitter {
            fd: check_open(open_transmitter(interface))?,
        },
        drop_counter: DropCounter { fd, total: 0 },
    })
}

/// Translate an operating-system error into a `Failed`.
pub(crate) fn interface_error(name: &str, action: &str, error: &io::Error) -> Failed {
    let message = format!("cannot {action} interface {name}: {error}");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            Failed::new(FailCode::NotPermitted, message, PERMISSION)
        }
        _ => Failed::new(
            FailCode::Interface,
            message,
            "The laboratory's interfaces must exist and be up as long as the link lives; see `ip link` in its middle namespace.",
        ),
    }
}

fn open_receiver(interface: i32) -> io::Result<OwnedFd> {
    let socket = sys::packet_socket()?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    sys::set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER).or_else(|_| {
        sys::set_option(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            UNPRIVILEGED_SOCKET_BUFFER,
        )
    })?;
    sys::bind_packet(fd, interface, ETH_P_ALL)?;
    Ok(socket)
}

fn open_transmitter(interface: i32) -> io::Result<OwnedFd> {
    let socket = sys::packet_socket()?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // A virtual cable needs no queueing discipline; older kernels without the option lose only a little time.
    let _ = sys::set_option(fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1);
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SOCKET_BUFFER).or_else(|_| {
        sys::set_option(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            UNPRIVILEGED_SOCKET_BUFFER,
        )
    })?;
    sys::bind_packet(fd, interface, 0)?;
    Ok(socket)
}

impl Receiver {
    /// Receive one packet without waiting; None if there is none.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<sys::Received>> {
        sys::none_if_empty(sys::receive(self.fd.as_fd(), buffer))
    }
}

impl DropCounter {
    /// Packets (each of one or more segments) that the kernel had no room for since the port was opened. None if the kernel does
    /// not report it.
    pub(crate) fn read_total(&mut self) -> Option<u64> {
        // A reading resets the kernel's counter, but a failed one does not.
        self.total += sys::packet_drops(self.fd.as_fd()).ok()?;
        Some(self.total)
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transmitter {
    /// Send one packet without waiting: its headers, then its payload (which may be empty).
    pub(crate) fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        sys::send(self.fd.as_fd(), head, body)
    }
}
