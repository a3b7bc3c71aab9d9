//! The keeper's process: it holds the descriptors of the tap, and passes the connections on once the tap was killed.

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
use crate::keep::{
    APPLICATION, CLOSED, CONNECTED, LISTENS, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, OPENED,
};
use crate::pass::Passer;
use crate::pipe::Pipe;

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
    let outcome = passer.serve_application(application);
    crate::address::remove_socket_file(&job.listen);
    outcome
}
