//! The hot path: receive bytes, complete an answer, send the next statement.

use std::time::Duration;

use howfar_contract::{FailCode, Failed, internal};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::io::{ioctl_fionbio, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, RecvFlags};

use super::driver::Driver;
use super::{INTEREST, Worker};
use crate::clock::now_ns;
use crate::connection::{NextStep, State, Step, Work};
use crate::connection_error::ConnectionError;
use crate::failure;
use crate::session::{Outcome, ServerRefusal};
use crate::tally::TransactionTimes;

/// Maximum time for receiving from one connection that always has more bytes; then the worker serves the others and checks the time
/// limits.
const MAX_RECEIVING_NS: u64 = 5_000_000;

/// Maximum time of one blocking receive on the only connection; then the worker checks commands and time limits.
const MAX_RECEIVE_WAIT: Duration = Duration::from_millis(10);

/// Events of a socket that the peer has closed or that failed: no further bytes will arrive.
const CLOSED_EVENTS: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);

/// The result of a receive.
enum Received {
    Nothing,
    /// Part of an answer. `is_full`: it filled the buffer, so there may be more.
    Part {
        is_full: bool,
    },
    /// An answer was completed, or the connection is lost.
    Ended,
}

impl Worker<'_> {
    #[inline]
    pub(super) fn handle_ready(
        &mut self,
        index: usize,
        flags: EventFlags,
        buffer: &mut [u8],
    ) -> Result<(), Failed> {
        if matches!(self.connections[index].state, State::Connecting(..)) {
            return self.progress_opening(index, buffer);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(index)?;
        }
        let is_closed = flags.intersects(CLOSED_EVENTS);
        let mut deadline_ns = 0;
        loop {
            match self.receive(index, buffer, RecvFlags::DONTWAIT)? {
                Received::Nothing => return Ok(()),
                Received::Part { is_full: false } | Received::Ended if !is_closed => return Ok(()),
                _ => {}
            }
            let now = now_ns();
            if deadline_ns == 0 {
                deadline_ns = now + MAX_RECEIVING_NS;
            } else if now > deadline_ns {
                // Registering again makes epoll report the rest later: an answer may be very long, or endless.
                return self.update_interest(index);
            }
        }
    }

    /// Wait up to [`MAX_RECEIVE_WAIT`] for the next part of the answer, on the worker's only connection. False if nothing came.
    #[inline]
    pub(super) fn await_answer(&mut self, index: usize, buffer: &mut [u8]) -> Result<bool, Failed> {
        let transport = self.connections[index].transport_mut();
        if let Some(transport) = transport.filter(|transport| !transport.is_blocking) {
            sockopt::set_socket_timeout(&transport.socket, Timeout::Recv, Some(MAX_RECEIVE_WAIT))
                .and_then(|()| ioctl_fionbio(&transport.socket, false))
                .map_err(|error| internal(format!("setting a socket up: {error}")))?;
            transport.is_blocking = true;
        }
        let received = self.receive(index, buffer, RecvFlags::empty())?;
        Ok(!matches!(received, Received::Nothing))
    }

    /// Receive once; after a complete answer, continue with the next statement.
    #[inline]
    fn receive(
        &mut self,
        index: usize,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<Received, Failed> {
        let Some(transport) = self.connections[index].transport() else {
            return Ok(Received::Nothing);
        };
        // Retry after a signal: epoll would not report these bytes again.
        let count = match retry_on_intr(|| net::recv(&transport.socket, &mut *buffer, flags)) {
            Ok((0, _)) => {
                let failed = failure::connection_closed(
                    &self.plan.job.login.target,
                    "in the middle of the load",
                );
                return self.handle_loss(index, failed).map(|()| Received::Ended);
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => {
                let failed = failure::connection_broken(&self.plan.job.login.target, &error.into());
                return self.handle_loss(index, failed).map(|()| Received::Ended);
            }
        };
        if self.handle_bytes(index, &buffer[..count])? {
            return Ok(Received::Ended);
        }
        Ok(Received::Part {
            is_full: count == buffer.len(),
        })
    }

    /// Handle received bytes; after a complete answer, continue with the next statement. True if an answer was completed or the
    /// connection is lost.
    #[inline]
    pub(super) fn handle_bytes(&mut self, index: usize, bytes: &[u8]) -> Result<bool, Failed> {
        let connection = &mut self.connections[index];
        let mut last_byte_ns = 0;
        if self.plan.job.breakdown {
            last_byte_ns = now_ns();
            if let Some(transaction) = connection.transaction_mut() {
                if let Step::AwaitingAnswer { first_byte_ns, .. } = &mut transaction.step {
                    first_byte_ns.get_or_insert(last_byte_ns);
                }
            }
        }
        let awaits_answer = connection.awaits_answer();
        let outcome = match connection.decode(bytes, &mut self.context) {
            Ok(Some(Outcome::Failed(error))) if !awaits_answer => {
                let failed = failure::session_ended(&self.plan.job.login.target, &error);
                return self.handle_loss(index, failed).map(|()| true);
            }
            Ok(outcome) => outcome,
            Err(
                ConnectionError::Malformed(_)
                | ConnectionError::MalformedKeyValue(_)
                | ConnectionError::MalformedPostgres(_),
            ) if !awaits_answer => {
                let failed = failure::connection_closed(
                    &self.plan.job.login.target,
                    "while nothing was asked",
                );
                return self.handle_loss(index, failed).map(|()| true);
            }
            Err(error) => return self.handle_error(index, &error).map(|()| true),
        };
        if connection
            .transport()
            .is_some_and(|transport| !transport.unsent.is_empty())
        {
            self.flush(index)?;
        }
        let Some(outcome) = outcome else {
            return Ok(false);
        };
        let now = now_ns();
        self.pass_due_edges(now);
        self.measure(index, now, last_byte_ns, &outcome);
        let code = match &outcome {
            Outcome::Failed(error) => Some(error.code),
            Outcome::Done(_) | Outcome::Commands => None,
        };
        let next_step = self.connections[index].handle_outcome(outcome, &self.context);
        self.log_answer(index, now, code, &next_step)?;
        self.continue_after(index, next_step, now)?;
        Ok(true)
    }

    #[inline]
    fn continue_after(
        &mut self,
        index: usize,
        next_step: NextStep,
        now: u64,
    ) -> Result<(), Failed> {
        if self.is_stopping {
            self.close_for_good(index);
            return Ok(());
        }
        match next_step {
            NextStep::Statement => self.send_or_pause(index, now),
            NextStep::Transaction => self.end_transaction(index, now),
            NextStep::Refused(ServerRefusal::Command(refusal)) => {
                let name = self.connections[index].statement_name(&self.context.program);
                Err(failure::command_failed(
                    &self.plan.job.login.target,
                    name,
                    &refusal,
                ))
            }
            NextStep::Refused(ServerRefusal::Sql(error)) => {
                let name = self.connections[index].statement_name(&self.context.program);
                let name = name.strip_prefix("statement.").unwrap_or(name);
                let operation = format!("the statement {name}");
                let failed =
                    failure::statement_failed(&self.plan.job.login.target, &operation, &error);
                if failed.code == FailCode::ServerGone {
                    return self.handle_loss(index, failed);
                }
                Err(failed)
            }
        }
    }

    /// Send the next statement, at once or after a pause.
    #[inline]
    pub(super) fn send_or_pause(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let think_ns = self.connections[index].think_ns();
        if think_ns == 0 {
            return self.send(index, now);
        }
        let until_ns = now + think_ns;
        self.connections[index].pause(until_ns);
        self.set_timer(until_ns, index);
        Ok(())
    }

    #[inline]
    pub(super) fn send(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        if let Err(error) = connection.send(now, &mut self.context, &mut self.driver) {
            return self.handle_error(index, &error);
        }
        if connection
            .transport()
            .is_some_and(|transport| !transport.unsent.is_empty())
        {
            return self.update_interest(index);
        }
        Ok(())
    }

    /// Handle the end of a successful transaction.
    #[inline]
    fn end_transaction(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        let Work::Active(transaction) = &connection.work else {
            unreachable!("a transaction is under way until it is counted here")
        };
        let times = TransactionTimes {
            intended_ns: transaction.intended_ns,
            began_ns: transaction.began_ns,
            now,
        };
        if let Some(load) = &mut self.load {
            if load.tally.is_counted(&times) {
                connection.window_transactions += 1;
                connection.busy_ns += now - transaction.began_ns;
            }
            load.tally.count_transaction(&times, &transaction.counters);
        }
        connection.work = Work::Idle { first_ns: None };
        let reconnect_after = self.plan.job.session.reconnect_after;
        let must_reconnect =
            reconnect_after > 0 && connection.transactions_since_open >= reconnect_after;
        if self.connects_each_time() {
            self.close(index);
        } else if must_reconnect {
            self.close(index);
            self.open(index, now, false)?;
            return Ok(());
        }
        self.start_next(index, now)
    }

    /// Begin the next transaction, if there is one, on a connection that has none.
    #[inline]
    pub(super) fn start_next(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        if let Some(schedule) = &mut load.schedule {
            if schedule.is_closed() {
                self.drain(index);
                return Ok(());
            }
            if schedule.next_ns() > now {
                load.free_connections.push_back((index as u32, now));
                return Ok(());
            }
            // The request could not have begun before now, when its connection became free.
            return self.begin_due(index, now, now);
        }
        if !self.claim_transaction() {
            self.drain(index);
            return Ok(());
        }
        self.begin(index, now, now)
    }

    /// Open loop: begin requests that are due while connections are free.
    pub(super) fn serve_arrivals(&mut self, now: u64) -> Result<(), Failed> {
        if self.is_stopping {
            return Ok(());
        }
        while let Some(load) = &mut self.load {
            let Some(schedule) = &load.schedule else {
                break;
            };
            if schedule.next_ns() > now {
                break;
            }
            let Some((index, free_since_ns)) = load.free_connections.pop_front() else {
                break;
            };
            self.begin_due(index as usize, free_since_ns, now)?;
        }
        Ok(())
    }

    /// Open loop: begin the next due request on a connection that has been free since `free_since_ns`.
    fn begin_due(&mut self, index: usize, free_since_ns: u64, now: u64) -> Result<(), Failed> {
        let may_begin = self.claim_transaction();
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        let Some(schedule) = &mut load.schedule else {
            return Ok(());
        };
        if !may_begin {
            schedule.close();
            self.drain(index);
            // Connections that wait for an arrival have no more work either.
            let free_connections = self
                .load
                .as_mut()
                .map(|load| std::mem::take(&mut load.free_connections));
            for (index, _) in free_connections.into_iter().flatten() {
                self.drain(index as usize);
            }
            return Ok(());
        }
        let Some(due_ns) = schedule.take(now) else {
            return Ok(());
        };
        load.tally
            .record_lateness(due_ns, due_ns.max(free_since_ns), now);
        if load.free_connections.is_empty() && load.tally.is_counting() {
            let waiting_requests = schedule.waiting_count(now);
            let backlog_max = &mut load.tally.totals.backlog_max;
            *backlog_max = waiting_requests.max(*backlog_max);
        }
        self.begin(index, due_ns, now)
    }

    /// Claim one of the limited number of transactions; false if none is left. Transactions before the window are not limited.
    #[inline]
    fn claim_transaction(&self) -> bool {
        let is_limited =
            |load: &super::Load| load.tally.is_counting() || load.tally.next_edge_ns() == u64::MAX;
        !self.load.as_ref().is_some_and(is_limited) || self.plan.claim_transaction()
    }

    #[inline]
    fn begin(&mut self, index: usize, intended_ns: u64, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        connection.begin(intended_ns, now, &self.context.program);
        if connection.transport().is_some() {
            return self.send_or_pause(index, now);
        }
        self.open(index, now, false)
    }

    /// Mark a connection as finished, because no further transaction may begin. It stays finished if it is opened again.
    #[cold]
    fn drain(&mut self, index: usize) {
        let work = std::mem::replace(&mut self.connections[index].work, Work::Finished);
        if matches!(work, Work::Finished) {
            return;
        }
        self.drained_connections += 1;
        if self.drained_connections >= self.used_connections && !self.is_drained {
            self.is_drained = true;
            self.send_event(super::WorkerEvent::Drained);
        }
    }

    #[cold]
    pub(super) fn flush(&mut self, index: usize) -> Result<(), Failed> {
        let Some(transport) = self.connections[index].transport_mut() else {
            return Ok(());
        };
        if let Err(error) = transport.flush(&mut self.driver) {
            return self.handle_error(index, &ConnectionError::Io(error));
        }
        self.update_interest(index)
    }

    /// If there are unsent bytes, request an event when the socket can take them.
    #[cold]
    pub(super) fn update_interest(&mut self, index: usize) -> Result<(), Failed> {
        let Some(transport) = self.connections[index].transport() else {
            return Ok(());
        };
        if let Driver::Ring(ring) = &mut self.driver {
            if transport.unsent.is_empty() {
                return Ok(());
            }
            return ring
                .await_writable(&transport.socket, transport.registration.token)
                .map_err(|error| super::uring::ring_failure(&error));
        }
        let flags = if transport.unsent.is_empty() {
            INTEREST
        } else {
            INTEREST | EventFlags::OUT
        };
        let token = EventData::new_u64(index as u64);
        epoll::modify(&self.epoll, &transport.socket, token, flags)
            .map_err(|error| internal(format!("epoll: {error}")))
    }
}
