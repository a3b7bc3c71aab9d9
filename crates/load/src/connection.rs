//! One connection: its transaction, the statement it has sent, and the answer. This is the hot path; the worker controls the timing.

use howfar_wire::mysql::Malformed;

use crate::connecting::Connecting;
use crate::connection_error::ConnectionError;
use crate::context::WorkerContext;
use crate::counts::Counters;
use crate::session::{Outcome, Request, ServerRefusal};
use crate::transport::Transport;
use crate::worker::driver::Driver;
use crate::workload::commands::Commands;
use crate::workload::{Cursor, DueStatement, Memory, Program};

/// What follows an answer.
pub(crate) enum NextStep {
    /// The next statement of the same transaction, or the same transaction from its start.
    Statement,
    /// The next transaction.
    Transaction,
    /// The server refused, and the job does not ignore this error.
    Refused(ServerRefusal),
}

/// The socket of a connection.
#[derive(Debug)]
pub(crate) enum State {
    /// No socket, and none is being opened.
    Closed,
    /// No socket; it is opened as soon as fewer others are being opened. `since_ns`: when the first attempt began, if there was one.
    Queued {
        since_ns: Option<u64>,
        after_loss: bool,
    },
    /// No socket; a timer will start the next attempt to open one.
    WaitingToRetry {
        opening: Opening,
        until_ns: u64,
    },
    Connecting(Opening, Box<Connecting>),
    Open(Box<Transport>),
}

impl State {
    /// Whether the connection broke under load and has not been restored.
    pub(crate) fn is_lost(&self) -> bool {
        match *self {
            Self::Queued { after_loss, .. } => after_loss,
            Self::WaitingToRetry { opening, .. } | Self::Connecting(opening, _) => {
                opening.after_loss
            }
            Self::Closed | Self::Open(_) => false,
        }
    }
}

/// The work of a connection. A transaction outlives the socket: it waits until another is open.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a transaction begins on the hot path, where a box would be allocated"
)]
pub(crate) enum Work {
    /// No transaction. `first_ns`: when a timer begins the first; `None` before the load and after the first.
    Idle { first_ns: Option<u64> },
    /// A transaction, until the worker has counted it after its last answer.
    Active(Transaction),
    /// No further transaction may begin.
    Finished,
}

/// How far the present statement of a transaction is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// It is sent as soon as the connection is open.
    Ready,
    /// A pause before the statement. `last_sent_ns`: when the one before it was sent, if there was one.
    Thinking {
        until_ns: u64,
        last_sent_ns: Option<u64>,
    },
    /// Its answer is not complete. `first_byte_ns`: when the answer's first byte was seen, if that is measured.
    AwaitingAnswer {
        sent_ns: u64,
        first_byte_ns: Option<u64>,
    },
}

/// The attempts to open a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// When the first attempt began.
    pub(crate) since_ns: u64,
    /// Whether the connection broke under load, and is being restored.
    pub(crate) after_loss: bool,
}

/// A transaction under way, possibly on a connection that must be opened again first.
#[derive(Debug)]
pub(crate) struct Transaction {
    cursor: Cursor,
    /// The statement under way, or the next one.
    due: DueStatement,
    pub(crate) step: Step,
    failed_attempts: u64,
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    pub(crate) counters: Counters,
}

impl Transaction {
    /// Kind of the statement under way.
    #[inline]
    pub(crate) fn kind(&self) -> usize {
        self.due.kind
    }

