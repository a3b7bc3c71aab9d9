//! Starts the keeper and sends it every descriptor of the tap. The keeper is a second process that does nothing until the tap is
//! killed. Then it passes the connections on, unrecorded, for as long as the application needs them.
//!
//! Bytes in transit are in pipes; the keeper has both ends of each.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::cmsg_space;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, socketpair,
};

use crate::application::Application;
use crate::jobs::RecordJob;

pub(crate) const LISTENS: u8 = b'L';
pub(crate) const OPENED: u8 = b'O';
pub(crate) const CONNECTED: u8 = b'S';
pub(crate) const CLOSED: u8 = b'C';
pub(crate) const APPLICATION: u8 = b'A';
const GOODBYE: u8 = b'G';
/// Length of a message's header: its kind, and a connection's ID.
pub(crate) const HEADER_BYTES: usize = 9;
/// Maximum descriptors that one message carries.
pub(crate) const MAX_DESCRIPTORS: usize = 5;
/// Maximum bytes of a message: a job with two long paths.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// The tap's side of the keeper.
#[derive(Debug)]
pub(crate) struct Keeper {
    socket: OwnedFd,
    process: Child,
    is_lost: bool,
}

impl Keeper {
    /// Start the keeper, and give it the listening socket.
    pub(crate) fn start(job: &RecordJob, listener: &OwnedFd) -> io::Result<Self> {
        let (tap_socket, keeper_socket) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let process = Command::new("/proc/self/exe")
            .arg0("howfar-engine")
            .arg("keep")
            .stdin(Stdio::from(keeper_socket))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut keeper = Self {
            socket: tap_socket,
            process,
            is_lost: false,
        };
        let job = serde_json::to_vec(job)?;
        keeper.send(LISTENS, 0, &job, &[listener.as_fd()]);
        Ok(keeper)
    }

    /// Send the descriptors of a new connection: its client, and both ends of the pipes to the server and to the client.
    pub(crate) fn send_opened(&mut self, id: u64, descriptors: [&OwnedFd; MAX_DESCRIPTORS]) {
        self.send(OPENED, id, &[], &descriptors.map(AsFd::as_fd));
    }

    pub(crate) fn send_connected(&mut self, id: u64, server: &OwnedFd) {
        self.send(CONNECTED, id, &[], &[server.as_fd()]);
    }

    pub(crate) fn send_closed(&mut self, id: u64) {
        self.send(CLOSED, id, &[], &[]);
    }

    pub(crate) fn send_application(&mut self, application: &Application) {
        let descriptors: Vec<BorrowedFd> = application.namespace().into_iter().collect();
        self.send(APPLICATION, 0, &[], &descriptors);
    }

    /// Dismiss the keeper: the tap ends because it is no longer needed.
    pub(crate) fn dismiss(mut self) {
        self.send(GOODBYE, 0, &[], &[]);
        let _ = self.process.wait();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Send a message. A keeper that does not accept it is killed: it must never act while the tap runs.
    fn send(&mut self, kind: u8, id: u64, body: &[u8], descriptors: &[BorrowedFd]) {
        if self.is_lost {
            return;
        }
        let mut header = [kind; HEADER_BYTES];
        header[1..].copy_from_slice(&id.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let pieces = [IoSlice::new(&header), IoSlice::new(body)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if net::sendmsg(&self.socket, &pieces, &mut rights, flags).is_err() {
            self.is_lost = true;
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
