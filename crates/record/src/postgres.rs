//! Decodes messages of PostgreSQL's protocol: simple and extended queries, pipelines, COPY.

use std::collections::HashMap;

use howfar_wire::postgres::reply::parse_parameter;
use howfar_wire::postgres::request::{CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST};

use crate::digest::{Dialect, Statement, digest};
use crate::frame::{Framer, HeaderLayout, Message};
use crate::salt::Salt;
use crate::{
    DecoderReport, ENCRYPTED, NOT_UNDERSTOOD, Phase, REPLICATION_STREAM, REQUESTS_MISSED, Request,
    Rows, UnreadableReason,
};

const VERSION_3: u32 = 3;
const MAX_REQUEST_KEPT: usize = 1 << 20;
const MAX_ANSWER_KEPT: usize = 64;
/// Maximum prepared statements, and maximum portals, that are remembered for a connection.
const MAX_NAMES: usize = 16_384;

/// A named statement. The name is the client's own text, so it is kept only in memory.
#[derive(Debug, Clone)]
struct KnownStatement {
    command: &'static str,
    text: String,
    keys: u64,
}

#[derive(Debug)]
pub(crate) struct Postgres {
    to_server: Framer,
    to_client: Framer,
    /// The server's one-byte answer to a request for encryption is due.
    is_encryption_byte_due: bool,
    phase: Phase,
    has_backslash_escapes: bool,
    /// The server reported an error in this round trip.
    has_failed: bool,
    statements: HashMap<Vec<u8>, KnownStatement>,
    portals: HashMap<Vec<u8>, KnownStatement>,
    /// Number of requests whose `ReadyForQuery` is still due.
    ready_messages_due: u32,
    /// Number of messages since the last Sync.
    unsynced_messages: u32,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        Self {
            to_server: Framer::new(HeaderLayout::PostgresStartup, MAX_REQUEST_KEPT),
            to_client: Framer::new(HeaderLayout::Postgres, MAX_ANSWER_KEPT),
            is_encryption_byte_due: false,
            phase: Phase::Connect,
            has_backslash_escapes: false,
            has_failed: false,
            statements: HashMap::new(),
            portals: HashMap::new(),
            ready_messages_due: 0,
            unsynced_messages: 0,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether no answer is due: a message that the server sends now is unrequested.
    fn is_idle(&self) -> bool {
        self.phase == Phase::Operation
            && self.ready_messages_due == 0
            && self.unsynced_messages == 0
            && !self.to_server.is_lost()
    }

    pub(crate) fn begin_round_trip(&mut self) -> Result<(), UnreadableReason> {
        if self.to_server.is_lost() && self.has_failed {
            // The client may be in the middle of a COPY that the server has aborted, so a message may not begin here.
            return Err(NOT_UNDERSTOOD);
        }
        if self.to_client.is_lost() || self.to_server.is_lost() {
            self.ready_messages_due = 0;
            self.unsynced_messages = 0;
        }
        self.has_failed = false;
        self.to_server.resynchronise();
        self.to_client.resynchronise();
        Ok(())
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut framer =
            std::mem::replace(&mut self.to_server, Framer::new(HeaderLayout::Postgres, 0));
        let was_lost = framer.is_lost();
        let mut outcome = Ok(());
        loop {
            let layout = framer.layout;
            let Some(message) = framer.next(&mut bytes, &mut skipped) else {
                break;
            };
            let next_layout = if layout == HeaderLayout::PostgresStartup {
                self.handle_startup(&message, report)
            } else {
                self.handle_message(&message, salt, report)
                    .map(|()| HeaderLayout::Postgres)
            };
            match next_layout {
                Ok(layout) => framer.layout = layout,
                Err(reason) => {
                    outcome = Err(reason);
                    break;
                }
            }
        }
        // The data of a COPY contains no request.
        if framer.is_lost() && !was_lost && framer.last_header()[0] != b'd' {
            report.unknown.push(REQUESTS_MISSED);
        }
        report.expects_answer |= framer.is_lost();
        report.is_between_messages = framer.is_between_messages();
        self.to_server = framer;
        outcome
    }

    fn handle_startup(
        &mut self,
        message: &Message,
        report: &mut DecoderReport,
    ) -> Result<HeaderLayout, UnreadableReason> {
        let code = message
            .first_bytes
            .first_chunk::<4>()
            .map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let (name, next_layout) = match code {
            SSL_REQUEST | GSS_REQUEST => ("encryption", HeaderLayout::PostgresStartup),
            CANCEL_REQUEST => ("cancel", HeaderLayout::PostgresStartup),
            _ if code >> 16 == VERSION_3 => ("login", HeaderLayout::Postgres),
            _ => return Err(NOT_UNDERSTOOD),
        };
        self.is_encryption_byte_due = matches!(code, SSL_REQUEST | GSS_REQUEST);
        report
            .requests
            .push(Request::new(name).with_phase(Phase::Connect));
        Ok(next_layout)
    }

    fn handle_message(
        &mut self,
        message: &Message,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let (body, is_complete) = (message.first_bytes, message.is_complete());
        if matches!(message.kind, b'Q' | b'P' | b'B') && !is_complete {
            report.unknown.push("statement longer than kept");
        }
        self.count_due(message.kind);
        let request = match message.kind {
            b'Q' => {
                let statement = self.digest_sql(body.strip_suffix(&[0]).unwrap_or(body), salt);
                Request {
                    keys: is_complete.then_some(statement.keys),
                    ..Request::from_statement(statement)
                }
            }
            b'P' => self.handle_parse(body, is_complete, salt),
            b'E' => self.handle_execute(split_text(body).0, report),
            b'C' => self.handle_close(body),
            b'D' => Request::auxiliary("describe"),
            b'F' => Request::new("function"),
            b'p' => Request::new("login").with_phase(Phase::Connect),
            b'X' => Request::unanswered("quit").with_phase(Phase::Close),
            b'B' | b'S' | b'H' | b'd' | b'c' | b'f' => {
                if message.kind == b'B' {
                    self.handle_bind(body, is_complete, salt);
                }
                report.expects_answer = true;
                report.name = report.name.or(match message.kind {
                    b'S' => Some("sync"),
                    b'H' => Some("flush"),
                    b'd' | b'c' | b'f' => Some("copy data"),
                    _ => None,
                });
                return Ok(());
            }
            _ => return Err(NOT_UNDERSTOOD),
        };
        report.requests.push(request);
        Ok(())
    }

    /// Count a message that `ReadyForQuery` will answer, immediately or after a Sync.
    fn count_due(&mut self, kind: u8) {
        match kind {
            b'Q' | b'F' => self.ready_messages_due = self.ready_messages_due.saturating_add(1),
            b'S' => {
                self.ready_messages_due = self.ready_messages_due.saturating_add(1);
                self.unsynced_messages = 0;
            }
            b'P' | b'B' | b'E' | b'C' | b'D' => {
                self.unsynced_messages = self.unsynced_messages.saturating_add(1);
            }
            _ => {}
        }
    }

    fn handle_parse(&mut self, body: &[u8], is_complete: bool, salt: &Salt) -> Request {
        let (name, rest) = split_text(body);
        let statement = self.digest_sql(split_text(rest).0, salt);
        let known_statement = KnownStatement {
            command: statement.command,
            text: statement.text.clone(),
            keys: statement.keys,
        };
        remember_statement(&mut self.statements, name, known_statement);
        Request {
            digest: Some(statement.text),
            keys: is_complete.then_some(statement.keys),
            ..Request::auxiliary("prepare")
        }
    }

    fn handle_close(&mut self, body: &[u8]) -> Request {
        if let Some((&kind, name)) = body.split_first() {
            let map = if kind == b'S' {
                &mut self.statements
            } else {
                &mut self.portals
            };
            map.remove(split_text(name).0);
        }
        Request::auxiliary("close_statement")
    }

    fn digest_sql(&self, sql: &[u8], salt: &Salt) -> Statement {
        digest(
            sql,
            Dialect::Postgres {
                backslash: self.has_backslash_escapes,
            },
            salt,
        )
    }

    fn handle_bind(&mut self, body: &[u8], is_complete: bool, salt: &Salt) {
        let (portal, rest) = split_text(body);
        let (name, values) = split_text(rest);
        match self.statements.get(name) {
            Some(statement) => {
                let mut keys = salt.hasher();
                keys.add_number(statement.keys);
                keys.add(if is_complete { values } else { b"" });
                let bound_statement = KnownStatement {
                    keys: keys.finish(),
                    ..statement.clone()
                };
                remember_statement(&mut self.portals, portal, bound_statement);
            }
            None => {
                self.portals.remove(portal);
            }
        }
    }

    fn handle_execute(&mut self, portal: &[u8], report: &mut DecoderReport) -> Request {
        if let Some(statement) = self.portals.get(portal) {
            return Request {
                digest: Some(statement.text.clone()),
                keys: Some(statement.keys),
                ..Request::new(statement.command)
            };
        }
        report
            .unknown
            .push("statement prepared before the recording");
        Request::new("execute")
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let encryption_answer = bytes.split_first().filter(|_| self.is_encryption_byte_due);
        if let Some((&byte, rest)) = encryption_answer {
            self.is_encryption_byte_due = false;
            match byte {
                b'S' | b'G' => return Err(ENCRYPTED),
                b'N' => bytes = rest,
                _ => {}
            }
        }
        let mut framer =
            std::mem::replace(&mut self.to_client, Framer::new(HeaderLayout::Postgres, 0));
        let mut outcome = Ok(());
        loop {
            if framer.is_between_messages() {
                let is_notification = bytes.first() == Some(&b'A');
                framer.is_push = self.is_idle() || is_notification;
            }
            let (old_length, is_push) = (bytes.len() + skipped, framer.is_push);
            let message = framer.next(&mut bytes, &mut skipped);
            let consumed_bytes = (old_length - bytes.len() - skipped) as u64;
            report.pushed_bytes += if is_push { consumed_bytes } else { 0 };
            let Some(message) = message else {
                break;
            };
            if is_push {
                report.pushes += 1;
                self.handle_setting(&message);
                continue;
            }
            outcome = self.handle_answer(&message, report);
            if outcome.is_err() {
                break;
            }
        }
        if framer.is_lost() {
            report.rows = Rows::Missed;
        }
        self.to_client = framer;
        outcome
    }

    fn handle_answer(
        &mut self,
        message: &Message,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        match message.kind {
            b'E' => {
                report.failed = true;
                self.has_failed = true;
            }
            b'D' => report.rows.add(1),
            b'T' | b'C' | b's' | b'I' => report.rows.add(0),
            b'Z' => {
                self.ready_messages_due = self
                    .ready_messages_due
                    .saturating_sub(u32::from(self.phase == Phase::Operation));
                self.phase = Phase::Operation;
            }
            b'S' => self.handle_setting(message),
            b'W' => return Err(REPLICATION_STREAM),
            _ => {}
        }
        Ok(())
    }

    fn handle_setting(&mut self, message: &Message) {
        if let (b'S', Ok((b"standard_conforming_strings", value))) =
            (message.kind, parse_parameter(message.first_bytes))
        {
            self.has_backslash_escapes = value == b"off";
        }
    }
}

/// Split at the first zero byte, which belongs to neither part.
fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&byte| byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn remember_statement(
    names: &mut HashMap<Vec<u8>, KnownStatement>,
    name: &[u8],
    statement: KnownStatement,
) {
    if names.len() < MAX_NAMES || names.contains_key(name) {
        names.insert(name.to_vec(), statement);
    }
}

/// Whether the first bytes of a client begin this protocol; None if there are too few.
pub(crate) fn is_start(bytes: &[u8]) -> Option<bool> {
    let code = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
    Some(
        bytes[0] == 0
            && (code >> 16 == VERSION_3 || (CANCEL_REQUEST..=GSS_REQUEST).contains(&code)),
    )
}
