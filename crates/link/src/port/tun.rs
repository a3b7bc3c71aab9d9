//! TUN devices that the link makes: network packets without an Ethernet header, no neighbours to be found.
//!
//! The devices begin in the network of this process. Whoever asked for the link moves each to its host and configures it there;
//! the descriptors held here go on working. Two things are weaker than with packet sockets: there is no stamp of the arrival, so
//! a packet arrives when it is read, and a full ring drops without telling the sender. The device counts those, wherever it is.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{End, Gauge, Port, Receive, Transmit};
use crate::sys;
use howfar_contract::Failed;

const DEVICE: &str = "/dev/net/tun";
/// Packets that the ring holds while the thread does not run. The kernel's own figure, 500, is half a millisecond of small
/// packets at a million a second.
const RING: i32 = 10_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tun;

#[derive(Debug)]
pub(crate) struct Receiver {
    device: Arc<File>,
}

#[derive(Debug)]
struct Ring {
    device: Arc<File>,
}

#[derive(Debug)]
pub(crate) struct Transmitter {
    device: Arc<File>,
}

impl Port for Tun {
    type Receiver = Receiver;
    type Transmitter = Transmitter;

    const LINK_HEADER: usize = 0;
    const STAMPED: bool = false;
    const PERMISSION: &'static str = "TUN devices need /dev/net/tun to be readable and writable, and CAP_NET_ADMIN in the network namespace. Packet sockets (the default kind of port) need no device file.";

    fn open(name: &str) -> Result<End<Self>, Failed> {
        let device = make(name)
            .map_err(|error| Self::failure(name, &format!("make with {DEVICE} the"), &error))?;
        let device = Arc::new(device);
        Ok(End {
            receiver: Receiver {
                device: Arc::clone(&device),
            },
            transmitter: Transmitter {
                device: Arc::clone(&device),
            },
            gauge: Box::new(Ring { device }),
        })
    }
}

fn make(name: &str) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(DEVICE)?;
    sys::make_tun(device.as_fd(), name)?;
    sys::set_ring(name, RING)?;
    Ok(device)
}

impl Receive for Receiver {
    fn receive(&self, room: &mut [u8]) -> io::Result<Option<sys::Received>> {
        sys::unless_empty(sys::read_packet(self.device.as_fd(), room))
    }
}

impl Gauge for Ring {
    fn dropped(&mut self) -> Option<u64> {
        // Older kernels do not say where a device is, and it may have gone with its host.
        ring_drops(self.device.as_fd()).ok()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Transmit for Transmitter {
    fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        sys::write_packet(self.device.as_fd(), head, body)
    }
}

/// Packets that the device dropped, read in the network where it is now and under the name that it has there, by a thread that goes there.
fn ring_drops(device: BorrowedFd<'_>) -> io::Result<u64> {
    let name = sys::tun_name(device)?;
    let network: OwnedFd = sys::tun_network(device)?;
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            fs::read_to_string("/proc/thread-self/net/dev")
        });
        let table = there
            .join()
            .map_err(|_| io::Error::other("it panicked"))??;
        transmit_drops(&table, &name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    })
}

/// The twelfth number of the device's line: four before it are of what it sent, eight of what it received.
fn transmit_drops(table: &str, name: &str) -> Option<u64> {
    let (_, numbers) = table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(device, _)| device.trim() == name)?;
    numbers.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_kernels_table() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
               lo:       1       2    3    4    5     6          7         8        9      10    11   12    13    14      15         16\n    \
             lcx:    100      20    0    0    0     0          0         0     2000      30     0  777     0     0       0          0\n";
        assert_eq!(transmit_drops(table, "lcx"), Some(777));
        assert_eq!(transmit_drops(table, "lo"), Some(12));
        assert_eq!(transmit_drops(table, "lc"), None);
    }
}
