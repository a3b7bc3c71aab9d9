//! Messages of PostgreSQL's protocol: simple and extended queries, pipelines, COPY.

use std::collections::HashMap;

use howfar_wire::postgres::reply::parameter;
use howfar_wire::postgres::request::{CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST};

use crate::digest::{Dialect, Statement, digest};
use crate::frame::{Framer, Message, Style};
use crate::salt::Salt;
use crate::{
    Dark, ENCRYPTED, Heard, NOT_UNDERSTOOD, Phase, REPLICATION, REQUESTS_MISSED, Request, Rows,
};

const VERSION_3: u32 = 3;
const REQUEST_KEPT: usize = 1 << 20;
const ANSWER_KEPT: usize = 64;
/// Maximum prepared statements, and maximum portals, remembered for a connection.
const MOST_NAMES: usize = 16_384;

/// The statement that a name stands for. The name itself is the client's, so it is kept only in memory.
#[derive(Debug, Clone)]
struct Known {
    command: &'static str,
    text: String,
    keys: u64,
}

#[derive(Debug)]
pub(crate) struct Postgres {
    to_server: Framer,
    to_client: Framer,
    /// The server's one-byte answer to a request for encryption is due.
    byte_awaited: bool,
    phase: Phase,
    backslash: bool,
    failed: bool,
    statements: HashMap<Vec<u8>, Known>,
    portals: HashMap<Vec<u8>, Known>,
    /// Number of requests whose `ReadyForQuery` is still due.
    ready_awaited: u32,
    /// Number of messages that no Sync has followed yet.
    unsynced: u32,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        Self {
            to_server: Framer::new(Style::PostgresStartup, REQUEST_KEPT),
            to_client: Framer::new(Style::Postgres, ANSWER_KEPT),
            byte_awaited: false,
            phase: Phase::Connect,
            backslash: false,
            failed: false,
            statements: HashMap::new(),
            portals: HashMap::new(),
            ready_awaited: 0,
            unsynced: 0,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether no answer is due: what the server sends now is unrequested.
    fn is_idle(&self) -> bool {
        self.phase == Phase::Operation
            && self.ready_awaited == 0
            && self.unsynced == 0
            && !self.to_server.is_lost()
    }

    pub(crate) fn turn(&mut self) -> Result<(), Dark> {
        if self.to_server.is_lost() && self.failed {
            // The client may be in the middle of a COPY that the server has aborted: a message does not necessarily begin here.
            return Err(NOT_UNDERSTOOD);
        }
        if self.to_client.is_lost() || self.to_server.is_lost() {
            self.ready_awaited = 0;
            self.unsynced = 0;
        }
        self.failed = false;
        self.to_server.restart_if_lost();
        self.to_client.restart_if_lost();
        Ok(())
    }

    pub(crate) fn client_said(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        salt: &Salt,
        out: &mut Heard,
    ) -> Result<(), Dark> {
        let mut framer = std::mem::replace(&mut self.to_server, Framer::new(Style::Postgres, 0));
        let was_lost = framer.is_lost();
        let mut outcome = Ok(());
        loop {
            let style = framer.style;
            let Some(message) = framer.next(&mut bytes, &mut skipped) else {
                break;
            };
            let next = if style == Style::PostgresStartup {
                self.startup(&message, out)
            } else {
                self.message(&message, salt, out).map(|()| Style::Postgres)
            };
            match next {
                Ok(style) => framer.style = style,
                Err(dark) => {
                    outcome = Err(dark);
                    break;
                }
            }
        }
        // The data of a COPY contain no request.
        if framer.is_lost() && !was_lost && framer.last_header()[0] != b'd' {
            out.unknown.push(REQUESTS_MISSED);
        }
        out.awaits |= framer.is_lost();
        out.is_between = framer.is_between();
        self.to_server = framer;
        outcome
    }

    fn startup(&mut self, message: &Message, out: &mut Heard) -> Result<Style, Dark> {
        let code = message
            .head
            .first_chunk::<4>()
            .map_or(0, |four| u32::from_be_bytes(*four));
        let (name, next) = match code {
            SSL_REQUEST | GSS_REQUEST => ("encryption", Style::PostgresStartup),
            CANCEL_REQUEST => ("cancel", Style::PostgresStartup),
            _ if code >> 16 == VERSION_3 => ("login", Style::Postgres),
            _ => return Err(NOT_UNDERSTOOD),
        };
        self.byte_awaited = matches!(code, SSL_REQUEST | GSS_REQUEST);
        out.requests
            .push(Request::new(name).in_phase(Phase::Connect));
        Ok(next)
    }

    fn message(&mut self, message: &Message, salt: &Salt, out: &mut Heard) -> Result<(), Dark> {
        let (body, whole) = (message.head, message.is_whole());
        if matches!(message.kind, b'Q' | b'P' | b'B') && !whole {
            out.unknown.push("statement longer than kept");
        }
        self.count(message.kind);
        let request = match message.kind {
            b'Q' => {
                let statement = self.statement(body.strip_suffix(&[0]).unwrap_or(body), salt);
                Request {
                    keys: whole.then_some(statement.keys),
                    ..Request::of(statement)
                }
            }
            b'P' => self.parse(body, whole, salt),
            b'E' => self.execute(text(body).0, out),
            b'C' => self.forget(body),
            b'D' => Request::follows("describe"),
            b'F' => Request::new("function"),
            b'p' => Request::new("login").in_phase(Phase::Connect),
            b'X' => Request::unanswered("quit").in_phase(Phase::Close),
            b'B' | b'S' | b'H' | b'd' | b'c' | b'f' => {
                if message.kind == b'B' {
                    self.bind(body, whole, salt);
                }
                out.awaits = true;
                out.name = out.name.or(match message.kind {
                    b'S' => Some("sync"),
                    b'H' => Some("flush"),
                    b'd' | b'c' | b'f' => Some("copy data"),
                    _ => None,
                });
                return Ok(());
            }
            _ => return Err(NOT_UNDERSTOOD),
        };
        out.requests.push(request);
        Ok(())
    }

    /// Count the messages that `ReadyForQuery` will answer, at once or after a Sync.
    fn count(&mut self, kind: u8) {
        match kind {
            b'Q' | b'F' => self.ready_awaited = self.ready_awaited.saturating_add(1),
            b'S' => {
                self.ready_awaited = self.ready_awaited.saturating_add(1);
                self.unsynced = 0;
            }
            b'P' | b'B' | b'E' | b'C' | b'D' => self.unsynced = self.unsynced.saturating_add(1),
            _ => {}
        }
    }

    fn parse(&mut self, body: &[u8], whole: bool, salt: &Salt) -> Request {
        let (name, rest) = text(body);
        let statement = self.statement(text(rest).0, salt);
        let known = Known {
            command: statement.command,
            text: statement.text.clone(),
            keys: statement.keys,
        };
        remember(&mut self.statements, name, known);
        Request {
            digest: Some(statement.text),
            keys: whole.then_some(statement.keys),
            ..Request::follows("prepare")
        }
    }

    fn forget(&mut self, body: &[u8]) -> Request {
        if let Some((&kind, name)) = body.split_first() {
            let map = if kind == b'S' {
                &mut self.statements
            } else {
                &mut self.portals
            };
            map.remove(text(name).0);
        }
        Request::follows("close_statement")
    }

    fn statement(&self, sql: &[u8], salt: &Salt) -> Statement {
        digest(
            sql,
            Dialect::Postgres {
                backslash: self.backslash,
            },
            salt,
        )
    }

    fn bind(&mut self, body: &[u8], whole: bool, salt: &Salt) {
        let (portal, rest) = text(body);
        let (name, values) = text(rest);
        match self.statements.get(name) {
            Some(known) => {
                let mut keys = salt.keys();
                keys.mark(known.keys);
                keys.add(if whole { values } else { b"" });
                let keys = keys.finish();
                let known = Known {
                    keys,
                    ..known.clone()
                };
                remember(&mut self.portals, portal, known);
            }
            None => {
                self.portals.remove(portal);
            }
        }
    }

    fn execute(&mut self, portal: &[u8], out: &mut Heard) -> Request {
        if let Some(known) = self.portals.get(portal) {
            return Request {
                digest: Some(known.text.clone()),
                keys: Some(known.keys),
                ..Request::new(known.command)
            };
        }
        out.unknown.push("statement prepared before the recording");
        Request::new("execute")
    }

    pub(crate) fn server_said(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        out: &mut Heard,
    ) -> Result<(), Dark> {
        let first = bytes.split_first().filter(|_| self.byte_awaited);
        if let Some((&byte, rest)) = first {
            self.byte_awaited = false;
            match byte {
                b'S' | b'G' => return Err(ENCRYPTED),
                b'N' => bytes = rest,
                _ => {}
            }
        }
        let mut framer = std::mem::replace(&mut self.to_client, Framer::new(Style::Postgres, 0));
        let mut outcome = Ok(());
        loop {
            if framer.is_between() {
                let is_notification = bytes.first() == Some(&b'A');
                framer.is_own = self.is_idle() || is_notification;
            }
            let (before, is_own) = (bytes.len() + skipped, framer.is_own);
            let message = framer.next(&mut bytes, &mut skipped);
            let taken = (before - bytes.len() - skipped) as u64;
            out.pushed_bytes += if is_own { taken } else { 0 };
            let Some(message) = message else {
                break;
            };
            if is_own {
                out.pushes += 1;
                self.setting(&message);
                continue;
            }
            outcome = self.answer(&message, out);
            if outcome.is_err() {
                break;
            }
        }
        if framer.is_lost() {
            out.rows = Rows::Missed;
        }
        self.to_client = framer;
        outcome
    }

    fn answer(&mut self, message: &Message, out: &mut Heard) -> Result<(), Dark> {
        match message.kind {
            b'E' => {
                out.failed = true;
                self.failed = true;
            }
            b'D' => out.rows.add(1),
            b'T' | b'C' | b's' | b'I' => out.rows.add(0),
            b'Z' => {
                self.ready_awaited = self
                    .ready_awaited
                    .saturating_sub(u32::from(self.phase == Phase::Operation));
                self.phase = Phase::Operation;
            }
            b'S' => self.setting(message),
            b'W' => return Err(REPLICATION),
            _ => {}
        }
        Ok(())
    }

    fn setting(&mut self, message: &Message) {
        if let (b'S', Ok((b"standard_conforming_strings", value))) =
            (message.kind, parameter(message.head))
        {
            self.backslash = value == b"off";
        }
    }
}

/// The text before the first zero byte, and what follows it.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&byte| byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn remember(names: &mut HashMap<Vec<u8>, Known>, name: &[u8], known: Known) {
    if names.len() < MOST_NAMES || names.contains_key(name) {
        names.insert(name.to_vec(), known);
    }
}

/// Whether the first bytes of a client begin this protocol; None if there are too few.
pub(crate) fn begins(bytes: &[u8]) -> Option<bool> {
    let code: [u8; 4] = bytes.get(4..8)?.try_into().expect("four bytes");
    let code = u32::from_be_bytes(code);
    Some(
        bytes[0] == 0
            && (code >> 16 == VERSION_3 || (CANCEL_REQUEST..=GSS_REQUEST).contains(&code)),
    )
}
