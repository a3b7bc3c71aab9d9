//! The ends of the link: where packets are taken from a host and handed to one. One kind, one file.
//!
//! Every kind frames its packets the same way: a virtio-net header of ten bytes, so that super-packets are kept, then the frame.
//! Chosen once, by type, when the link starts: the loop that moves packets knows its kind at compile time.

use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;

use crate::sys::Received;
use howfar_contract::{FailCode, Failed};

mod packet;
mod tun;

pub(crate) use packet::Packet;
pub(crate) use tun::Tun;

/// Hears what the host at one end sends.
pub(crate) trait Receive: AsFd + Debug + Send + 'static {
    /// One packet, if there is any, without waiting.
    fn receive(&self, room: &mut [u8]) -> io::Result<Option<Received>>;
}

/// Tells what the receiver never saw. Apart from it, for another thread: to ask may take longer than a packet may wait.
pub(crate) trait Gauge: Debug + Send + 'static {
    /// Packets (of however many segments) that the kernel had no room for since the port was opened. None: it does not say.
    fn dropped(&mut self) -> Option<u64>;
}

/// Sends towards the host at one end. Apart from the receiver, so that the two directions share nothing.
pub(crate) trait Transmit: Debug + Send + 'static {
    /// Send one packet without waiting: its headers, then its payload (which may be empty).
    fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()>;
}

/// An open end.
#[derive(Debug)]
pub(crate) struct End<P: Port + ?Sized> {
    pub(crate) receiver: P::Receiver,
    pub(crate) transmitter: P::Transmitter,
    pub(crate) gauge: Box<dyn Gauge>,
}

/// A kind of end.
pub(crate) trait Port: 'static {
    type Receiver: Receive;
    type Transmitter: Transmit;

    /// Bytes of link-layer header before the network header of each frame.
    const LINK_HEADER: usize;
    /// Does the kernel say when a packet came? Otherwise it counts as come when it is read, and must be read at once.
    const STAMPED: bool;
    /// What to do when the kernel does not permit it.
    const PERMISSION: &'static str;

    /// The end called `name`.
    fn open(name: &str) -> Result<End<Self>, Failed>;

    /// Translate an operating-system error at the border.
    fn failure(name: &str, tried: &str, error: &io::Error) -> Failed {
        let message = format!("cannot {tried} interface {name}: {error}");
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                Failed::new(FailCode::NotPermitted, message, Self::PERMISSION)
            }
            _ => Failed::new(
                FailCode::Interface,
                message,
                "The laboratory's interfaces must exist and be up as long as the link lives; see `ip link` in its middle namespace.",
            ),
        }
    }
}
