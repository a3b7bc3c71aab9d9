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
use crate::connection::{After, Broken, State};
use crate::failure;
use crate::protocol::{Outcome, Refused};
use crate::tally::Ended;

/// Maximum time in a row for a connection that always has more bytes; then the worker serves the others and checks the time limits.
const TURN_NS: u64 = 5_000_000;

/// Maximum time of one blocking receive on the only connection; then the worker checks orders and time limits.
const WAIT: Duration = Duration::from_millis(10);

/// The peer has closed or the socket failed: no byte follows those that have arrived.
const CLOSED: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);

/// The result of a receive.
enum Received {
    Nothing,
    /// Part of an answer. `full`: it filled the buffer, so there may be more.
    Part {
        full: bool,
    },
    /// An answer was completed, or the connection is lost.
    Over,
}

impl Worker<'_> {
    #[inline]
    pub(super) fn ready(
        &mut self,
        index: usize,
        flags: EventFlags,
        buffer: &mut [u8],
    ) -> Result<(), Failed> {
        if matches!(self.connections[index].state, State::Connecting(_)) {
            return self.enter(index, buffer);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(index)?;
        }
        let is_closed = flags.intersects(CLOSED);
        let mut until_ns = 0;
        loop {
            match self.receive(index, buffer, RecvFlags::DONTWAIT)? {
                Received::Nothing => return Ok(()),
                Received::Part { full: false } | Received::Over if !is_closed => return Ok(()),
                _ => {}
            }
            let now = now_ns();
            if until_ns == 0 {
                until_ns = now + TURN_NS;
            } else if now > until_ns {
                // Registering again makes epoll report the rest: an answer need not end soon, or at all.
                return self.interest(index);
            }
        }
    }

    /// Wait up to [`WAIT`] for the next part of the answer on the only connection. False if nothing came.
    #[inline]
    pub(super) fn await_answer(&mut self, index: usize, buffer: &mut [u8]) -> Result<bool, Failed> {
        let wire = self.connections[index].wire.as_mut();
        if let Some(wire) = wire.filter(|wire| !wire.blocks) {
            sockopt::set_socket_timeout(&wire.socket, Timeout::Recv, Some(WAIT))
                .and_then(|()| ioctl_fionbio(&wire.socket, false))
                .map_err(|error| internal(format!("setting a socket up: {error}")))?;
            wire.blocks = true;
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
        how: RecvFlags,
    ) -> Result<Received, Failed> {
        let Some(wire) = &self.connections[index].wire else {
            return Ok(Received::Nothing);
        };
        // Retry after a signal: epoll would not report these bytes again.
        let count = match retry_on_intr(|| net::recv(&wire.socket, &mut *buffer, how)) {
            Ok((0, _)) => {
                let failed = failure::gone(&self.plan.job.target, "in the middle of the load");
                return self.lost(index, failed).map(|()| Received::Over);
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => {
                let failed = failure::broken(&self.plan.job.target, &error.into());
                return self.lost(index, failed).map(|()| Received::Over);
            }
        };
        if self.delivered(index, &buffer[..count])? {
            return Ok(Received::Over);
        }
        Ok(Received::Part {
            full: count == buffer.len(),
        })
    }

    /// Handle received bytes; after a complete answer, continue with the next statement. True if an answer was completed or the
    /// connection is lost.
    #[inline]
    pub(super) fn delivered(&mut self, index: usize, bytes: &[u8]) -> Result<bool, Failed> {
        let connection = &mut self.connections[index];
        let mut last_byte_ns = 0;
        if self.plan.job.breakdown {
            last_byte_ns = now_ns();
            if connection.first_byte_ns == 0 {
                connection.first_byte_ns = last_byte_ns;
            }
        }
        let is_asking = matches!(connection.state, State::Asking);
        let outcome = match connection.received(bytes, &mut self.tools) {
            Ok(Some(Outcome::Failed(error))) if !is_asking => {
                let failed = failure::ended(&self.plan.job.target, &error);
                return self.lost(index, failed).map(|()| true);
            }
            Ok(outcome) => outcome,
            Err(Broken::Malformed(_) | Broken::NotSpoken(_) | Broken::NotPostgres(_))
                if !is_asking =>
            {
                let failed = failure::gone(&self.plan.job.target, "while nothing was asked");
                return self.lost(index, failed).map(|()| true);
            }
            Err(broken) => return self.broke(index, &broken).map(|()| true),
        };
        if connection
            .wire
            .as_ref()
            .is_some_and(|wire| !wire.unsent.is_empty())
        {
            self.flush(index)?;
        }
        let Some(outcome) = outcome else {
            return Ok(false);
        };
        let now = now_ns();
        self.tick(now);
        self.measure(index, now, last_byte_ns, &outcome);
        let code = match &outcome {
            Outcome::Failed(error) => Some(error.code),
            Outcome::Done(_) | Outcome::Commands => None,
        };
        let after = self.connections[index].answered(outcome, &self.tools);
        self.log_answer(index, now, code, &after)?;
        self.go_on(index, after, now)?;
        Ok(true)
    }

    #[inline]
    fn go_on(&mut self, index: usize, after: After, now: u64) -> Result<(), Failed> {
        if self.stopping {
            self.leave(index);
            return Ok(());
        }
        match after {
            After::Statement => self.proceed(index, now),
            After::Transaction => self.ended(index, now),
            After::Refused(Refused::Command(refusal)) => {
                let doing = self.connections[index].doing(&self.tools.program);
                Err(failure::command(&self.plan.job.target, doing, &refusal))
            }
            After::Refused(Refused::Sql(error)) => {
                let doing = self.connections[index].doing(&self.tools.program);
                let name = doing.strip_prefix("statement.").unwrap_or(doing);
                let doing = format!("the statement {name}");
                let failed = failure::server(&self.plan.job.target, &doing, &error);
                if failed.code == FailCode::ServerGone {
                    return self.lost(index, failed);
                }
                Err(failed)
            }
        }
    }

    /// Send the next statement, at once or after a pause.
    #[inline]
    pub(super) fn proceed(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let think_ns = self.connections[index].think_ns();
        if think_ns == 0 {
            return self.send(index, now);
        }
        self.connections[index].state = State::Thinking;
        self.at(now + think_ns, index);
        Ok(())
    }

    #[inline]
    pub(super) fn send(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        if let Err(broken) = connection.send(now, &mut self.tools, &mut self.driver) {
            return self.broke(index, &broken);
        }
        if connection
            .wire
            .as_ref()
            .is_some_and(|wire| !wire.unsent.is_empty())
        {
            return self.interest(index);
        }
        Ok(())
    }

    /// Handle the end of a successful transaction.
    #[inline]
    fn ended(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        let ended = Ended {
            intended_ns: connection.intended_ns,
            began_ns: connection.began_ns,
            now,
        };
        if let Some(load) = &mut self.load {
            if load.tally.counts(&ended) {
                connection.done += 1;
                connection.busy_ns += now - connection.began_ns;
            }
            load.tally.transaction(&ended, &connection.used);
        }
        let (since_open, limit) = (connection.since_open, self.plan.job.session.reconnect_after);
        if self.connects_each_time() {
            self.close(index);
        } else if limit > 0 && since_open >= limit {
            self.close(index);
            self.open(index, now)?;
            return Ok(());
        }
        self.next(index, now)
    }

    /// Give a connection without a transaction the next one, if there is one.
    #[inline]
    pub(super) fn next(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        if let Some(schedule) = &mut load.schedule {
            if schedule.is_closed() {
                self.rest(index);
                return Ok(());
            }
            if schedule.next_ns() > now {
                load.free.push_back(index as u32);
                self.connections[index].free_ns = now;
                return Ok(());
            }
            // The request could not have begun before now, when its connection became free.
            return self.begin_due(index, now, now);
        }
        if !self.claim() {
            self.rest(index);
            return Ok(());
        }
        self.begin(index, now, now)
    }

    /// Open loop: begin requests that are due while connections are free.
    pub(super) fn serve_arrivals(&mut self, now: u64) -> Result<(), Failed> {
        if self.stopping {
            return Ok(());
        }
        while let Some(load) = &mut self.load {
            let Some(schedule) = &load.schedule else {
                break;
            };
            if schedule.next_ns() > now {
                break;
            }
            let Some(index) = load.free.pop_front() else {
                break;
            };
            let free_ns = self.connections[index as usize].free_ns;
            self.begin_due(index as usize, free_ns, now)?;
        }
        Ok(())
    }

    /// Open loop: begin the next due request on a connection that has been free since `free_ns`.
    fn begin_due(&mut self, index: usize, free_ns: u64, now: u64) -> Result<(), Failed> {
        let may = self.claim();
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        let Some(schedule) = &mut load.schedule else {
            return Ok(());
        };
        if !may {
            schedule.close();
            self.rest(index);
            // Connections idle between arrivals need not drain.
            let free = self
                .load
                .as_mut()
                .map(|load| std::mem::take(&mut load.free));
            let free = free.into_iter().flatten();
            free.for_each(|index| self.rest(index as usize));
            return Ok(());
        }
        let Some(due_ns) = schedule.take(now) else {
            return Ok(());
        };
        load.tally.begun(due_ns, due_ns.max(free_ns), now);
        if load.free.is_empty() && load.tally.is_counting() {
            let waiting = schedule.waiting(now);
            let most = &mut load.tally.totals.backlog_max;
            *most = waiting.max(*most);
        }
        self.begin(index, due_ns, now)
    }

    /// Whether one more transaction may begin; the limit does not count those before the window.
    #[inline]
    fn claim(&self) -> bool {
        let counts =
            |load: &super::Load| load.tally.is_counting() || load.tally.next_edge_ns() == u64::MAX;
        !self.load.as_ref().is_some_and(counts) || self.plan.claim()
    }

    #[inline]
    fn begin(&mut self, index: usize, intended_ns: u64, now: u64) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        connection.begin(intended_ns, now, &self.tools.program);
        if connection.wire.is_some() {
            return self.proceed(index, now);
        }
        self.open(index, now)
    }

    /// Mark a connection as done: no further transaction may begin. It stays so if it is opened again.
    #[cold]
    fn rest(&mut self, index: usize) {
        if std::mem::replace(&mut self.connections[index].rests, true) {
            return;
        }
        self.at_rest += 1;
        if self.at_rest >= self.used && !self.drained {
            self.drained = true;
            self.report(super::Report::Drained);
        }
    }

    #[cold]
    pub(super) fn flush(&mut self, index: usize) -> Result<(), Failed> {
        let Some(wire) = &mut self.connections[index].wire else {
            return Ok(());
        };
        if let Err(error) = wire.flush(&mut self.driver) {
            return self.broke(index, &Broken::Io(error));
        }
        self.interest(index)
    }

    /// Request an event for when unsent bytes can be sent.
    #[cold]
    pub(super) fn interest(&mut self, index: usize) -> Result<(), Failed> {
        let Some(wire) = &self.connections[index].wire else {
            return Ok(());
        };
        if let Driver::Ring(ring) = &mut self.driver {
            if wire.unsent.is_empty() {
                return Ok(());
            }
            return ring
                .await_room(&wire.socket, wire.registration.token)
                .map_err(|error| super::uring::broken(&error));
        }
        let flags = if wire.unsent.is_empty() {
            INTEREST
        } else {
            INTEREST | EventFlags::OUT
        };
        let token = EventData::new_u64(index as u64);
        epoll::modify(&self.epoll, &wire.socket, token, flags)
            .map_err(|error| internal(format!("epoll: {error}")))
    }
}
