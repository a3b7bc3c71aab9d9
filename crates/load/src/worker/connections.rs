//! Connecting, losing and closing connections, before the load and under it.

use std::cmp::Reverse;

use howfar_contract::{FailCode, Failed, internal};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{INTEREST, Worker, WorkerEvent};
use crate::acknowledged::KeyOutcome;
use crate::clock::now_ns;
use crate::connecting::Connecting;
use crate::connection::{Connection, Opening, State, Work};
use crate::failure::{self, TimeLimit};
use crate::session::Phase;
use crate::transport::Transport;

/// Maximum number of connections being opened at a time: enough to hide a long round trip, below the usual length of a server's
/// queue.
const MAX_OPENING: usize = 128;
/// Pause between two attempts while the server's queue is full.
const QUEUE_FULL_RETRY_NS: u64 = 2_000_000;
/// Pause between two attempts while no server listens.
const NO_LISTENER_RETRY_NS: u64 = 10_000_000;
/// Events awaited while a connection is being opened: readable and writable.
const READ_AND_WRITE: EventFlags = INTEREST.union(EventFlags::OUT);

impl Worker<'_> {
    /// Open all closed connections before the load.
    pub(super) fn open_all(&mut self) -> Result<(), Failed> {
        for index in 0..self.connections.len() {
            if self.connections[index].transport().is_some() {
                self.register(index, false)?;
            } else if !self.opens_later(index) {
                self.enqueue(index, None, false);
            }
        }
        self.open_waiting(now_ns())?;
        self.report_if_opened();
        Ok(())
    }

    /// Whether each transaction opens this connection; then it is not opened before the load.
    fn opens_later(&self, index: usize) -> bool {
        self.connects_each_time()
            && self.connections[index].id < u64::from(self.plan.job.connections)
    }

    fn report_if_opened(&mut self) {
        if !self.has_reported_opened
            && self.opening_count == 0
            && self.queued_connections.is_empty()
            && self.timers.is_empty()
        {
            self.has_reported_opened = true;
            let counts = self.connections.iter().map(Connection::prepared_count);
            let prepared = counts.sum();
            self.send_event(WorkerEvent::Opened { prepared });
        }
    }

    /// Set a timer at which the connection leaves its state.
    pub(super) fn set_timer(&mut self, when_ns: u64, index: usize) {
        self.timers.push(Reverse((when_ns, index as u32)));
    }

    /// Open a connection as soon as fewer than [`MAX_OPENING`] are being opened.
    pub(super) fn open(&mut self, index: usize, now: u64, after_loss: bool) -> Result<(), Failed> {
        self.enqueue(index, None, after_loss);
        self.open_waiting(now)
    }

    /// Add a connection to those that wait to be opened. `since_ns`: when the first attempt began, if there was one.
    pub(super) fn enqueue(&mut self, index: usize, since_ns: Option<u64>, after_loss: bool) {
        self.connections[index].state = State::Queued {
            since_ns,
            after_loss,
        };
        self.queued_connections.push_back(index as u32);
    }

    /// Begin to open waiting connections, up to [`MAX_OPENING`] at a time.
    pub(super) fn open_waiting(&mut self, now: u64) -> Result<(), Failed> {
        while self.opening_count < MAX_OPENING {
            let Some(index) = self.queued_connections.pop_front() else {
                break;
            };
            let index = index as usize;
            let State::Queued {
                since_ns,
                after_loss,
            } = self.connections[index].state
            else {
                continue;
            };
            let opening = Opening {
                since_ns: since_ns.unwrap_or(now),
                after_loss,
            };
            match Connecting::begin(&self.plan.login_parameters(), &self.plan.address, now) {
                Ok(Some(connecting)) => {
                    self.watch(&connecting.socket, index as u64, READ_AND_WRITE)?;
                    self.connections[index].state =
                        State::Connecting(opening, Box::new(connecting));
                    self.opening_count += 1;
                }
                Ok(None) => {
                    let limit = TimeLimit::for_opening(self.plan.job.connect_timeout_ns);
                    let to_do = Phase::Connect.to_do();
                    let failed = failure::timed_out(&self.plan.job.login.target, &to_do, limit);
                    self.retry_later(index, opening, QUEUE_FULL_RETRY_NS, now, failed)?;
                }
                Err(failed) if self.may_retry(&failed) => {
                    self.retry_later(index, opening, NO_LISTENER_RETRY_NS, now, failed)?;
                }
                Err(failed) if self.loss_ends_window() => self.end_window_early(index, failed)?,
                Err(failed) => return Err(failed),
            }
        }
        Ok(())
    }

    /// Whether another attempt may succeed and is allowed: under load, if the job requests reconnecting.
    fn may_retry(&self, failed: &Failed) -> bool {
        let is_transient = matches!(failed.code, FailCode::Connect | FailCode::ServerGone);
        self.load.is_some() && self.reconnects() && is_transient
    }

    fn retry_later(
        &mut self,
        index: usize,
        opening: Opening,
        pause_ns: u64,
        now: u64,
        failed: Failed,
    ) -> Result<(), Failed> {
        if now.saturating_sub(opening.since_ns) > self.plan.job.connect_timeout_ns {
            if self.loss_ends_window() {
                return self.end_window_early(index, failed);
            }
            return Err(failed);
        }
        let until_ns = now + pause_ns;
        self.connections[index].state = State::WaitingToRetry { opening, until_ns };
        self.set_timer(until_ns, index);
        if let Some(load) = self.load.as_mut().filter(|_| opening.after_loss) {
            load.tally.note_failed_reopen(now, failed);
        }
        Ok(())
    }

    /// Handle an event of a connection that is being opened.
    pub(super) fn progress_opening(
        &mut self,
        index: usize,
        buffer: &mut [u8],
    ) -> Result<(), Failed> {
        let State::Connecting(opening, connecting) = &mut self.connections[index].state else {
            return Ok(());
        };
        let opening = *opening;
        let session = match connecting.progress(&self.plan.login_parameters(), buffer) {
            Ok(None) if connecting.may_have_more => {
                // Registering again makes epoll report the rest, after the events of other connections.
                let token = EventData::new_u64(index as u64);
                return epoll::modify(&self.epoll, &connecting.socket, token, READ_AND_WRITE)
                    .map_err(|error| internal(format!("epoll: {error}")));
            }
            Ok(None) => return Ok(()),
            Ok(Some(session)) => session,
            Err(failed) if self.may_retry(&failed) => {
                self.opening_count -= 1;
                return self.retry_later(index, opening, NO_LISTENER_RETRY_NS, now_ns(), failed);
            }
            Err(failed) if self.loss_ends_window() => {
                self.opening_count -= 1;
                return self.end_window_early(index, failed);
            }
            Err(failed) => return Err(failed),
        };
        self.opening_count -= 1;
        let connection = &mut self.connections[index];
        let State::Connecting(_, connecting) =
            std::mem::replace(&mut connection.state, State::Closed)
        else {
            return Ok(());
        };
        let now = now_ns();
        let opened_ns = now - connecting.began_ns;
        connection.state = State::Open(Box::new(Transport::new(connecting.socket, session)));
        connection.transactions_since_open = 0;
        self.register(index, true)?;
        self.open_waiting(now)?;
        self.report_if_opened();
        self.resume(index, now, opened_ns, opening.after_loss)
    }

    /// Under load, continue the transaction that waited for the connection, or begin the next.
    fn resume(
        &mut self,
        index: usize,
        now: u64,
        opened_ns: u64,
        after_loss: bool,
    ) -> Result<(), Failed> {
        if self.is_stopping {
            self.close_for_good(index);
            return Ok(());
        }
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        load.tally.record_connect(opened_ns);
        if after_loss {
            load.tally.count_reconnect();
        }
        self.pass_due_edges(now);
        let connection = &self.connections[index];
        match connection.work {
            Work::Active(_) => self.send_or_pause(index, now),
            Work::Idle { .. } if connection.id < u64::from(self.plan.job.connections) => {
                self.start_next(index, now)
            }
            Work::Idle { .. } | Work::Finished => Ok(()),
        }
    }

    /// Handle a broken connection: end the job or the window, or run the same transaction again on a new connection.
    #[cold]
    pub(super) fn handle_loss(&mut self, index: usize, failed: Failed) -> Result<(), Failed> {
        if self.is_stopping {
            self.close_for_good(index);
            return Ok(());
        }
        if self.loss_ends_window() {
            return self.end_window_early(index, failed);
        }
        if self.load.is_none() || !self.reconnects() {
            return Err(failed);
        }
        let now = now_ns();
        self.log_key(index, now, KeyOutcome::Unknown)?;
        if let Some(load) = &mut self.load {
            load.tally.count_loss(now, failed);
            // A lost connection is no longer free.
            load.free_connections
                .retain(|&(free_index, _)| free_index as usize != index);
        }
        let connection = &mut self.connections[index];
        let transport = connection.lose();
        connection.restart(&self.context.program);
        if let Some(transport) = transport {
            self.close_transport(transport, false);
        }
        self.open(index, now, true)
    }

    /// Close a connection on which nothing is in flight.
    pub(super) fn close(&mut self, index: usize) {
        if let Some(transport) = self.connections[index].close() {
            self.close_transport(transport, true);
        }
    }

    /// Close a connection that will not be opened again.
    pub(super) fn close_for_good(&mut self, index: usize) {
        self.close(index);
        self.remaining_connections = self.remaining_connections.saturating_sub(1);
    }

    /// Stop the worker: close connections without a pending answer at once, the others after their answer.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
        self.queued_connections.clear();
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.transport().is_none() || !connection.awaits_answer() {
                self.close_for_good(index);
            }
        }
    }
}
