//! The keeper: a second process that holds every descriptor of the tap and does nothing, until the tap is killed. Then it passes the
//! connections on, unrecorded, for as long as the application needs them.
//!
//! Bytes in transit are in pipes, of which the keeper has both ends.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use rustix::cmsg_space;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, socketpair,
};

use crate::application::Application;
use crate::jobs::RecordJob;
use crate::pass::{Passer, Pipe};

const LISTENS: u8 = b'L';
const OPENED: u8 = b'O';
const CONNECTED: u8 = b'S';
const CLOSED: u8 = b'C';
const APPLICATION: u8 = b'A';
const GOODBYE: u8 = b'G';
/// Maximum descriptors that one message carries.
const MAX_DESCRIPTORS: usize = 5;
/// Maximum bytes of a message: a job with two long paths.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;

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

    pub(crate) fn send_opened(&mut self, id: u64, client: &OwnedFd, pipes: [&Pipe; 2]) {
        let [up, down] = pipes;
        let descriptors = [client, &up.read, &up.write, &down.read, &down.write].map(AsFd::as_fd);
        self.send(OPENED, id, &[], &descriptors);
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

    /// Send a message. A keeper that does not accept it is killed: it must never act while the tap lives.
    fn send(&mut self, kind: u8, id: u64, body: &[u8], descriptors: &[BorrowedFd]) {
        if self.is_lost {
            return;
        }
        let mut head = [kind; 9];
        head[1..].copy_from_slice(&id.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let pieces = [IoSlice::new(&head), IoSlice::new(body)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if net::sendmsg(&self.socket, &pieces, &mut rights, flags).is_err() {
            self.is_lost = true;
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// What the keeper holds of one connection.
#[derive(Debug)]
struct HeldConnection {
    client: OwnedFd,
    server: Option<OwnedFd>,
    to_server: [OwnedFd; 2],
    to_client: [OwnedFd; 2],
}

#[derive(Debug, Default)]
struct LingeringSockets {
    job: Option<(RecordJob, OwnedFd)>,
    connections: HashMap<u64, HeldConnection>,
    application: Application,
}

/// Run the keeper's process: hold the descriptors that stdin delivers; if the tap ends without a goodbye, take over.
pub(crate) fn run() -> ExitCode {
    crate::application::raise_limits();
    let mut lingering = LingeringSockets::default();
    let stdin = io::stdin();
    loop {
        match receive_message(stdin.as_fd(), &mut lingering) {
            Ok(true) => {}
            Ok(false) => break,
            Err(()) => return ExitCode::SUCCESS,
        }
    }
    let Some((job, listener)) = lingering.job else {
        return ExitCode::SUCCESS;
    };
    match take_over(job, listener, lingering.connections, &lingering.application) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Receive one message; false if the tap has gone, an error if it said goodbye.
fn receive_message(socket: BorrowedFd, lingering: &mut LingeringSockets) -> Result<bool, ()> {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let count = loop {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        match net::recvmsg(socket, &mut buffers, &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return Ok(false),
            Ok(message) => break message.bytes,
        }
    };
    let Some((head, body)) = bytes[..count].split_first_chunk::<9>() else {
        return Ok(false);
    };
    let id = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    match head[0] {
        LISTENS => {
            lingering.job = serde_json::from_slice(body).ok().zip(descriptors.pop());
        }
        OPENED => {
            if let Ok([client, up_read, up_write, down_read, down_write]) =
                <[OwnedFd; 5]>::try_from(descriptors)
            {
                let connection = HeldConnection {
                    client,
                    server: None,
                    to_server: [up_read, up_write],
                    to_client: [down_read, down_write],
                };
                lingering.connections.insert(id, connection);
            }
        }
        CONNECTED => {
            if let Some(connection) = lingering.connections.get_mut(&id) {
                connection.server = descriptors.pop();
            }
        }
        CLOSED => {
            lingering.connections.remove(&id);
        }
        APPLICATION => lingering.application = Application::from_descriptor(descriptors.pop()),
        _ => return Err(()),
    }
    Ok(true)
}

fn take_over(
    job: RecordJob,
    listener: OwnedFd,
    connections: HashMap<u64, HeldConnection>,
    application: &Application,
) -> io::Result<()> {
    let unused_wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mut passer = Passer::new(listener, job.server, unused_wake)?;
    for (id, connection) in connections {
        let [read, write] = connection.to_server;
        let to_server = Pipe::adopt(read, write)?;
        let [read, write] = connection.to_client;
        let to_client = Pipe::adopt(read, write)?;
        passer.add(
            id,
            connection.client,
            connection.server,
            to_server,
            to_client,
        )?;
    }
    let outcome = application.serve(&mut passer);
    crate::address::remove_socket_file(&job.listen);
    outcome
}
