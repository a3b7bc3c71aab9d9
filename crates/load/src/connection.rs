//! One connection: its transaction, the statement it has sent, and the answer. This is the hot path; the worker controls the timing.

use std::io;
use std::sync::Arc;

use howfar_contract::Failed;
use howfar_contract::jobs::{ClientWork, IgnoredErrors, Protocol, Target};
use howfar_wire::keyvalue;
use howfar_wire::mysql::Malformed;
use howfar_wire::mysql::row::Work;
use howfar_wire::postgres;

use crate::channel::{self, ChannelError};
use crate::connecting::Connecting;
use crate::counts::Use;
use crate::failure;
use crate::protocol::{Outcome, Refused, Request};
use crate::wire::Wire;
use crate::worker::driver::Driver;
use crate::workload::commands::Commands;
use crate::workload::{Cursor, Due, Memory, Program};

/// Buffers and settings that a worker lends to its connections.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) program: Arc<Program>,
    pub(crate) ignored: IgnoredErrors,
    pub(crate) packet: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    /// Decoded bytes received since the worker last checked its orders and time limits.
    pub(crate) taken: u64,
    plain: Vec<u8>,
    work: Work,
}

impl Tools {
    pub(crate) fn new(
        program: Arc<Program>,
        client_work: ClientWork,
        ignored: IgnoredErrors,
    ) -> Self {
        let work = match client_work {
            ClientWork::Skip => Work::Skip,
            ClientWork::Touch => Work::touch(),
            ClientWork::Decode => Work::Decode,
        };
        Self {
            program,
            ignored,
            packet: Vec::new(),
            sealed: Vec::new(),
            taken: 0,
            plain: Vec::new(),
            work,
        }
    }
}

/// Why a connection cannot continue.
#[derive(Debug)]
pub(crate) enum Broken {
    Channel(ChannelError),
    Malformed(Malformed),
    /// Bytes that do not follow the protocol of a key-value store.
    NotSpoken(keyvalue::Malformed),
    /// Bytes that do not follow PostgreSQL's protocol.
    NotPostgres(postgres::Malformed),
    Io(io::Error),
}

impl Broken {
    /// The failure as the contract defines it.
    pub(crate) fn translate(&self, target: &Target, protocol: Option<Protocol>) -> Failed {
        match self {
            Self::Io(error) => failure::broken(target, error),
            Self::Channel(error) => channel::broken(target, error),
            Self::Malformed(error) => failure::malformed(target, *error),
            Self::NotPostgres(error) => failure::not_postgres(target, *error),
            Self::NotSpoken(error) => failure::not_spoken(target, protocol, error),
        }
    }
}

impl From<ChannelError> for Broken {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// The next step after an answer.
pub(crate) enum After {
    /// The next statement of the same transaction, or the same transaction from its start.
    Statement,
    /// The transaction is done.
    Transaction,
    /// The server refuses, and a retry was not requested.
    Refused(Refused),
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) enum State {
    /// No socket, and none is being opened.
    Closed,
    /// No socket; a timer will start the next attempt to open one.
    Waiting,
    Connecting(Box<Connecting>),
    /// Open; no statement was sent yet.
    Resting,
    /// Open; a transaction has ended and the next has not begun. No timer is set, and no answer is pending.
    Free,
    /// A pause before the next statement.
    Thinking,
    /// A statement was sent and its answer is not complete.
    Asking,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Number among all connections of the job.
    pub(crate) id: u64,
    pub(crate) state: State,
    pub(crate) wire: Option<Box<Wire>>,
    pub(crate) memory: Memory,
    /// Transactions completed.
    number: u64,
    /// Failed attempts at the present transaction.
    failures: u64,
    cursor: Cursor,
    due: Option<Due>,
    /// In a transaction, possibly one that waits for a new socket.
    pub(crate) busy: bool,
    pub(crate) used: Use,
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    /// When the first byte of the present statement went out.
    pub(crate) sent_ns: u64,
    /// When the first byte of its answer was seen; 0 before that.
    pub(crate) first_byte_ns: u64,
    /// When the connection became free; open loop only.
    pub(crate) free_ns: u64,
    /// When the connection's current timer fires; its other timers are stale. 0 if it waits for none.
    pub(crate) due_ns: u64,
    /// The connection's work is over, because no further transaction may begin.
    pub(crate) rests: bool,
    /// The connection broke under load and has not been restored.
    pub(crate) lost: bool,
    /// When the connection began trying to open; 0 while it does not try.
    pub(crate) seeking_ns: u64,
    /// Number of transactions in the measured window, and the sum of their times.
    pub(crate) done: u64,
    pub(crate) busy_ns: u64,
    /// Transactions since the connection was opened.
    pub(crate) since_open: u64,
}

impl Connection {
    pub(crate) fn new(id: u64, program: &Program) -> Self {
        Self {
            id,
            state: State::Closed,
            wire: None,
            memory: program.memory(id),
            number: 0,
            failures: 0,
            cursor: program.transaction(id, 0),
            due: None,
            busy: false,
            used: Use::default(),
            intended_ns: 0,
            began_ns: 0,
            sent_ns: 0,
            first_byte_ns: 0,
            free_ns: 0,
            due_ns: 0,
            rests: false,
            lost: false,
            seeking_ns: 0,
            done: 0,
            busy_ns: 0,
            since_open: 0,
        }
    }