    /// When the latest statement was sent, if one was on this socket.
    fn last_sent_ns(&self) -> Option<u64> {
        match self.step {
            Step::Ready => None,
            Step::Thinking { last_sent_ns, .. } => last_sent_ns,
            Step::AwaitingAnswer { sent_ns, .. } => Some(sent_ns),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// The connection's number in the job.
    pub(crate) id: u64,
    pub(crate) state: State,
    pub(crate) work: Work,
    pub(crate) memory: Memory,
    completed_transactions: u64,
    /// Number of transactions in the measured window, and the sum of their times.
    pub(crate) window_transactions: u64,
    pub(crate) busy_ns: u64,
    /// Number of transactions since the connection was opened.
    pub(crate) transactions_since_open: u64,
}

impl Connection {
    /// A connection without a socket.
    pub(crate) fn new(id: u64, program: &Program) -> Self {
        Self {
            id,
            state: State::Closed,
            work: Work::Idle { first_ns: None },
            memory: program.memory(id),
            completed_transactions: 0,
            window_transactions: 0,
            busy_ns: 0,
            transactions_since_open: 0,
        }
    }

    /// An open connection, before the load.
    pub(crate) fn open(id: u64, program: &Program, transport: Transport) -> Self {
        Self {
            state: State::Open(Box::new(transport)),
            ..Self::new(id, program)
        }
    }

    #[inline]
    pub(crate) fn transport(&self) -> Option<&Transport> {
        match &self.state {
            State::Open(transport) => Some(transport),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn transport_mut(&mut self) -> Option<&mut Transport> {
        match &mut self.state {
            State::Open(transport) => Some(transport),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn transaction(&self) -> Option<&Transaction> {
        match &self.work {
            Work::Active(transaction) => Some(transaction),
            Work::Idle { .. } | Work::Finished => None,
        }
    }

    #[inline]
    pub(crate) fn transaction_mut(&mut self) -> Option<&mut Transaction> {
        match &mut self.work {
            Work::Active(transaction) => Some(transaction),
            Work::Idle { .. } | Work::Finished => None,
        }
    }

    /// Take the transport of a connection that is closed now.
    pub(crate) fn close(&mut self) -> Option<Transport> {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(transport) => Some(*transport),
            _ => None,
        }
    }

    /// Take the transport of a connection that broke. What it did on this socket is void, and so is the timer of its first transaction.
    #[cold]
    pub(crate) fn lose(&mut self) -> Option<Transport> {
        match &mut self.work {
            Work::Idle { first_ns } => *first_ns = None,
            Work::Active(transaction) => transaction.step = Step::Ready,
            Work::Finished => {}
        }
        self.close()
    }

    /// The time of the connection's valid timer; its other timers are stale.
    pub(crate) fn timer_ns(&self) -> Option<u64> {
        match (&self.state, &self.work) {
            (State::WaitingToRetry { until_ns, .. }, _) => Some(*until_ns),
            (_, Work::Idle { first_ns }) => *first_ns,
            (_, Work::Active(transaction)) => match transaction.step {
                Step::Thinking { until_ns, .. } => Some(until_ns),
                Step::Ready | Step::AwaitingAnswer { .. } => None,
            },
            (_, Work::Finished) => None,
        }
    }

    #[inline]
    pub(crate) fn awaits_answer(&self) -> bool {
        self.transaction()
            .is_some_and(|transaction| matches!(transaction.step, Step::AwaitingAnswer { .. }))
    }

    pub(crate) fn prepared_count(&self) -> u32 {
        self.transport()
            .map_or(0, |transport| transport.statements.prepared_count())
    }

    /// Name of the statement under way, for messages.
    pub(crate) fn statement_name<'a>(&self, program: &'a Program) -> &'a str {
        self.transaction().map_or("query", |transaction| {
            program.kinds()[transaction.kind()].name.as_str()
        })
    }

    /// When the latest statement of the transaction was sent, if one was on this socket.
    pub(crate) fn last_sent_ns(&self) -> Option<u64> {
        self.transaction()?.last_sent_ns()
    }

    /// Begin the next transaction; nothing is sent yet.
    #[inline]
    pub(crate) fn begin(&mut self, intended_ns: u64, now: u64, program: &Program) {
        let mut cursor = program.transaction(self.id, self.completed_transactions);
        let due = first_statement(&mut cursor, program);
        self.work = Work::Active(Transaction {
            cursor,
            due,
            step: Step::Ready,
            failed_attempts: 0,
            intended_ns,
            began_ns: now,
            counters: Counters::default(),
        });
    }

    /// Count a failed attempt, and restart the present transaction with newly drawn values; its latency covers all attempts.
    #[cold]
    pub(crate) fn restart(&mut self, program: &Program) {
        let Work::Active(transaction) = &mut self.work else {
            return;
        };
        transaction.counters.errors += 1;
        transaction.failed_attempts += 1;
        transaction.cursor = program.attempt(
            self.id,
            self.completed_transactions,
            transaction.failed_attempts,
        );
        transaction.due = first_statement(&mut transaction.cursor, program);
    }

    /// Length of the pause before the next statement.
    #[inline]
    pub(crate) fn think_ns(&self) -> u64 {
        self.transaction()
            .map_or(0, |transaction| transaction.due.think_ns)
    }

    /// Pause before the next statement.
    pub(crate) fn pause(&mut self, until_ns: u64) {
        if let Some(transaction) = self.transaction_mut() {
            let last_sent_ns = transaction.last_sent_ns();
            transaction.step = Step::Thinking {
                until_ns,
                last_sent_ns,
            };
        }
    }

    /// Send the next statement of the transaction, if one is under way and the connection is open. `now` is the clock's last reading.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: u64,
        context: &mut WorkerContext,
        driver: &mut Driver,
    ) -> Result<(), ConnectionError> {
        let (State::Open(transport), Work::Active(transaction)) = (&mut self.state, &mut self.work)
        else {
            return Ok(());
        };
        let program = &*context.program;
        let packet = &mut context.packet;
        packet.clear();
        let request = Request {
            program,
            due: transaction.due,
            cursor: &mut transaction.cursor,
            memory: &mut self.memory,
            statements: &mut transport.statements,
        };
        let statements = transport.replies.encode(request, packet);
        transaction.step = Step::AwaitingAnswer {
            sent_ns: now,
            first_byte_ns: None,
        };
        transaction.counters.queries += statements;
        transaction.counters.round_trips += 1;
        transaction.counters.to_server += packet.len() as u64;
        transport.send(context, driver)
    }

    /// Decode received bytes; returns the outcome once the answer is complete.
    #[inline]
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        context: &mut WorkerContext,
    ) -> Result<Option<Outcome>, ConnectionError> {
        let State::Open(transport) = &mut self.state else {
            return Ok(None);
        };
        // A notice that the server sends between transactions belongs to none of them.
        let mut uncounted_bytes = 0;
        let (types, to_client) = match &mut self.work {
            Work::Active(Transaction { due, counters, .. }) => (
                transport.statements.types(due.slot),
                &mut counters.to_client,
            ),
            Work::Idle { .. } | Work::Finished => (&[][..], &mut uncounted_bytes),
        };
        let (replies, handling) = (&mut transport.replies, &mut context.row_handling);
        if transport.channel.is_plain() {
            *to_client += bytes.len() as u64;
            context.unchecked_bytes += bytes.len() as u64;
            return replies.decode(bytes, types, handling);
        }
        let (unchecked_bytes, mut outcome) = (&mut context.unchecked_bytes, None);
        transport.channel.open_in_pieces(
            bytes,
            &mut context.plain,
            &mut transport.unsent,
            |packets| {
                *to_client += packets.len() as u64;
                *unchecked_bytes += packets.len() as u64;
                let has_ended = outcome.is_some() && !packets.is_empty();
                if has_ended && !replies.allows_unsolicited() {
                    let error = Malformed::Unexpected("bytes follow the end of an answer");
                    return Err(ConnectionError::Malformed(error));
                }
                let new_outcome = replies.decode(packets, types, handling)?;
                outcome = outcome.take().or(new_outcome);
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
                if let Some(transaction) = self.transaction_mut() {
                    transaction.counters.add_answer(&done);
                }
                self.advance(&context.program)
            }
            Outcome::Commands => self.handle_commands(context),
            Outcome::Failed(error) if context.ignored.contains(&error.code.to_string()) => {
                self.restart(&context.program);
                NextStep::Statement
            }
            Outcome::Failed(error) => NextStep::Refused(ServerRefusal::Sql(error)),
        }
    }

    /// Handle answers to commands. Errors among them end the job or are only counted, because a command is never sent again.
    #[inline]
    fn handle_commands(&mut self, context: &WorkerContext) -> NextStep {
        let State::Open(transport) = &self.state else {
            return self.advance(&context.program);
        };
        if let Some(counts) = transport.replies.counts() {
            if let Work::Active(transaction) = &mut self.work {
                transaction.counters.add_commands(counts);
            }
            let stops_on_error = context
                .program
                .commands()
                .is_some_and(Commands::stops_on_error);
            if let Some(error_reply) = counts.errors.first().filter(|_| stops_on_error) {
                return NextStep::Refused(ServerRefusal::Command(error_reply.clone()));
            }
        }
        self.advance(&context.program)
    }

    /// Advance to the next statement, or end the transaction.
    #[inline]
    fn advance(&mut self, program: &Program) -> NextStep {
        if let Work::Active(transaction) = &mut self.work {
            if let Some(due) = transaction.cursor.next(program) {
                transaction.due = due;
                return NextStep::Statement;
            }
        }
        self.completed_transactions += 1;
        self.transactions_since_open += 1;
        NextStep::Transaction
    }
}

#[inline]
fn first_statement(cursor: &mut Cursor, program: &Program) -> DueStatement {
    cursor
        .next(program)
        .expect("a transaction has at least one statement")
}
