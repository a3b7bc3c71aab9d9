//! Connecting, losing and closing connections, before the load and under it.

use std::cmp::Reverse;

use howfar_contract::{FailCode, Failed, internal};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{INTEREST, Report, Worker};
use crate::acknowledged::KeyOutcome;
use crate::clock::now_ns;
use crate::connecting::Connecting;
use crate::connection::State;
use crate::failure::{self, TimeLimit};
use crate::protocol::Phase;
use crate::wire::Wire;

/// Connections being opened at a time: enough to hide a long round trip, below the usual length of a server's queue.
const AT_ONCE: usize = 128;
/// Pause between two attempts while the server's queue is full.
const BUSY_NS: u64 = 2_000_000;
/// Pause between two attempts while no server listens.
const GONE_NS: u64 = 10_000_000;
/// Events awaited while a connection is being opened: both directions.
const BOTH: EventFlags = INTEREST.union(EventFlags::OUT);

impl Worker<'_> {
    /// Open all closed connections before the load.
    pub(super) fn open_all(&mut self) -> Result<(), Failed> {
        for index in 0..self.connections.len() {
            if self.connections[index].wire.is_some() {
                self.admit(index, false)?;
            } else if !self.opens_later(index) {
                self.to_open.push_back(index as u32);
            }
        }
        self.let_in(now_ns())?;
        self.all_opened();
        Ok(())
    }

    /// Whether each transaction opens this connection anew: not opened before the load.
    fn opens_later(&self, index: usize) -> bool {
        self.connects_each_time()
            && self.connections[index].id < u64::from(self.plan.job.connections)
    }

    fn all_opened(&mut self) {
        if !self.opened && self.opening == 0 && self.to_open.is_empty() && self.timers.is_empty() {
            self.opened = true;
            let prepared = self.connections.iter().map(super::Connection::prepared);
            let prepared = prepared.sum();
            self.report(Report::Opened { prepared });
        }
    }

    pub(super) fn at(&mut self, when_ns: u64, index: usize) {
        self.connections[index].due_ns = when_ns;
        self.timers.push(Reverse((when_ns, index as u32)));
    }

    /// Open a connection as soon as fewer than [`AT_ONCE`] are being opened.
    pub(super) fn open(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        self.to_open.push_back(index as u32);
        self.let_in(now)
    }

    /// Begin to open waiting connections, up to [`AT_ONCE`] at a time.
    pub(super) fn let_in(&mut self, now: u64) -> Result<(), Failed> {
        while self.opening < AT_ONCE {
            let Some(index) = self.to_open.pop_front() else {
                break;
            };
            let index = index as usize;
            let connection = &mut self.connections[index];
            if connection.seeking_ns == 0 {
                connection.seeking_ns = now;
            }
            match Connecting::begin(&self.plan.entry(), &self.plan.address, now) {
                Ok(Some(opening)) => {
                    self.watch(&opening.socket, index as u64, BOTH)?;
                    self.connections[index].state = State::Connecting(Box::new(opening));
                    self.opening += 1;
                }
                Ok(None) => {
                    let limit = TimeLimit::of_load(self.plan.job.connect_timeout_ns);
                    let to_do = Phase::Connect.to_do();
                    let late = failure::too_slow(&self.plan.job.target, &to_do, limit);
                    self.try_later(index, BUSY_NS, now, late)?;
                }
                Err(failed) if self.may_seek(&failed) => {
                    self.try_later(index, GONE_NS, now, failed)?;
                }
                Err(failed) if self.ends_early() => self.end_early(index, failed)?,
                Err(failed) => return Err(failed),
            }
        }
        Ok(())
    }

    /// Whether another attempt may succeed and is allowed: under load, if the job requests reconnecting.
    fn may_seek(&self, failed: &Failed) -> bool {
        let mends = matches!(failed.code, FailCode::Connect | FailCode::ServerGone);
        self.load.is_some() && self.reconnects() && mends
    }

    fn try_later(
        &mut self,
        index: usize,
        pause_ns: u64,
        now: u64,
        failed: Failed,
    ) -> Result<(), Failed> {
        let since = self.connections[index].seeking_ns;
        if now.saturating_sub(since) > self.plan.job.connect_timeout_ns {
            if self.ends_early() {
                return self.end_early(index, failed);
            }
            return Err(failed);
        }
        self.connections[index].state = State::Waiting;
        self.at(now + pause_ns, index);
        if let Some(load) = self.load.as_mut().filter(|_| self.connections[index].lost) {
            load.tally.not_back(now, failed);
        }
        Ok(())
    }

    /// Handle an event of a connection that is being opened.
    pub(super) fn enter(&mut self, index: usize, buffer: &mut [u8]) -> Result<(), Failed> {
        let State::Connecting(opening) = &mut self.connections[index].state else {
            return Ok(());
        };
        let session = match opening.progress(&self.plan.entry(), buffer) {
            Ok(None) if opening.more => {
                // Registering again makes epoll report the rest, after the events of other connections.
                let token = EventData::new_u64(index as u64);
                return epoll::modify(&self.epoll, &opening.socket, token, BOTH)
                    .map_err(|error| internal(format!("epoll: {error}")));
            }
            Ok(None) => return Ok(()),
            Ok(Some(session)) => session,
            Err(failed) if self.may_seek(&failed) => {
                self.opening -= 1;
                return self.try_later(index, GONE_NS, now_ns(), failed);
            }
            Err(failed) if self.ends_early() => {
                self.opening -= 1;
                return self.end_early(index, failed);
            }
            Err(failed) => return Err(failed),
        };
        self.opening -= 1;
        let connection = &mut self.connections[index];
        let State::Connecting(opening) = std::mem::replace(&mut connection.state, State::Resting)
        else {
            return Ok(());
        };
        let now = now_ns();
        let opened_ns = now - opening.began_ns;
        connection.wire = Some(Box::new(Wire::new(opening.socket, session)));
        connection.since_open = 0;
        connection.seeking_ns = 0;
        self.admit(index, true)?;
        self.let_in(now)?;
        self.all_opened();
        self.entered(index, now, opened_ns)
    }

    /// Under load: continue the transaction that waited for the connection, or begin the next.
    fn entered(&mut self, index: usize, now: u64, opened_ns: u64) -> Result<(), Failed> {
        if self.stopping {
            self.leave(index);
            return Ok(());
        }
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        load.tally.connected(opened_ns);
        if std::mem::take(&mut self.connections[index].lost) {
            load.tally.reconnected();
        }
        self.tick(now);
        if self.connections[index].busy {
            self.proceed(index, now)
        } else if self.connections[index].rests {
            Ok(())
        } else if self.connections[index].id < u64::from(self.plan.job.connections) {
            self.next(index, now)
        } else {
            Ok(())
        }
    }

    /// Handle a broken connection: end the job or the window, or run the same transaction again on a new connection.
    #[cold]
    pub(super) fn lost(&mut self, index: usize, failed: Failed) -> Result<(), Failed> {
        if self.stopping {
            self.leave(index);
            return Ok(());
        }
        if self.ends_early() {
            return self.end_early(index, failed);
        }
        if self.load.is_none() || !self.reconnects() {
            return Err(failed);
        }
        let now = now_ns();
        self.log_key(index, now, KeyOutcome::Unknown)?;
        if let Some(load) = &mut self.load {
            load.tally.lost(now, failed);
            // A lost connection is no longer free.
            load.free.retain(|&free| free as usize != index);
        }
        let connection = &mut self.connections[index];
        let wire = connection.wire.take();
        connection.state = State::Closed;
        connection.due_ns = 0;
        connection.lost = true;
        if connection.busy {
            connection.used.errors += 1;
            connection.restart(&self.tools.program);
        }
        if let Some(wire) = wire {
            self.part(*wire, false);
        }
        self.open(index, now)
    }

    /// Close a connection on which nothing is in flight.
    pub(super) fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.state = State::Closed;
        if let Some(wire) = connection.wire.take() {
            self.part(*wire, true);
        }
    }

    /// Close a connection for good.
    pub(super) fn leave(&mut self, index: usize) {
        self.close(index);
        self.left = self.left.saturating_sub(1);
    }

    /// Stop: close connections without a pending answer at once, the others after their answer.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.to_open.clear();
        for index in 0..self.connections.len() {
            match self.connections[index].state {
                State::Asking => {}
                _ => self.leave(index),
            }
        }
    }
}
