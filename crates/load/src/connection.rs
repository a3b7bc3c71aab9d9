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
use crate::counts::Counters;
use crate::failure;
use crate::protocol::{Outcome, Request, ServerRefusal};
use crate::transport::Transport;
use crate::worker::driver::Driver;
use crate::workload::commands::Commands;
use crate::workload::{Cursor, DueStatement, Memory, Program};

/// Buffers and settings of a worker, shared by its connections.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) program: Arc<Program>,
    pub(crate) ignored: IgnoredErrors,
    pub(crate) packet: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    /// Decoded bytes received since the worker last checked its commands and time limits.
    pub(crate) unchecked_bytes: u64,
    plain: Vec<u8>,
    work: Work,
}

impl WorkerContext {
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
            unchecked_bytes: 0,
            plain: Vec::new(),
            work,
        }
    }
}

/// Why a connection cannot continue.
#[derive(Debug)]
pub(crate) enum ConnectionError {
    Channel(ChannelError),
    Malformed(Malformed),
    /// Bytes that do not follow the protocol of a key-value store.
    MalformedKeyValue(keyvalue::Malformed),
    /// Bytes that do not follow PostgreSQL's protocol.
    MalformedPostgres(postgres::Malformed),
    Io(io::Error),
}

impl ConnectionError {
    /// The failure as the contract defines it.
    pub(crate) fn translate(&self, target: &Target, protocol: Option<Protocol>) -> Failed {
        match self {
            Self::Io(error) => failure::connection_broken(target, error),
            Self::Channel(error) => channel::translate_error(target, error),
            Self::Malformed(error) => failure::malformed_mysql(target, *error),
            Self::MalformedPostgres(error) => failure::malformed_postgres(target, *error),
            Self::MalformedKeyValue(error) => failure::malformed_key_value(target, protocol, error),
        }
    }
}

