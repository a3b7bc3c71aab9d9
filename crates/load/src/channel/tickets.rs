//! TLS sessions to resume, shared by all connections of a job.
//!
//! The library's own store keeps eight tickets of TLS 1.3, each usable once. Of connections that are opened at the same time, only
//! some would resume their sessions; here there are enough tickets for all of them, once each was connected before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Maximum number of tickets: each has a few KiB, with the server's certificates; servers issue two per full handshake.
const MAX_TICKETS: usize = 1024;

/// The store. All connections of a job go to one server, so the server's name is ignored.
#[derive(Debug, Default)]
pub(super) struct Tickets(Mutex<StoredSessions>);

#[derive(Debug, Default)]
struct StoredSessions {
    group: Option<NamedGroup>,
    /// The newest session of TLS 1.2, usable any number of times.
    tls12: Option<Tls12ClientSessionValue>,
    /// Tickets of TLS 1.3, the newest last.
    tls13: Vec<Tls13ClientSessionValue>,
}

impl Tickets {
    fn lock_sessions(&self) -> MutexGuard<'_, StoredSessions> {
        // Each change is a single step, so a thread that panicked left a consistent state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock_sessions().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock_sessions().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.lock_sessions().tls12 = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock_sessions().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock_sessions().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let tickets = &mut self.lock_sessions().tls13;
        if tickets.len() < MAX_TICKETS {
            tickets.push(value);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock_sessions().tls13.pop()
    }
}
