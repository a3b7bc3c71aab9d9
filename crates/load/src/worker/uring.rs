//! The loop over an `io_uring`, and the operations on sockets that need it. The hot path is `traffic` under both drivers.
//!
//! All sends of an iteration are submitted by the call that waits for the next events: a plain send wakes a server's thread, which
//! often takes the CPU before the next send.

use howfar_contract::{Failed, internal};
use rustix::event::epoll;

use super::driver::{Driver, Registration};
use super::{ALARM, INTEREST, MAX_EVENTS, WAKE, Worker};
use crate::connection_error::ConnectionError;
use crate::failure;
use crate::ring::{Event, Ring, Token};
use crate::transport::Transport;

impl Worker<'_> {
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        match &mut self.driver {
            Driver::Epoll => None,
            Driver::Ring(ring) => Some(ring),
        }
    }

    pub(super) fn serve_ring(&mut self) -> Result<(), Failed> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.watch_epoll()?;
        while self.remaining_connections > 0 {
            let max_wait_ns = self.max_wait_ns();
            let Some(ring) = self.ring() else { break };
            ring.wait(max_wait_ns)
                .map_err(|error| ring_failure(&error))?;
            while let Some(event) = self.ring().and_then(|ring| ring.next(&mut buffer)) {
                self.handle_ring_event(event, &mut buffer)?;
                self.check_after_work()?;
            }
            if max_wait_ns.is_some() {
                self.handle_due()?;
            }
        }
        // Submit the goodbyes of the last connections.
        if let Some(ring) = self.ring() {
            ring.wait(Some(0)).map_err(|error| ring_failure(&error))?;
        }
        Ok(())
    }

    fn watch_epoll(&mut self) -> Result<(), Failed> {
        let Driver::Ring(ring) = &mut self.driver else {
            return Ok(());
        };
        ring.watch(&self.epoll)
            .map_err(|error| ring_failure(&error))
    }

    #[inline]
    fn handle_ring_event(&mut self, event: Event, buffer: &mut [u8]) -> Result<(), Failed> {
        match event {
            Event::Received {
                token,
                count,
                is_armed,
            } => {
                if !self.is_current(token) {
                    return Ok(());
                }
                self.handle_bytes(token.index(), &buffer[..count])?;
                if is_armed {
                    Ok(())
                } else {
                    self.arm_receive(token)
                }
            }
            Event::Starved { token } => self.arm_receive(token),
            Event::EpollReady { is_armed } => self.handle_epoll(is_armed, buffer),
            other => self.handle_rare_event(other),
        }
    }

    #[cold]
    fn handle_rare_event(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Closed { token, error } if self.is_current(token) => {
                let target = &self.plan.job.login.target;
                let failed = match error {
                    None => failure::connection_closed(target, "in the middle of the load"),
                    Some(error) => failure::connection_broken(target, &error.into()),
                };
                self.handle_loss(token.index(), failed)
            }
            Event::SendFailed { token, error } if self.is_current(token) => {
                self.handle_error(token.index(), &ConnectionError::Io(error.into()))
            }
            Event::Unsent { token, mut rest } if self.is_current(token) => {
                if let Some(transport) = self.connections[token.index()].transport_mut() {
                    rest.append(&mut transport.unsent);
                    transport.unsent = rest;
                }
                self.update_interest(token.index())
            }
            Event::Writable { token } if self.is_current(token) => self.flush(token.index()),
            // Events of sockets that are closed by now.
            _ => Ok(()),
        }
    }

    /// Handle events of `wake_fd` and of connections being opened.
    #[cold]
    fn handle_epoll(&mut self, is_armed: bool, buffer: &mut [u8]) -> Result<(), Failed> {
        if !is_armed {
            self.watch_epoll()?;
        }
        let mut events = Vec::with_capacity(MAX_EVENTS);
        loop {
            events.clear();
            self.poll(&mut events, Some(0))?;
            for event in &events {
                match event.data.u64() {
                    WAKE => self.handle_wakeup()?,
                    // The ring has its own timeout.
                    ALARM => {}
                    index => self.progress_opening(index as usize, buffer)?,
                }
            }
            if events.len() < MAX_EVENTS {
                return Ok(());
            }
        }
    }

    /// Whether `token` belongs to the connection's present socket, not to one that is closed by now.
    #[inline]
    fn is_current(&self, token: Token) -> bool {
        self.connections[token.index()]
            .transport()
            .is_some_and(|transport| transport.registration.token == token)
    }

    #[cold]
    fn arm_receive(&mut self, token: Token) -> Result<(), Failed> {
        let Driver::Ring(ring) = &mut self.driver else {
            return Ok(());
        };
        match self.connections[token.index()].transport() {
            Some(transport) if transport.registration.token == token => ring
                .arm_receive(&transport.socket, token)
                .map_err(|error| ring_failure(&error)),
            _ => Ok(()),
        }
    }

    /// Register an open connection, so that its bytes are delivered. `was_opening`: its socket is registered with epoll.
    pub(super) fn register(&mut self, index: usize, was_opening: bool) -> Result<(), Failed> {
        let Some(transport) = self.connections[index].transport_mut() else {
            return Ok(());
        };
        let Driver::Ring(ring) = &mut self.driver else {
            let token = epoll::EventData::new_u64(index as u64);
            let outcome = if was_opening {
                epoll::modify(&self.epoll, &transport.socket, token, INTEREST)
            } else {
                epoll::add(&self.epoll, &transport.socket, token, INTEREST)
            };
            return outcome.map_err(|error| internal(format!("epoll: {error}")));
        };
        if was_opening {
            epoll::delete(&self.epoll, &transport.socket)
                .map_err(|error| internal(format!("epoll: {error}")))?;
        }
        let token = ring
            .register(&transport.socket, index)
            .map_err(|error| ring_failure(&error))?;
        transport.registration = Registration::new(token);
        Ok(())
    }

    /// Close an open connection, with a goodbye or without.
    #[cold]
    pub(super) fn close_transport(&mut self, mut transport: Transport, goodbye: bool) {
        let Driver::Ring(ring) = &mut self.driver else {
            if goodbye {
                transport.close_with_goodbye();
            }
            return;
        };
        let bytes = if goodbye {
            transport.replies.sealed_goodbye(&mut transport.channel)
        } else {
            Vec::new()
        };
        if !bytes.is_empty() {
            // The work is done, so errors are ignored.
            let _ = ring.send(&transport.socket, transport.registration.token, &bytes);
        }
        ring.close_later(transport.socket);
    }
}

pub(super) fn ring_failure(error: &std::io::Error) -> Failed {
    internal(format!("io_uring: {error}"))
}
