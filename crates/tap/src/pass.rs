//! Passes connections on without holding bytes in this process: the kernel moves them from the socket into a pipe, and from the pipe
//! into the other socket. If this process is killed, another one that holds the same descriptors can continue at the same byte.
//!
//! A pipe is filled only when it is empty, so it holds exactly the bytes in transit. The recorder gets a copy (`tee`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::io::Errno;

use crate::address::{ConnectError, peer_credentials};
use crate::application::Application;
use crate::connections::{Connection, Connections, LISTENER_TOKEN, RETRY_NS, Upstream};
use crate::end::{SocketEnd, now_ns};
use crate::jobs::RecordEnded;
use crate::keeper::Keeper;
use crate::pipe::{Pipe, move_bytes};
use crate::record::Recorder;

/// Maximum clients accepted, or steps of a connection, before others are served.
const MAX_STEPS: usize = 16;
/// Interval between checks whether the application still runs.
const CHECK_INTERVAL_NS: u64 = 500_000_000;
/// Maximum connections; further ones are closed at once. Each needs six descriptors.
const MAX_CONNECTIONS: usize = 16_384;

/// The state of a connection.
#[derive(Debug)]
struct PassState {
    id: u64,
    to_server: Pipe,
    to_client: Pipe,
}

/// Passes connections on to one server without delay.
#[derive(Debug)]
pub(crate) struct Passer {
    connections: Connections<PassState>,
    /// Connections that can move more bytes now.
    busy: Vec<usize>,
    /// Connections whose connect to the server is to be retried.
    retrying: Vec<usize>,
    spare_pipes: Option<(Pipe, Pipe)>,
    next_id: u64,
    /// The recording's last event, as far as it is known.
    ended: RecordEnded,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) recorder: Option<Recorder>,
}

