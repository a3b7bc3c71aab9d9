//! A worker with one connection: the receive itself is the wait, which spares epoll's call and its wake-up.

use std::time::Duration;

use howfar_record::Failed;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, RecvFlags, SendFlags, sockopt};

use crate::clock::now_ns;
use crate::failure;
use crate::login::internal;
use crate::worker::{BUFFER, Received, Worker};

/// How often it looks at its orders: an interval that is told this much later harms nobody.
const LOOK_NS: u64 = 50_000_000;

impl Worker<'_> {
    pub(crate) fn is_alone(&self) -> bool {
        self.connections.len() == 1
    }

    /// The whole load of the one connection.
    pub(crate) fn serve_one(&mut self) -> Result<(), Failed> {
        let look_ns = LOOK_NS.min(self.plan.job.stall_timeout_ns / 4 + 1);
        let socket = &self.connections[0].socket;
        let look = Some(Duration::from_nanos(look_ns));
        ioctl_fionbio(socket, false)
            .and_then(|()| sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, look))
            .and_then(|()| sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, look))
            .map_err(|error| internal(format!("setting up a socket: {error}")))?;
        let mut buffer = vec![0; BUFFER];
        self.left = 1;
        let mut now = now_ns();
        let sent = self.connections[0].start(now, &mut self.tools);
        self.after_send(0, sent)?;
        let mut next_look = now;
        while self.left > 0 {
            if now >= next_look {
                self.rung()?;
                next_look = now + look_ns;
            }
            if !self.connections[0].unsent.is_empty() {
                self.push()?;
            }
            now = match self.receive(0, RecvFlags::empty(), &mut buffer)? {
                Received::Answer(now) => now,
                Received::Part { .. } | Received::Nothing => now_ns(),
            };
        }
        Ok(())
    }

    /// Send what the socket did not take at once, waiting for room.
    #[cold]
    fn push(&mut self) -> Result<(), Failed> {
        let connection = &mut self.connections[0];
        let sent = match net::send(&connection.socket, &connection.unsent, SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(failure::broken(&self.plan.job.target, &error.into())),
        };
        connection.unsent.drain(..sent);
        Ok(())
    }
}