impl From<ChannelError> for ConnectionError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// The next step after an answer.
pub(crate) enum NextStep {
    /// The next statement of the same transaction, or the same transaction from its start.
    Statement,
    /// The transaction is done.
    Transaction,
    /// The server refuses, and a retry was not requested.
    Refused(ServerRefusal),
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) enum State {
    /// No socket, and none is being opened.
    Closed,
    /// No socket; a timer will start the next attempt to open one.
    WaitingToRetry,
    Connecting(Box<Connecting>),
    /// Open; no statement was sent yet.
    Opened,
    /// Open; a transaction has ended and the next has not begun. No timer is set, and no answer is pending.
    Free,
    /// A pause before the next statement.
    Thinking,
    /// A statement was sent and its answer is not complete.
    AwaitingAnswer,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Number among all connections of the job.
    pub(crate) id: u64,
    pub(crate) state: State,
    pub(crate) transport: Option<Box<Transport>>,
    pub(crate) memory: Memory,
    /// Transactions completed.
    completed: u64,
    /// Failed attempts at the present transaction.
    failures: u64,
    cursor: Cursor,
    due: Option<DueStatement>,
    /// In a transaction, possibly one that waits for a new socket.
    pub(crate) in_transaction: bool,
    pub(crate) counters: Counters,
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    /// When the first byte of the present statement went out.
    pub(crate) sent_ns: u64,
    /// When the first byte of its answer was seen; 0 before that.
    pub(crate) first_byte_ns: u64,
    /// When the connection became free; open loop only.
    pub(crate) free_since_ns: u64,
    /// When the connection's current timer fires; its other timers are stale. 0 if it waits for none.
    pub(crate) timer_ns: u64,
    /// The connection's work is over, because no further transaction may begin.
    pub(crate) finished: bool,
    /// The connection broke under load and has not been restored.
    pub(crate) lost: bool,
    /// When the connection began trying to open; 0 while it does not try.
    pub(crate) opening_since_ns: u64,
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
            transport: None,
            memory: program.memory(id),
            completed: 0,
            failures: 0,
            cursor: program.transaction(id, 0),
            due: None,
            in_transaction: false,
            counters: Counters::default(),
            intended_ns: 0,
            began_ns: 0,
            sent_ns: 0,
            first_byte_ns: 0,
            free_since_ns: 0,
            timer_ns: 0,
            finished: false,
            lost: false,
            opening_since_ns: 0,
            done: 0,
            busy_ns: 0,
            since_open: 0,
        }
    }

    pub(crate) fn prepared_count(&self) -> u32 {
        self.transport
            .as_ref()
            .map_or(0, |transport| transport.statements.prepared_count())
    }

    /// Name of the statement under way.
    pub(crate) fn statement_name<'a>(&self, program: &'a Program) -> &'a str {
        self.due
            .map_or("query", |due| program.kinds()[due.kind].name.as_str())
    }

    /// Begin the next transaction; nothing is sent yet.
    #[inline]
    pub(crate) fn begin(&mut self, intended_ns: u64, now: u64, program: &Program) {
        self.cursor = program.transaction(self.id, self.completed);
        self.failures = 0;
        self.due = self.cursor.next(program);
        self.counters = Counters::default();
        self.intended_ns = intended_ns;
        self.began_ns = now;
        self.in_transaction = true;
    }

    /// Restart the present transaction with newly drawn values; its latency covers all attempts.
    #[cold]
    pub(crate) fn restart(&mut self, program: &Program) {
        self.failures += 1;
        self.cursor = program.attempt(self.id, self.completed, self.failures);
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
        context: &mut WorkerContext,
        driver: &mut Driver,
    ) -> Result<(), ConnectionError> {
        let Some(transport) = self.transport.as_deref_mut() else {
            unreachable!("only an open connection sends")
        };
        let Some(due) = self.due else {
            unreachable!("a transaction has a statement until its last is answered")
        };
        let program = &*context.program;
        let packet = &mut context.packet;
        packet.clear();
        let request = Request {
            program,
            due,
            cursor: &mut self.cursor,
            memory: &mut self.memory,
            statements: &mut transport.statements,
        };
        let statements = transport.replies.encode(request, packet);
        self.state = State::AwaitingAnswer;
        self.sent_ns = now;
        self.first_byte_ns = 0;
        self.counters.queries += statements;
        self.counters.round_trips += 1;
        self.counters.to_server += packet.len() as u64;
        transport.send(context, driver)
    }

    /// Decode received bytes; returns the outcome once the answer is complete.
    #[inline]
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        context: &mut WorkerContext,
    ) -> Result<Option<Outcome>, ConnectionError> {
        let Some(transport) = self.transport.as_deref_mut() else {
            unreachable!("only an open connection receives")
        };
        let types = self
            .due
            .map_or(&[][..], |due| transport.statements.types(due.slot));
        let (replies, work) = (&mut transport.replies, &mut context.work);
        if transport.channel.is_plain() {
            self.counters.to_client += bytes.len() as u64;
            context.unchecked_bytes += bytes.len() as u64;
            return replies.decode(bytes, types, work);
        }
        let (counters, unchecked_bytes, mut outcome) =
            (&mut self.counters, &mut context.unchecked_bytes, None);
        transport.channel.open_in_pieces(
            bytes,
            &mut context.plain,
            &mut transport.unsent,
            |packets| {
                counters.to_client += packets.len() as u64;
                *unchecked_bytes += packets.len() as u64;
                let ended = outcome.is_some() && !packets.is_empty();
                if ended && !replies.allows_unsolicited() {
                    let late = Malformed::Unexpected("bytes follow the end of an answer");
                    return Err(ConnectionError::Malformed(late));
                }
                let next = replies.decode(packets, types, work)?;
                outcome = outcome.take().or(next);
                Ok(())
            },
        )?;
        if outcome.is_none() {
            transport.channel.check_not_ended()?;
        }
        Ok(outcome)
    }

    /// Handle a complete answer.
    #[inline]
    pub(crate) fn handle_outcome(&mut self, outcome: Outcome, context: &WorkerContext) -> NextStep {
        match outcome {
            Outcome::Done(done) => {
                self.counters.add_answer(&done);
                self.advance(&context.program)
            }
            Outcome::Commands => self.handle_commands(context),
            Outcome::Failed(error) if context.ignored.holds(&error.code.to_string()) => {
                self.counters.errors += 1;
                self.restart(&context.program);
                NextStep::Statement
            }
            Outcome::Failed(error) => NextStep::Refused(ServerRefusal::Sql(error)),
        }
    }

    /// Handle answers to commands. Errors among them end the job or are only counted: a command is never sent again.
    #[inline]
    fn handle_commands(&mut self, context: &WorkerContext) -> NextStep {
        if let Some(counts) = self
            .transport
            .as_ref()
            .and_then(|transport| transport.replies.counts())
        {
            self.counters.add_commands(counts);
            let stops_on_error = context
                .program
                .commands()
                .is_some_and(Commands::stops_on_error);
            if let Some(first) = counts.refused.first().filter(|_| stops_on_error) {
                return NextStep::Refused(ServerRefusal::Command(first.clone()));
            }
        }
        self.advance(&context.program)
    }

    #[inline]
    fn advance(&mut self, program: &Program) -> NextStep {
        self.due = self.cursor.next(program);
        if self.due.is_some() {
            return NextStep::Statement;
        }
        self.completed += 1;
        self.since_open += 1;
        self.in_transaction = false;
        self.state = State::Free;
        NextStep::Transaction
    }

    /// Index of the statement under way.
    #[inline]
    pub(crate) fn kind(&self) -> usize {
        self.due.map_or(0, |due| due.kind)
    }
}
