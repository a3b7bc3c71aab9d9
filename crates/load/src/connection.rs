//! One connection: which transaction it is in, what it has sent, what came back. The hot path; what happens when is the worker's.

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

/// What a worker lends to its connections.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) program: Arc<Program>,
    pub(crate) ignored: IgnoredErrors,
    pub(crate) packet: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    /// Packet bytes since the worker last looked at its orders and time limits.
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

/// Why a connection cannot go on.
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
    /// As the contract has it.
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

/// What follows an answer.
pub(crate) enum After {
    /// The next statement of the same transaction, or the same transaction from its start.
    Statement,
    /// The transaction is done.
    Transaction,
    /// The server refuses, and trying again is not requested.
    Refused(Refused),
}

/// What a connection does now.
#[derive(Debug)]
pub(crate) enum State {
    /// No socket, and nothing under way to get one.
    Closed,
    /// No socket before a timer has rung.
    Waiting,
    Connecting(Box<Connecting>),
    /// Open; nothing was requested yet.
    Resting,
    /// Open; a transaction has ended and the next has not begun. No timer rings for it, and nobody waits for an answer.
    Free,
    /// A pause before the next statement.
    Thinking,
    /// A statement was sent and its answer is not whole.
    Asking,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Number among all connections of the job.
    pub(crate) id: u64,
    pub(crate) state: State,
    pub(crate) wire: Option<Box<Wire>>,
    pub(crate) memory: Memory,
    /// Transactions that it has ended.
    number: u64,
    /// Times that the present one was tried in vain.
    failures: u64,
    cursor: Cursor,
    due: Option<Due>,
    /// In a transaction, maybe one that waits for a new socket.
    pub(crate) busy: bool,
    pub(crate) used: Use,
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    /// When the first byte of the present statement went out.
    pub(crate) sent_ns: u64,
    /// When the first byte of its answer was seen; 0 while none was.
    pub(crate) first_byte_ns: u64,
    /// When it was left without work; open loop only.
    pub(crate) free_ns: u64,
    /// When the timer that it waits for rings; others of it are stale. 0: it waits for none.
    pub(crate) due_ns: u64,
    /// Its work is over, because no transaction may begin any more.
    pub(crate) rests: bool,
    /// It broke under load and is not back.
    pub(crate) lost: bool,
    /// Since when it has tried to open; 0 while it does not.
    pub(crate) seeking_ns: u64,
    /// Transactions and their time in the measured window.
    pub(crate) done: u64,
    pub(crate) busy_ns: u64,
    /// Transactions since it was opened.
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

    /// Into the next transaction, which is nobody's yet.
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

    /// A transaction of its own from its start, with other values, inside the same latency.
    #[cold]
    pub(crate) fn restart(&mut self, program: &Program) {
        self.failures += 1;
        self.cursor = program.attempt(self.id, self.number, self.failures);
        self.due = self.cursor.next(program);
    }

    /// Pause before the statement that comes next.
    #[inline]
    pub(crate) fn think_ns(&self) -> u64 {
        self.due.map_or(0, |due| due.think_ns)
    }

    /// Send the statement that comes next. `now` is the clock's last reading.
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

    /// Bytes came: how the answer ended, once it did.
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

    /// An answer is whole.
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

    /// Commands are answered. Errors among them end the job, or are only counted: a command is never sent again.
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
