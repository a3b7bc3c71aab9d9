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
/// Size of a socket's buffer, for packets that arrive while the thread does not run; unused space takes no memory.
const SOCKET_BUFFER: i32 = 256 << 20;
/// Requested without the right to exceed the system's limit; the kernel may grant less.
const UNPRIVILEGED_SOCKET_BUFFER: i32 = 8 << 20;
/// Options that are newer than libc's list: see packet(7).
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_QDISC_BYPASS: i32 = 20;

const PERMISSION_ADVICE: &str = "Packet sockets need CAP_NET_RAW in the network namespace: run howfar as root, or allow user namespaces.";

/// Receives the packets that the host at one end sends.
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

/// The packet sockets of one interface.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) receiver: Receiver,
    pub(crate) transmitter: Transmitter,
    pub(crate) drop_counter: DropCounter,
}

/// Open packet sockets on the interface called `name`.
pub(crate) fn open(name: &str) -> Result<Port, Failed> {
    let interface =
        sys::interface_index(name).map_err(|error| interface_error(name, "find", &error))?;
    let open_error = |error| interface_error(name, "open a packet socket on", &error);
    let fd = Arc::new(open_receiver(interface).map_err(open_error)?);
    Ok(Port {
        receiver: Receiver {
            fd: Arc::clone(&fd),
        },
        transmitter: Transmitter {
            fd: open_transmitter(interface).map_err(open_error)?,
        },
        drop_counter: DropCounter { fd, total: 0 },
    })
}

/// Translate an operating-system error into a `Failed`.
pub(crate) fn interface_error(name: &str, action: &str, error: &io::Error) -> Failed {
    let message = format!("cannot {action} interface {name}: {error}");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            Failed::new(FailCode::NotPermitted, message, PERMISSION_ADVICE)
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
    set_buffer_size(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    sys::bind_packet(fd, interface, ETH_P_ALL)?;
    Ok(socket)
}

fn open_transmitter(interface: i32) -> io::Result<OwnedFd> {
    let socket = sys::packet_socket()?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // A virtual cable needs no queueing discipline; older kernels without the option lose only a little time.
    let _ = sys::set_option(fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1);
    set_buffer_size(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    sys::bind_packet(fd, interface, 0)?;
    Ok(socket)
}

/// Set a socket buffer's size by the option `privileged`, or `unprivileged` if that is not permitted.
fn set_buffer_size(fd: BorrowedFd<'_>, privileged: i32, unprivileged: i32) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, privileged, SOCKET_BUFFER).or_else(|_| {
        sys::set_option(
            fd,
            libc::SOL_SOCKET,
            unprivileged,
            UNPRIVILEGED_SOCKET_BUFFER,
        )
    })
}

impl Receiver {
    /// Receive one packet without waiting; None if there is none.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<sys::Received>> {
        match sys::receive(self.fd.as_fd(), buffer) {
            Ok(received) => Ok(Some(received)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl DropCounter {
    /// Packets (each of one or more segments) that the kernel had no room for since the port was opened. None if the kernel does
    /// not report it.
    pub(crate) fn read_total(&mut self) -> Option<u64> {
        // A successful call resets the kernel's counter; a failed one does not.
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
    pub(crate) fn send(&self, headers: &[u8], payload: &[u8]) -> io::Result<()> {
        sys::send(self.fd.as_fd(), headers, payload)
    }
}
