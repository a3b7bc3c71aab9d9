//! The loop over an `io_uring`, and the operations on sockets that need it. The hot path is `traffic` under both drivers.
//!
//! All sends of an iteration are submitted by the call that waits for the next events: a plain send wakes a server's thread, which
//! often takes the CPU before the next send.

use howfar_contract::{Failed, internal};
use rustix::event::epoll;

use super::driver::{Driver, Registration};
use super::{ALARM, EVENTS, INTEREST, WAKE, Worker};
use crate::connection::Broken;
use crate::failure;
use crate::ring::{Event, Ring, Token};
use crate::wire::Wire;

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
        while self.left > 0 {
            let patience_ns = self.patience_ns();
            let Some(ring) = self.ring() else { break };
            ring.wait(patience_ns).map_err(|error| broken(&error))?;
            while let Some(event) = self.ring().and_then(|ring| ring.next(&mut buffer)) {
                self.happened(event, &mut buffer)?;
                self.look_up()?;
            }
            if patience_ns.is_some() {
                self.on_time()?;
            }
        }
        // Submit the last goodbyes.
        if let Some(ring) = self.ring() {
            ring.wait(Some(0)).map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    fn watch_epoll(&mut self) -> Result<(), Failed> {
        let Driver::Ring(ring) = &mut self.driver else {
            return Ok(());
        };
        ring.watch(&self.epoll).map_err(|error| broken(&error))
    }

    #[inline]
    fn happened(&mut self, event: Event, buffer: &mut [u8]) -> Result<(), Failed> {
        match event {
            Event::Received {
                token,
                count,
                armed,
            } => {
                if !self.is_current(token) {
                    return Ok(());
                }
                self.delivered(token.index(), &buffer[..count])?;
                if armed { Ok(()) } else { self.arm(token) }
            }
            Event::Starved { token } => self.arm(token),
            Event::Doors { armed } => self.doors(armed, buffer),
            rare => self.rare(rare),
        }
    }

    #[cold]
    fn rare(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Over { token, error } if self.is_current(token) => {
                let target = &self.plan.job.target;
                let failed = match error {
                    None => failure::gone(target, "in the middle of the load"),
                    Some(error) => failure::broken(target, &error.into()),
                };
                self.lost(token.index(), failed)
            }
            Event::Refused { token, error } if self.is_current(token) => {
                self.broke(token.index(), &Broken::Io(error.into()))
            }
            Event::Unsent { token, mut rest } if self.is_current(token) => {
                if let Some(wire) = &mut self.connections[token.index()].wire {
                    rest.append(&mut wire.unsent);
                    wire.unsent = rest;
                }
                self.interest(token.index())
            }
            Event::Writable { token } if self.is_current(token) => self.flush(token.index()),
            // Events of sockets that are closed by now.
            _ => Ok(()),
        }
    }

    /// Handle events of `wake_fd` and of connections being opened.
    #[cold]
    fn doors(&mut self, armed: bool, buffer: &mut [u8]) -> Result<(), Failed> {
        if !armed {
            self.watch_epoll()?;
        }
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            self.look(&mut events, Some(0))?;
            for event in &events {
                match event.data.u64() {
                    WAKE => self.woken()?,
                    // The ring has its own timeout.
                    ALARM => {}
                    index => self.enter(index as usize, buffer)?,
                }
            }
            if events.len() < EVENTS {
                return Ok(());
            }
        }
    }

    /// Whether `token` belongs to the connection's present socket, not to one that is closed by now.
    #[inline]
    fn is_current(&self, token: Token) -> bool {
        let wire = &self.connections[token.index()].wire;
        wire.as_ref()
            .is_some_and(|wire| wire.registration.token == token)
    }

    #[cold]
    fn arm(&mut self, token: Token) -> Result<(), Failed> {
        let Driver::Ring(ring) = &mut self.driver else {
            return Ok(());
        };
        match &self.connections[token.index()].wire {
            Some(wire) if wire.registration.token == token => ring
                .arm(&wire.socket, token)
                .map_err(|error| broken(&error)),
            _ => Ok(()),
        }
    }

    /// Register an open connection, so that its bytes are delivered. `was_opening`: its socket is registered with epoll.
    pub(super) fn admit(&mut self, index: usize, was_opening: bool) -> Result<(), Failed> {
        let Some(wire) = &mut self.connections[index].wire else {
            return Ok(());
        };
        let Driver::Ring(ring) = &mut self.driver else {
            let token = epoll::EventData::new_u64(index as u64);
            let outcome = if was_opening {
                epoll::modify(&self.epoll, &wire.socket, token, INTEREST)
            } else {
                epoll::add(&self.epoll, &wire.socket, token, INTEREST)
            };
            return outcome.map_err(|error| internal(format!("epoll: {error}")));
        };
        if was_opening {
            epoll::delete(&self.epoll, &wire.socket)
                .map_err(|error| internal(format!("epoll: {error}")))?;
        }
        let token = ring
            .admit(&wire.socket, index)
            .map_err(|error| broken(&error))?;
        wire.registration = Registration::new(token);
        Ok(())
    }

    /// Close an open connection, with a goodbye or without.
    #[cold]
    pub(super) fn part(&mut self, mut wire: Wire, goodbye: bool) {
        let Driver::Ring(ring) = &mut self.driver else {
            if goodbye {
                wire.leave();
            }
            return;
        };
        let bytes = if goodbye { wire.goodbye() } else { Vec::new() };
        if !bytes.is_empty() {
            // The work is done, so errors are ignored.
            let _ = ring.send(&wire.socket, wire.registration.token, &bytes);
        }
        ring.retire(wire.socket);
    }
}

pub(super) fn broken(error: &std::io::Error) -> Failed {
    internal(format!("io_uring: {error}"))
}
