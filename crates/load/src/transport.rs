//! An open connection's socket and the layers above it. The module `connection` decides what is sent.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net;

use crate::channel::Channel;
use crate::connection_error::ConnectionError;
use crate::context::WorkerContext;
use crate::session::{Replies, Session};
use crate::socket::send_some;
use crate::statements::Statements;
use crate::worker::driver::{Driver, Registration};

/// An open connection: its socket, its channel, the state of its protocol, and its prepared statements.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) socket: OwnedFd,
    pub(crate) channel: Channel,
    pub(crate) replies: Replies,
    pub(crate) statements: Statements,
    /// Bytes that could not be sent at once; nearly always empty.
    pub(crate) unsent: Vec<u8>,
    pub(crate) registration: Registration,
    /// Whether the socket is in blocking mode.
    pub(crate) is_blocking: bool,
}

impl Transport {
    pub(crate) fn new(socket: OwnedFd, session: Session) -> Self {
        Self {
            socket,
            channel: session.channel,
            replies: session.replies,
            statements: session.statements,
            unsent: Vec::new(),
            registration: Registration::default(),
            is_blocking: false,
        }
    }

    /// Send as many of the unsent bytes as is possible now.
    pub(crate) fn flush(&mut self, driver: &mut Driver) -> io::Result<()> {
        let sent = driver.send(&self.socket, &mut self.registration, &self.unsent)?;
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Send the packet in `context`; bytes that cannot be sent now are kept in `unsent`.
    #[inline]
    pub(crate) fn send(
        &mut self,
        context: &mut WorkerContext,
        driver: &mut Driver,
    ) -> Result<(), ConnectionError> {
        let bytes = if self.channel.is_plain() {
            &context.packet
        } else {
            context.sealed.clear();
            self.channel
                .seal(&context.packet, &mut context.sealed)
                .map_err(ConnectionError::Channel)?;
            &context.sealed
        };
        let sent = if self.unsent.is_empty() {
            driver
                .send(&self.socket, &mut self.registration, bytes)
                .map_err(ConnectionError::Io)?
        } else {
            0
        };
        if sent < bytes.len() {
            self.unsent.extend_from_slice(&bytes[sent..]);
        }
        Ok(())
    }

    /// Send the protocol's quit message and close. Errors are ignored, because the server may be gone already.
    pub(crate) fn close_with_goodbye(mut self) {
        let bytes = self.replies.sealed_goodbye(&mut self.channel);
        let _ = send_some(&self.socket, &bytes);
        let _ = net::shutdown(&self.socket, net::Shutdown::Both);
    }
}