impl Passer {
    /// `wake` becomes readable when [`Passer::process_events`] must return.
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            connections: Connections::new(listener, target, wake)?,
            busy: Vec::new(),
            retrying: Vec::new(),
            spare_pipes: None,
            next_id: 1,
            ended: RecordEnded::default(),
            keeper: None,
            recorder: None,
        })
    }

    /// Ask the recorder for its last event; false if its queue has no room now.
    pub(crate) fn finish_recording(&mut self) -> bool {
        let ended = &mut self.ended;
        ended.open = self.connections.open_count() as u64;
        ended.refused = self.connections.refused;
        ended.refusal.clone_from(&self.connections.refusal);
        ended.survives_kill = self.keeper.as_ref().is_some_and(|keeper| !keeper.is_lost());
        let is_done = self
            .recorder
            .as_mut()
            .is_none_or(|recorder| recorder.finish(ended));
        if is_done {
            self.recorder = None;
        }
        is_done
    }

    /// Pass connections on until none is open and no process of the application is left.
    pub(crate) fn serve_application(&mut self, application: &Application) -> io::Result<()> {
        let mut next_check_ns = now_ns();
        loop {
            self.process_events(Some(CHECK_INTERVAL_NS))?;
            if self.connections.open_count() == 0 && now_ns() >= next_check_ns {
                if !application.is_running() {
                    return Ok(());
                }
                next_check_ns = now_ns() + CHECK_INTERVAL_NS;
            }
        }
    }

    /// Wait for events, at most `max_wait_ns`, and process them.
    pub(crate) fn process_events(&mut self, max_wait_ns: Option<u64>) -> io::Result<()> {
        let max_wait_ns = if !self.busy.is_empty() {
            Some(0)
        } else if !self.retrying.is_empty() {
            Some(RETRY_NS)
        } else {
            max_wait_ns
        };
        let events = self.connections.wait(max_wait_ns)?;
        let ready = std::mem::take(&mut self.busy)
            .into_iter()
            .chain(std::mem::take(&mut self.retrying));
        for index in ready {
            self.serve(index);
        }
        for event in events {
            if event.data.u64() == LISTENER_TOKEN {
                self.accept()?;
            } else if let Some(index) = self.connections.handle_event(event) {
                self.serve(index);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MAX_STEPS {
            // Made in advance, so that few system calls lie between accepting a connection and sharing it with the keeper.
            if self.spare_pipes.is_none() {
                self.spare_pipes = Some((Pipe::new()?, Pipe::new()?));
            }
            let Some(socket) = self.connections.accept()? else {
                return Ok(());
            };
            if !self.connections.admit(MAX_CONNECTIONS) {
                continue;
            }
            let (to_server, to_client) =
                self.spare_pipes.take().expect("the pipes were made above");
            let id = self.next_id;
            if let Some(keeper) = &mut self.keeper {
                keeper.send_opened(id, &socket, [&to_server, &to_client]);
            }
            let opened_ns = now_ns();
            if let Some(recorder) = &mut self.recorder {
                recorder.record_opened(id, opened_ns, &socket);
            }
            self.add(id, socket, None, to_server, to_client)?;
        }
        Ok(())
    }

    /// Pass on an accepted connection. `server`: its connection to the server, if it already has one.
    pub(crate) fn add(
        &mut self,
        id: u64,
        client: OwnedFd,
        server: Option<OwnedFd>,
        to_server: Pipe,
        to_client: Pipe,
    ) -> io::Result<()> {
        self.next_id = self.next_id.max(id + 1);
        let opened_ns = now_ns();
        let server = match server {
            Some(socket) => Upstream::Connecting(SocketEnd::assume_ready(socket)),
            None => Upstream::Due { at_ns: opened_ns },
        };
        let index = self.connections.add(Connection {
            client: SocketEnd::assume_ready(client),
            server,
            opened_ns,
            state: PassState {
                id,
                to_server,
                to_client,
            },
        })?;
        self.serve(index);
        Ok(())
    }

    /// Move the bytes that can be moved now; a connection that is over or broken is closed.
    fn serve(&mut self, index: usize) {
        let Some(mut connection) = self.connections.take(index) else {
            return;
        };
        let outcome = self
            .connect(&mut connection, index)
            .and_then(|()| Ok(self.advance(&mut connection, index)?));
        if matches!(outcome, Ok(true)) {
            self.connections.put_back(index, connection);
            return;
        }
        self.connections.free(index, &connection, outcome.err());
        if let Some(keeper) = &mut self.keeper {
            keeper.send_closed(connection.state.id);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_closed(connection.state.id, now_ns());
        }
    }

    fn connect(
        &mut self,
        connection: &mut Connection<PassState>,
        index: usize,
    ) -> Result<(), ConnectError> {
        let id = connection.state.id;
        self.connections.connect(connection, index, |socket| {
            if let Some(keeper) = &mut self.keeper {
                keeper.send_connected(id, socket);
            }
            if matches!(self.connections.target, Target::Unix { .. }) {
                self.ended.server_pid = peer_credentials(socket).map(|(pid, _)| pid);
            }
        })
    }

    /// Move the bytes that can be moved now; false if the connection is over.
    fn advance(
        &mut self,
        connection: &mut Connection<PassState>,
        index: usize,
    ) -> Result<bool, Errno> {
        let Upstream::Open(server) = &mut connection.server else {
            if matches!(connection.server, Upstream::Due { .. }) {
                self.retrying.push(index);
            }
            return Ok(true);
        };
        let client = &mut connection.client;
        let PassState {
            id,
            to_server,
            to_client,
        } = &mut connection.state;
        for _ in 0..MAX_STEPS {
            let mut moved = self.pass_bytes(*id, Direction::ToServer, to_server, client, server)?;
            moved |= self.pass_bytes(*id, Direction::ToClient, to_client, server, client)?;
            moved |= (to_client.receiver_gone && server.readable)
                || (to_server.receiver_gone && client.readable);
            let peer_gone = (client.is_hung_up && to_server.receiver_shut)
                || (server.is_hung_up && to_client.receiver_shut);
            if peer_gone || (to_server.receiver_shut && to_client.receiver_shut) {
                return Ok(false);
            }
            if !moved {
                return Ok(true);
            }
        }
        self.busy.push(index);
        Ok(true)
    }

    /// Move bytes in one direction, and count and record them; true if any were moved.
    fn pass_bytes(
        &mut self,
        id: u64,
        direction: Direction,
        pipe: &mut Pipe,
        sender: &mut SocketEnd,
        receiver: &mut SocketEnd,
    ) -> Result<bool, Errno> {
        let (taken, passed) = move_bytes(pipe, sender, receiver)?;
        let ended = &mut self.ended;
        let (total_taken, total_passed) = match direction {
            Direction::ToServer => (&mut ended.taken_to_server, &mut ended.passed_to_server),
            Direction::ToClient => (&mut ended.taken_to_client, &mut ended.passed_to_client),
        };
        *total_taken += taken as u64;
        *total_passed += passed as u64;
        if let Some(recorder) = self.recorder.as_mut().filter(|_| taken > 0) {
            recorder.record_bytes(id, direction, now_ns(), &pipe.read, taken);
        }
        Ok(taken + passed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::test_rig::{Rig, check_client_killed_while_both_wait};

    #[test]
    fn a_server_does_not_wait_for_a_killed_client() {
        let (rig, listener) = Rig::new("pass");
        let mut passer = Passer::new(listener, rig.target.clone(), Arc::clone(&rig.wake))
            .expect("the passer starts");
        check_client_killed_while_both_wait(&rig, || {
            passer
                .process_events(Some(0))
                .expect("the events are processed");
        });
    }
}