    pub(crate) fn prepared(&self) -> u32 {
        self.wire
            .as_ref()
            .map_or(0, |wire| wire.statements.prepared())
    }

    /// Name of the statement under way.
    pub(crate) fn doing<'a>(&self, program: &'a Program) -> &'a str {
        self.due
            .map_or("query", |due| program.kinds()[due.kind].name.as_str())
    }

    /// Begin the next transaction; nothing is sent yet.
    #[inline]
    pub(crate) fn begin(&mut self, intended_ns: u64, now: u64, program: &Program) {
        self.cursor = program.transaction(self.id, self.number);
        self.failures = 0;
        self.due = self.cursor.next(program);
        self.used = Use::default();
        self.intended_ns = intended_ns;
        self.began_ns = now;
        self.busy = true;
    }

    /// Restart the present transaction with newly drawn values; its latency covers all attempts.
    #[cold]
    pub(crate) fn restart(&mut self, program: &Program) {
        self.failures += 1;
        self.cursor = program.attempt(self.id, self.number, self.failures);
        self.due = self.cursor.next(program);
    }

    /// Pause before the next statement.
    #[inline]
    pub(crate) fn think_ns(&self) -> u64 {
        self.due.map_or(0, |due| due.think_ns)
    }

    /// Send the next statement. `now` is the clock's last reading.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: u64,
        tools: &mut Tools,
        driver: &mut Driver,
    ) -> Result<(), Broken> {
        let Some(wire) = self.wire.as_deref_mut() else {
            unreachable!("only an open connection sends")
        };
        let Some(due) = self.due else {
            unreachable!("a transaction has a statement until its last is answered")
        };
        let program = &*tools.program;
        let packet = &mut tools.packet;
        packet.clear();
        let request = Request {
            program,
            due,
            cursor: &mut self.cursor,
            memory: &mut self.memory,
            statements: &mut wire.statements,
        };
        let statements = wire.replies.encode(request, packet);
        self.state = State::Asking;
        self.sent_ns = now;
        self.first_byte_ns = 0;
        self.used.queries += statements;
        self.used.turns += 1;
        self.used.to_server += packet.len() as u64;
        wire.send(tools, driver)
    }

    /// Decode received bytes; returns the outcome once the answer is complete.
    #[inline]
    pub(crate) fn received(
        &mut self,
        bytes: &[u8],
        tools: &mut Tools,
    ) -> Result<Option<Outcome>, Broken> {
        let Some(wire) = self.wire.as_deref_mut() else {
            unreachable!("only an open connection receives")
        };
        let types = self
            .due
            .map_or(&[][..], |due| wire.statements.types(due.slot));
        let (replies, work) = (&mut wire.replies, &mut tools.work);
        if wire.channel.is_plain() {
            self.used.to_client += bytes.len() as u64;
            tools.taken += bytes.len() as u64;
            return replies.decode(bytes, types, work);
        }
        let (used, taken, mut outcome) = (&mut self.used, &mut tools.taken, None);
        wire.channel
            .open_each(bytes, &mut tools.plain, &mut wire.unsent, |packets| {
                used.to_client += packets.len() as u64;
                *taken += packets.len() as u64;
                let ended = outcome.is_some() && !packets.is_empty();
                if ended && !replies.may_go_on() {
                    let late = Malformed::Unexpected("bytes follow the end of an answer");
                    return Err(Broken::Malformed(late));
                }
                let next = replies.decode(packets, types, work)?;
                outcome = outcome.take().or(next);
                Ok(())
            })?;
        if outcome.is_none() {
            wire.channel.goes_on()?;
        }
        Ok(outcome)
    }

    /// Handle a complete answer.
    #[inline]
    pub(crate) fn answered(&mut self, outcome: Outcome, tools: &Tools) -> After {
        match outcome {
            Outcome::Done(done) => {
                self.used.done(&done);
                self.step(&tools.program)
            }
            Outcome::Commands => self.commands_answered(tools),
            Outcome::Failed(error) if tools.ignored.holds(&error.code.to_string()) => {
                self.used.errors += 1;
                self.restart(&tools.program);
                After::Statement
            }
            Outcome::Failed(error) => After::Refused(Refused::Sql(error)),
        }
    }

    /// Handle answers to commands. Errors among them end the job or are only counted: a command is never sent again.
    #[inline]
    fn commands_answered(&mut self, tools: &Tools) -> After {
        if let Some(counts) = self.wire.as_ref().and_then(|wire| wire.replies.counts()) {
            self.used.commands(counts);
            let stops = tools.program.commands().is_some_and(Commands::stops);
            if let Some(first) = counts.refused.first().filter(|_| stops) {
                return After::Refused(Refused::Command(first.clone()));
            }
        }
        self.step(&tools.program)
    }

    #[inline]
    fn step(&mut self, program: &Program) -> After {
        self.due = self.cursor.next(program);
        if self.due.is_some() {
            return After::Statement;
        }
        self.number += 1;
        self.since_open += 1;
        self.busy = false;
        self.state = State::Free;
        After::Transaction
    }

    /// Index of the statement under way.
    #[inline]
    pub(crate) fn kind(&self) -> usize {
        self.due.map_or(0, |due| due.kind)
    }
}
