//! One connection in its closed loop: send a statement, follow its answer, send the next. The hot path.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_record::jobs::ClientWork;
use howfar_wire::mysql::command::{self, Execute};
use howfar_wire::mysql::row::Work;
use howfar_wire::mysql::{Answer, Malformed, Outcome, ServerError};
use rustix::io::Errno;
use rustix::net::{self, SendFlags};

use crate::channel::{Channel, ChannelError};
use crate::login::Session;
use crate::statements::{Slot, Statements};
use crate::tally::{Tally, Use};
use crate::workload::{Kind, Program, Statement, Transaction};

/// Errors after which the same transaction is tried again, as sysbench does: deadlock, record changed, lock wait timeout.
const RETRIED: [u16; 3] = [1213, 1020, 1205];

/// What a worker lends to its connections.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) program: Arc<Program>,
    executes: [Execute; 3],
    text: Vec<u8>,
    /// Bytes for the socket and packets from it, where a channel lies between.
    sealed: Vec<u8>,
    plain: Vec<u8>,
    work: Work,
    pub(crate) tally: Tally,
}

impl Tools {
    pub(crate) fn new(program: Arc<Program>, client_work: ClientWork, tally: Tally) -> Self {
        let work = match client_work {
            ClientWork::Skip => Work::Skip,
            ClientWork::Touch => Work::touch(),
            ClientWork::Decode => Work::Decode,
        };
        Self {
            program,
            executes: [0, 1, 2].map(Execute::new),
            text: Vec::new(),
            sealed: Vec::new(),
            plain: Vec::new(),
            work,
            tally,
        }
    }
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub(crate) enum Broken {
    Channel(ChannelError),
    Malformed(Malformed),
    Server(ServerError, Kind),
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    /// Its number among all connections of the job.
    pub(crate) id: u64,
    pub(crate) channel: Channel,
    answer: Answer,
    statements: Statements,
    number: u64,
    transaction: Transaction,
    present: Statement,
    slot: usize,
    used: Use,
    transaction_began_ns: u64,
    /// When the first byte of the present statement went out.
    pub(crate) sent_ns: u64,
    /// Bytes that the socket did not take at once; nearly always empty.
    pub(crate) unsent: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, id: u64, session: Session, program: &Program) -> Self {
        let transaction = program.transaction(id, 0);
        let present = Statement {
            kind: Kind::Begin,
            table: 1,
            values: [0; 2],
        };
        Self {
            socket,
            id,
            channel: session.channel,
            answer: session.answer,
            statements: session.statements,
            number: 0,
            transaction,
            present,
            slot: 0,
            used: Use::default(),
            transaction_began_ns: 0,
            sent_ns: 0,
            unsent: Vec::new(),
        }
    }

    pub(crate) fn prepared(&self) -> u32 {
        self.statements.prepared()
    }

    /// Kind of the statement under way.
    pub(crate) fn kind(&self) -> Kind {
        self.present.kind
    }

    /// The first statement of all.
    pub(crate) fn start(&mut self, now: u64, tools: &mut Tools) -> io::Result<()> {
        self.transaction_began_ns = now;
        if let Some(first) = self.transaction.next(&tools.program) {
            self.present = first;
        }
        self.send(now, tools)
    }

    /// Send the present statement. `now` is the clock's last reading: the end of the answer before.
    #[inline]
    pub(crate) fn send(&mut self, now: u64, tools: &mut Tools) -> io::Result<()> {
        let Statement {
            kind,
            table,
            values,
        } = self.present;
        self.slot = tools.program.slot(kind, table);
        let packet = if let Some(Slot::Prepared { id, used }) = self.statements.get_mut(self.slot) {
            let first = !std::mem::replace(used, true);
            let packet = tools.executes[kind.parameters()].encode(*id, first, values);
            self.answer.begin(true);
            packet
        } else {
            write_query(&mut tools.text, &self.present);
            self.answer.begin(false);
            tools.text.as_slice()
        };
        self.sent_ns = now;
        self.used.queries += 1;
        self.used.turns += 1;
        self.used.to_server += packet.len() as u64;
        let bytes = if self.channel.is_plain() {
            packet
        } else {
            tools.sealed.clear();
            self.channel
                .seal(packet, &mut tools.sealed)
                .map_err(|error| io::Error::other(format!("{error:?}")))?;
            tools.sealed.as_slice()
        };
        let sent = if self.unsent.is_empty() {
            send_some(&self.socket, bytes)?
        } else {
            0
        };
        if sent < bytes.len() {
            self.unsent.extend_from_slice(&bytes[sent..]);
        }
        Ok(())
    }

    /// Bytes came. `clock` is read once, when the answer is whole.
    #[inline]
    pub(crate) fn received(
        &mut self,
        bytes: &[u8],
        tools: &mut Tools,
        clock: impl FnOnce(&mut Tally) -> u64,
    ) -> Result<Option<u64>, Broken> {
        let outcome = if self.channel.is_plain() {
            self.packets(bytes, &mut tools.work)
        } else {
            let mut plain = std::mem::take(&mut tools.plain);
            plain.clear();
            let opened = self.channel.open(bytes, &mut plain, &mut self.unsent);
            let outcome = opened
                .map_err(Broken::Channel)
                .and_then(|()| self.packets(&plain, &mut tools.work));
            tools.plain = plain;
            outcome
        };
        let Some(outcome) = outcome? else {
            return Ok(None);
        };
        let now = clock(&mut tools.tally);
        match outcome {
            Outcome::Rows(rows) => {
                self.used.rows += rows;
                tools.tally.statement(self.present.kind, now - self.sent_ns);
                self.step(now, tools);
            }
            Outcome::Failed(error) => self.try_again(error, tools)?,
        }
        Ok(Some(now))
    }

    #[inline]
    fn packets(&mut self, bytes: &[u8], work: &mut Work) -> Result<Option<Outcome>, Broken> {
        self.used.to_client += bytes.len() as u64;
        let types = self.statements.types(self.slot);
        self.answer
            .feed(bytes, types, work)
            .map_err(Broken::Malformed)
    }

    /// To the next statement, of this transaction or of the next one.
    #[inline]
    fn step(&mut self, now: u64, tools: &mut Tools) {
        if let Some(next) = self.transaction.next(&tools.program) {
            self.present = next;
            return;
        }
        tools
            .tally
            .transaction(now - self.transaction_began_ns, &self.used);
        self.used = Use::default();
        self.transaction_began_ns = now;
        self.number += 1;
        self.transaction = tools.program.transaction(self.id, self.number);
        // A program has at least one query.
        if let Some(first) = self.transaction.next(&tools.program) {
            self.present = first;
        }
    }

    /// The same transaction from its start, inside the same latency.
    #[cold]
    fn try_again(&mut self, error: ServerError, tools: &mut Tools) -> Result<(), Broken> {
        if !RETRIED.contains(&error.code) {
            return Err(Broken::Server(error, self.present.kind));
        }
        tools.tally.error(error.code);
        self.used.errors += 1;
        self.transaction = tools.program.transaction(self.id, self.number);
        if let Some(first) = self.transaction.next(&tools.program) {
            self.present = first;
        }
        Ok(())
    }
}

fn write_query(packet: &mut Vec<u8>, statement: &Statement) {
    packet.clear();
    command::query_with(packet, |sql| {
        let Statement {
            kind,
            table,
            values,
        } = *statement;
        kind.write_sql(sql, table, Some(values));
    });
}

/// Send what the socket takes now: maybe nothing.
#[inline]
pub(crate) fn send_some(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
