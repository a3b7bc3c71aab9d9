//! Moves bytes without holding them in this process: the kernel moves them from the socket into a pipe, and from the pipe into the
//! other socket. If this process is killed, another one that holds the same descriptors can continue at the same byte.
//!
//! A pipe is filled only when it is empty, so it holds exactly the bytes in transit. The recorder gets a copy (`tee`).

use std::io;
use std::os::fd::OwnedFd;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::address::peer_credentials;
use crate::application::Application;
use crate::end::{SocketEnd, now_ns};
use crate::jobs::RecordEnded;
use crate::keeper::Keeper;
use crate::proxy::{Mover, Proxy, Store};
use crate::record::Recorder;

/// Default capacity of a pipe; splicing more at once gains nothing.
const PIPE_BYTES: usize = 64 * 1024;
/// Interval between checks whether the application still runs.
const CHECK_INTERVAL_NS: u64 = 500_000_000;

/// The pipe of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
    held_bytes: usize,
}

impl Pipe {
    fn new() -> rustix::io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            read,
            write,
            held_bytes: 0,
        })
    }

    /// Wrap a pipe into which another process may have written.
    pub(crate) fn adopt([read, write]: [OwnedFd; 2]) -> rustix::io::Result<Self> {
        let held_bytes = rustix::io::ioctl_fionread(&read)? as usize;
        Ok(Self {
            read,
            write,
            held_bytes,
        })
    }
}

impl Store for Pipe {
    fn has_room(&self) -> bool {
        self.held_bytes == 0
    }

    fn is_empty(&self) -> bool {
        self.held_bytes == 0
    }

    fn next_due_ns(&self) -> Option<u64> {
        None
    }

    fn clear(&mut self) {
        self.held_bytes = 0;
    }
}

/// Moves bytes at once, and gives the recorder a copy.
#[derive(Debug, Default)]
pub(crate) struct Splice {
    last_id: u64,
    /// The recording's last event, as far as it is known.
    ended: RecordEnded,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) recorder: Option<Recorder>,
}

impl Mover for Splice {
    type Store = Pipe;
    /// The connection's ID.
    type State = u64;
    /// Each connection needs six descriptors.
    const MAX_CONNECTIONS: usize = 16_384;
    const TAKES_BEFORE_CONNECT: bool = false;

    fn make_stores() -> io::Result<[Pipe; 2]> {
        Ok([Pipe::new()?, Pipe::new()?])
    }

    fn open(&mut self, client: &OwnedFd, pipes: [&Pipe; 2], now: u64) -> (u64, u64) {
        self.last_id += 1;
        if let Some(keeper) = &mut self.keeper {
            let [to_server, to_client] = pipes;
            let descriptors = [
                client,
                &to_server.read,
                &to_server.write,
                &to_client.read,
                &to_client.write,
            ];
            keeper.send_opened(self.last_id, descriptors);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_opened(self.last_id, now, client);
        }
        (self.last_id, now)
    }

    fn take(
        &mut self,
        id: &mut u64,
        direction: Direction,
        pipe: &mut Pipe,
        sender: &mut SocketEnd,
    ) -> rustix::io::Result<Option<usize>> {
        let count = match move_bytes(&sender.socket, &pipe.write, PIPE_BYTES) {
            Ok(count) => count,
            Err(error) => return sender.end_of_read(error),
        };
        pipe.held_bytes = count;
        *match direction {
            Direction::ToServer => &mut self.ended.taken_to_server,
            Direction::ToClient => &mut self.ended.taken_to_client,
        } += count as u64;
        if let Some(recorder) = self.recorder.as_mut().filter(|_| count > 0) {
            recorder.record_bytes(*id, direction, now_ns(), &pipe.read, count);
        }
        Ok(Some(count))
    }

    fn give(
        &mut self,
        direction: Direction,
        pipe: &mut Pipe,
        receiver: &mut SocketEnd,
    ) -> rustix::io::Result<usize> {
        if pipe.held_bytes == 0 || !receiver.writable {
            return Ok(0);
        }
        let moved = move_bytes(&pipe.read, &receiver.socket, pipe.held_bytes);
        let count = receiver.written(moved)?;
        pipe.held_bytes -= count;
        *match direction {
            Direction::ToServer => &mut self.ended.passed_to_server,
            Direction::ToClient => &mut self.ended.passed_to_client,
        } += count as u64;
        Ok(count)
    }

    fn note_connecting(&mut self, id: &u64, server: &OwnedFd, target: &Target) {
        if let Some(keeper) = &mut self.keeper {
            keeper.send_connected(*id, server);
        }
        if matches!(target, Target::Unix { .. }) {
            self.ended.server_pid = peer_credentials(server).map(|(pid, _)| pid);
        }
    }

    fn note_closed(&mut self, id: &u64) {
        if let Some(keeper) = &mut self.keeper {
            keeper.send_closed(*id);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_closed(*id, now_ns());
        }
    }
}

fn move_bytes(from: &OwnedFd, to: &OwnedFd, max_bytes: usize) -> rustix::io::Result<usize> {
    retry_on_intr(|| splice(from, None, to, None, max_bytes, SpliceFlags::NONBLOCK))
}

impl Proxy<Splice> {
    /// Ask the recorder for its last event; false if its queue has no room now.
    pub(crate) fn finish_recording(&mut self) -> bool {
        let open = self.open_count() as u64;
        let Splice {
            ended,
            keeper,
            recorder,
            ..
        } = &mut self.mover;
        ended.open = open;
        ended.refused = self.refused;
        ended.refusal.clone_from(&self.refusal);
        ended.survives_kill = keeper.as_ref().is_some_and(|keeper| !keeper.is_lost());
        let is_done = recorder
            .as_mut()
            .is_none_or(|recorder| recorder.finish(ended));
        if is_done {
            *recorder = None;
        }
        is_done
    }

    /// Pass connections on until none is open and no process of the application is left.
    pub(crate) fn serve_application(&mut self, application: &Application) -> io::Result<()> {
        let mut next_check_ns = now_ns();
        loop {
            self.process_events(Some(CHECK_INTERVAL_NS))?;
            if self.open_count() == 0 && now_ns() >= next_check_ns {
                if !application.is_running() {
                    return Ok(());
                }
                next_check_ns = now_ns() + CHECK_INTERVAL_NS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::end::test_rig::{Rig, check_client_killed_while_both_wait};

    #[test]
    fn a_server_does_not_wait_for_a_killed_client() {
        let (rig, listener) = Rig::new("splice");
        let (target, wake) = (rig.target.clone(), Arc::clone(&rig.wake));
        let mut proxy =
            Proxy::new(Splice::default(), listener, target, wake).expect("the tap starts");
        check_client_killed_while_both_wait(&rig, || {
            proxy
                .process_events(Some(0))
                .expect("the events are processed");
        });
    }
}
