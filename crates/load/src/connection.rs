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

/// What a connection is doing.
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
    /// Open; no statement was sent yet. `first_ns`: when a timer begins the first transaction; `None` before the load.
    Opened {
        first_ns: Option<u64>,
    },
    /// Open, between two transactions, without a timer or a pending answer.
    Free,
    /// A pause before the next statement.
    Thinking {
        until_ns: u64,
    },
    /// A statement was sent and its answer is not complete. `first_byte_ns`: when its first byte was seen, if that is measured.
    AwaitingAnswer {
        first_byte_ns: Option<u64>,
    },
}

impl State {
    /// The time of the connection's valid timer; its other timers are stale.
    pub(crate) fn timer_ns(&self) -> Option<u64> {
        match *self {
            Self::Thinking { until_ns } | Self::WaitingToRetry { until_ns, .. } => Some(until_ns),
            Self::Opened { first_ns } => first_ns,
            _ => None,
        }
    }

    /// Whether the connection broke under load and has not been restored.
    pub(crate) fn is_lost(&self) -> bool {
        match *self {
            Self::Queued { after_loss, .. } => after_loss,
            Self::WaitingToRetry { opening, .. } | Self::Connecting(opening, _) => {
                opening.after_loss
            }
            _ => false,
        }
    }
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
    /// The statement under way, or the next one; `None` after the last.
    due: Option<DueStatement>,
    failed_attempts: u64,
    pub(crate) intended_ns: u64,
    pub(crate) began_ns: u64,
    /// When the first byte of its latest statement was sent; 0 before the first.
    pub(crate) sent_ns: u64,
    pub(crate) counters: Counters,
}

impl Transaction {
    /// Kind of the statement under way.
    #[inline]
    pub(crate) fn kind(&self) -> usize {
        self.due.map_or(0, |due| due.kind)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// The connection's number in the job.
    pub(crate) id: u64,
    pub(crate) state: State,
    pub(crate) transport: Option<Box<Transport>>,
    pub(crate) memory: Memory,
    completed_transactions: u64,
    /// The transaction under way, until the worker has counted it after its last answer.
    pub(crate) transaction: Option<Transaction>,
    /// Whether the connection's work is over, because no further transaction may begin.
    pub(crate) is_finished: bool,
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
            transport: None,
            memory: program.memory(id),
            completed_transactions: 0,
            transaction: None,
            is_finished: false,
            window_transactions: 0,
            busy_ns: 0,
            transactions_since_open: 0,
        }
    }

    /// An open connection, before the load.
    pub(crate) fn open(id: u64, program: &Program, transport: Transport) -> Self {
        Self {
            state: State::Opened { first_ns: None },
            transport: Some(Box::new(transport)),
            ..Self::new(id, program)
        }
    }

    pub(crate) fn prepared_count(&self) -> u32 {
        self.transport
            .as_ref()
            .map_or(0, |transport| transport.statements.prepared_count())
    }

    /// The statement under way, or the next one.
    fn due(&self) -> Option<&DueStatement> {
        self.transaction.as_ref()?.due.as_ref()
    }

    /// Name of the statement under way, for messages.
    pub(crate) fn statement_name<'a>(&self, program: &'a Program) -> &'a str {
        self.due()
            .map_or("query", |due| program.kinds()[due.kind].name.as_str())
    }

    /// When the first byte of the latest statement was sent; 0 if none was.
    pub(crate) fn sent_ns(&self) -> u64 {
        self.transaction
            .as_ref()
            .map_or(0, |transaction| transaction.sent_ns)
    }

    /// Begin the next transaction; nothing is sent yet.
    #[inline]
    pub(crate) fn begin(&mut self, intended_ns: u64, now: u64, program: &Program) {
        // Advance the cursor after it is in place: a transaction built before would be copied from the stack.
        let transaction = self.transaction.insert(Transaction {
            cursor: program.transaction(self.id, self.completed_transactions),
            due: None,
            failed_attempts: 0,
            intended_ns,
            began_ns: now,
            sent_ns: 0,
            counters: Counters::default(),
        });
        transaction.due = transaction.cursor.next(program);
    }

    /// Count a failed attempt, and restart the present transaction with newly drawn values; its latency covers all attempts.
    #[cold]
    pub(crate) fn restart(&mut self, program: &Program) {
        let Some(transaction) = &mut self.transaction else {
            return;
        };
        transaction.counters.errors += 1;
        transaction.failed_attempts += 1;
        transaction.cursor = program.attempt(
            self.id,
            self.completed_transactions,
            transaction.failed_attempts,
        );
        transaction.due = transaction.cursor.next(program);
    }

    /// Length of the pause before the next statement.
    #[inline]
    pub(crate) fn think_ns(&self) -> u64 {
        self.due().map_or(0, |due| due.think_ns)
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
        let Some(transaction) = &mut self.transaction else {
            unreachable!("only a transaction sends")
        };
        let Some(due) = transaction.due else {
            unreachable!("a transaction has a statement until its last is answered")
        };
        let program = &*context.program;
        let packet = &mut context.packet;
        packet.clear();
        let request = Request {
            program,
            due,
            cursor: &mut transaction.cursor,
            memory: &mut self.memory,
            statements: &mut transport.statements,
        };
        let statements = transport.replies.encode(request, packet);
        self.state = State::AwaitingAnswer {
            first_byte_ns: None,
        };
        transaction.sent_ns = now;
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
        let Some(transport) = self.transport.as_deref_mut() else {
            unreachable!("only an open connection receives")
        };
        // A notice that the server sends between transactions belongs to none of them.
        let mut uncounted_bytes = 0;
        let (types, to_client) = match &mut self.transaction {
            Some(Transaction {
                due: Some(due),
                counters,
                ..
            }) => (
                transport.statements.types(due.slot),
                &mut counters.to_client,
            ),
            _ => (&[][..], &mut uncounted_bytes),
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
                if let Some(transaction) = &mut self.transaction {
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
        if let Some(counts) = self
            .transport
            .as_ref()
            .and_then(|transport| transport.replies.counts())
        {
            if let Some(transaction) = &mut self.transaction {
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
        if let Some(transaction) = &mut self.transaction {
            if let Some(due) = transaction.cursor.next(program) {
                transaction.due = Some(due);
                return NextStep::Statement;
            }
            transaction.due = None;
        }
        self.completed_transactions += 1;
        self.transactions_since_open += 1;
        self.state = State::Free;
        NextStep::Transaction
    }
}
