//! The keeper's process: it holds the descriptors of the tap, and passes the connections on after the tap was killed.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::cmsg_space;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::application::Application;
use crate::jobs::RecordJob;
use crate::keeper::{
    APPLICATION, CLOSED, CONNECTED, HEADER_BYTES, LISTENS, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES,
    OPENED,
};
use crate::proxy::Proxy;
use crate::splice::{Pipe, Splice};

/// The descriptors of one connection.
#[derive(Debug)]
struct HeldConnection {
    client: OwnedFd,
    server: Option<OwnedFd>,
    to_server: [OwnedFd; 2],
    to_client: [OwnedFd; 2],
}

/// What the tap has sent to the keeper: its job and the connections that are still open.
#[derive(Debug, Default)]
struct HeldState {
    job: Option<(RecordJob, OwnedFd)>,
    connections: HashMap<u64, HeldConnection>,
    application: Application,
}

/// Run the keeper's process: hold the descriptors that stdin delivers; if the tap ends without a goodbye, take over.
pub(crate) fn run() -> ExitCode {
    crate::application::raise_descriptor_limit();
    let mut held = HeldState::default();
    let stdin = io::stdin();
    loop {
        match receive_message(stdin.as_fd(), &mut held) {
            ReceiveOutcome::Handled => {}
            ReceiveOutcome::TapGone => break,
            ReceiveOutcome::Goodbye => return ExitCode::SUCCESS,
        }
    }
    let Some((job, listener)) = held.job else {
        return ExitCode::SUCCESS;
    };
    match take_over(job, listener, held.connections, &held.application) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The outcome of receiving a message.
enum ReceiveOutcome {
    Handled,
    TapGone,
    /// The tap no longer needs the keeper.
    Goodbye,
}

/// Receive one message from the tap and update the state.
fn receive_message(socket: BorrowedFd, held: &mut HeldState) -> ReceiveOutcome {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let count = loop {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        match net::recvmsg(socket, &mut buffers, &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return ReceiveOutcome::TapGone,
            Ok(message) => break message.bytes,
        }
    };
    let Some((header, body)) = bytes[..count].split_first_chunk::<HEADER_BYTES>() else {
        return ReceiveOutcome::TapGone;
    };
    let id = u64::from_le_bytes(header[1..].try_into().expect("the ID has eight bytes"));
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    match header[0] {
        LISTENS => {
            held.job = serde_json::from_slice(body).ok().zip(descriptors.pop());
        }
        OPENED => {
            if let Ok([client, server_read, server_write, client_read, client_write]) =
                <[OwnedFd; 5]>::try_from(descriptors)
            {
                let connection = HeldConnection {
                    client,
                    server: None,
                    to_server: [server_read, server_write],
                    to_client: [client_read, client_write],
                };
                held.connections.insert(id, connection);
            }
        }
        CONNECTED => {
            if let Some(connection) = held.connections.get_mut(&id) {
                connection.server = descriptors.pop();
            }
        }
        CLOSED => {
            held.connections.remove(&id);
        }
        APPLICATION => held.application = Application::from_descriptor(descriptors.pop()),
        _ => return ReceiveOutcome::Goodbye,
    }
    ReceiveOutcome::Handled
}

fn take_over(
    job: RecordJob,
    listener: OwnedFd,
    connections: HashMap<u64, HeldConnection>,
    application: &Application,
) -> io::Result<()> {
    let unused_wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mut proxy = Proxy::new(Splice::default(), listener, job.server, unused_wake)?;
    for (id, connection) in connections {
        let pipes = [
            Pipe::adopt(connection.to_server)?,
            Pipe::adopt(connection.to_client)?,
        ];
        proxy.adopt(connection.client, connection.server, pipes, id)?;
    }
    let outcome = proxy.serve_application(application);
    crate::address::remove_socket_file(&job.listen);
    outcome
}
