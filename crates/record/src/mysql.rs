//! Decodes commands of MySQL's and MariaDB's protocol, and as much of the answers as shows their outcome.

use std::collections::{HashMap, VecDeque};

use howfar_wire::mysql::command::code;
use howfar_wire::mysql::frame::MAX_PAYLOAD;
use howfar_wire::mysql::handshake::Greeting;
use howfar_wire::mysql::reply::{
    EOF, ERR, LOCAL_INFILE, MORE_RESULTS, OK, OkPacket, Prepared, ResultHead, eof_status, is_eof,
};

use crate::digest::{Dialect, digest};
use crate::frame::{Framer, HeaderLayout, Message};
use crate::parameters;
use crate::salt::Salt;
use crate::{
    COMPRESSED, DecoderReport, ENCRYPTED, Phase, REPLICATION_STREAM, REQUESTS_MISSED, Request,
    Rows, UnreadableReason,
};

const PROTOCOL_41: u64 = 1 << 9;
const SSL: u64 = 1 << 11;
const COMPRESS: u64 = 1 << 5;
const ZSTD: u64 = 1 << 26;
const DEPRECATE_EOF: u64 = 1 << 24;
const QUERY_ATTRIBUTES: u64 = 1 << 27;
const CACHE_METADATA: u64 = 1 << 36;
const CURSOR_EXISTS: u16 = 1 << 6;
const NO_BACKSLASH_ESCAPES: u16 = 1 << 9;
const MAX_REQUEST_KEPT: usize = 1 << 20;
/// Bytes of a greeting that are kept: up to the server's capabilities, which follow a version that may be long.
const MAX_GREETING_KEPT: usize = 1024;
const MAX_ANSWER_KEPT: usize = 64;
/// Maximum prepared statements remembered for a connection.
const MAX_STATEMENTS: usize = 16_384;
const MAX_PENDING: usize = 4096;
/// How MariaDB's progress report begins: it looks like an error with the number 0xFFFF.
const PROGRESS: [u8; 3] = [ERR, 0xFF, 0xFF];
/// The id that means "the statement prepared last" in MariaDB's protocol.
const LAST_PREPARED: u32 = u32::MAX;

/// Phase of the connection: authentication comes before commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Login,
    /// The exchange of credentials.
    Authentication,
    Commands,
}

/// What comes next in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    First,
    /// Definitions of columns or parameters, then perhaps an EOF, then rows if `then_rows`.
    Definitions {
        left: u64,
        then_rows: bool,
    },
    DefinitionsEnd {
        then_rows: bool,
    },
    Rows,
}

/// A request that will be answered.
#[derive(Debug)]
enum Pending {
    Result,
    Prepare(Option<String>),
    Fields,
    Line,
    Fetch,
}

/// A prepared statement.
#[derive(Debug)]
struct Statement {
    digest: Option<String>,
    parameters: u16,
}

#[derive(Debug)]
pub(crate) struct Mysql {
    state: State,
    to_server: Framer,
    to_client: Framer,
    server_capabilities: u64,
    capabilities: u64,
    backslash: bool,
    continued: bool,
    statements: HashMap<u32, Statement>,
    last_prepared: Option<String>,
    pending: VecDeque<Pending>,
    expect: Expect,
    columns_after_parameters: Option<u64>,
    /// Bytes so far of the server's current message.
    message_bytes: u64,
}

impl Mysql {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Greeting,
            to_server: Framer::new(HeaderLayout::Mysql, MAX_REQUEST_KEPT),
            to_client: Framer::new(HeaderLayout::Mysql, MAX_GREETING_KEPT),
            server_capabilities: 0,
            capabilities: 0,
            backslash: true,
            continued: false,
            statements: HashMap::new(),
            last_prepared: None,
            pending: VecDeque::new(),
            expect: Expect::First,
            columns_after_parameters: None,
            message_bytes: 0,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.state == State::Commands {
            Phase::Operation
        } else {
            Phase::Connect
        }
    }

    /// Begin a round trip: the client sends after the server did.
    pub(crate) fn begin_round_trip(&mut self) {
        if self.to_client.is_lost() || self.to_server.is_lost() {
            self.pending.clear();
            self.expect = Expect::First;
            self.to_client.mark_lost();
            self.to_client.resynchronise();
            self.to_server.resynchronise();
        }
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        // Moved out of `self` meanwhile, as a message borrows the framer.
        let mut framer =
            std::mem::replace(&mut self.to_server, Framer::new(HeaderLayout::Mysql, 0));
        let was_lost = framer.is_lost();
        let mut outcome = Ok(());
        while let Some(message) = framer.next(&mut bytes, &mut skipped) {
            outcome = self.handle_request(&message, salt, out);
            if outcome.is_err() {
                break;
            }
        }
        // Packets of a local file have sequence numbers above 0.
        if framer.is_lost() && !was_lost && framer.last_header()[3] == 0 {
            out.unknown.push(REQUESTS_MISSED);
        }
        out.expects_answer |= framer.is_lost();
        out.is_between_messages = framer.is_between_messages();
        self.to_server = framer;
        outcome
    }

    fn handle_request(
        &mut self,
        message: &Message,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        match self.state {
            State::Greeting | State::Login => return self.handle_login(message, out),
            State::Authentication => {
                out.requests
                    .push(Request::new("login").with_phase(Phase::Connect));
                return Ok(());
            }
            State::Commands => {}
        }
        let continues = std::mem::replace(&mut self.continued, message.length == MAX_PAYLOAD);
        // A sequence number other than 0 marks the file of LOAD DATA LOCAL.
        if continues || message.kind != 0 {
            out.expects_answer = true;
            out.name = Some("local file");
            return Ok(());
        }
        let Some((&code, body)) = message.head.split_first() else {
            return Ok(());
        };
        if !message.is_complete() {
            out.unknown.push("statement longer than kept");
        }
        self.handle_command(code, body, message.is_complete(), salt, out)
    }

    fn handle_login(
        &mut self,
        message: &Message,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let head = message.head;
        let number = |from: usize| {
            head.get(from..from + 4).map_or(0, |four| {
                u64::from(u32::from_le_bytes(four.try_into().expect("four bytes")))
            })
        };
        self.capabilities = number(0);
        if self.capabilities & PROTOCOL_41 == 0 {
            return Err(crate::NOT_UNDERSTOOD);
        }
        self.capabilities |= number(28) << 32;
        out.requests
            .push(Request::new("login").with_phase(Phase::Connect));
        if message.length == 32 && self.capabilities & SSL != 0 {
            return Err(ENCRYPTED);
        }
        self.capabilities &= self.server_capabilities;
        self.state = State::Authentication;
        Ok(())
    }

    fn handle_command(
        &mut self,
        code: u8,
        body: &[u8],
        is_complete: bool,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let request = match code {
            code::QUIT => Request::unanswered("quit").with_phase(Phase::Close),
            code::SEND_LONG_DATA => Request::unanswered("send_long_data"),
            code::CLOSE => {
                if let Some(id) = parse_id(body) {
                    self.statements.remove(&id);
                }
                Request::unanswered("close_statement")
            }
            code::CHANGE_USER => {
                self.state = State::Authentication;
                Request::new("change_user").with_phase(Phase::Connect)
            }
            code::BINLOG_DUMP | code::BINLOG_DUMP_GTID => {
                out.requests.push(Request::new("binlog_dump"));
                return Err(REPLICATION_STREAM);
            }
            code::QUERY => {
                self.handle_query(body, is_complete, salt, out);
                return Ok(());
            }
            code::PREPARE => {
                self.handle_prepare(body, is_complete, salt, out);
                return Ok(());
            }
            code::EXECUTE | code::BULK_EXECUTE => {
                self.handle_execute(code, body, is_complete, salt, out);
                return Ok(());
            }
            _ => {
                self.handle_simple_command(code, out);
                return Ok(());
            }
        };
        out.requests.push(request);
        Ok(())
    }

    fn handle_simple_command(&mut self, code: u8, out: &mut DecoderReport) {
        let (name, pending) = match code {
            code::INIT_DB => ("init_db", Pending::Result),
            code::FIELD_LIST => ("field_list", Pending::Fields),
            code::STATISTICS => ("statistics", Pending::Line),
            code::PING => ("ping", Pending::Result),
            code::RESET_STATEMENT => ("reset_statement", Pending::Result),
            code::SET_OPTION => ("set_option", Pending::Result),
            code::FETCH => ("fetch", Pending::Fetch),
            code::RESET_CONNECTION => ("reset_connection", Pending::Result),
            _ => ("other", Pending::Result),
        };
        out.requests.push(Request::new(name));
        self.expect_answer(pending);
    }

    fn expect_answer(&mut self, pending: Pending) {
        if self.pending.is_empty() {
            self.expect = if matches!(pending, Pending::Fetch) {
                Expect::Rows
            } else {
                Expect::First
            };
        }
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back(pending);
        } else {
            self.to_client.mark_lost();
        }
    }

    fn dialect(&self) -> Dialect {
        Dialect::Mysql {
            backslash: self.backslash,
        }
    }

    fn handle_query(
        &mut self,
        body: &[u8],
        is_complete: bool,
        salt: &Salt,
        out: &mut DecoderReport,
    ) {
        let sql = if self.capabilities & QUERY_ATTRIBUTES == 0 {
            Some(body)
        } else {
            parameters::strip_attributes(body)
        };
        if let Some(sql) = sql {
            let mut request = Request::from_statement(digest(sql, self.dialect(), salt));
            request.keys = request.keys.filter(|_| is_complete);
            out.requests.push(request);
        } else {
            out.unknown.push("query with attributes");
            out.requests.push(Request::new("query"));
        }
        self.expect_answer(Pending::Result);
    }

    fn handle_prepare(
        &mut self,
        sql: &[u8],
        is_complete: bool,
        salt: &Salt,
        out: &mut DecoderReport,
    ) {
        let statement = digest(sql, self.dialect(), salt);
        self.last_prepared = Some(statement.text.clone());
        out.requests.push(Request {
            digest: Some(statement.text.clone()),
            keys: is_complete.then_some(statement.keys),
            ..Request::new("prepare")
        });
        self.expect_answer(Pending::Prepare(Some(statement.text)));
    }

    fn handle_execute(
        &mut self,
        code: u8,
        body: &[u8],
        is_complete: bool,
        salt: &Salt,
        out: &mut DecoderReport,
    ) {
        let id = parse_id(body).unwrap_or(0);
        let named = self.capabilities & QUERY_ATTRIBUTES != 0;
        let values = body.get(4..).filter(|_| is_complete);
        let known = self.statements.get(&id);
        let keys = match known {
            Some(known) if code == code::EXECUTE => values
                .and_then(|body| parameters::hash_parameters(body, known.parameters, named, salt)),
            _ => values.map(|body| salt.hash(body)),
        };
        let digest = if id == LAST_PREPARED {
            self.last_prepared.clone()
        } else {
            known.and_then(|known| known.digest.clone())
        };
        if digest.is_none() {
            out.unknown.push("statement prepared before the recording");
        }
        out.requests.push(Request {
            digest,
            keys,
            ..Request::new("execute")
        });
        self.expect_answer(Pending::Result);
    }

    /// Whether no answer is due: an error that comes now, as after an idle timeout, is unrequested.
    fn is_idle(&self) -> bool {
        self.state == State::Commands && self.pending.is_empty() && !self.to_server.is_lost()
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut framer =
            std::mem::replace(&mut self.to_client, Framer::new(HeaderLayout::Mysql, 0));
        let mut outcome = Ok(());
        loop {
            if framer.is_between_messages() {
                (self.message_bytes, framer.is_push) = (0, self.is_idle());
            }
            let (before, is_push) = (bytes.len() + skipped, framer.is_push);
            let message = framer.next(&mut bytes, &mut skipped);
            self.message_bytes += (before - bytes.len() - skipped) as u64;
            let Some(message) = message else {
                break;
            };
            if is_push && message.head.first() == Some(&ERR) {
                out.pushes += 1;
                out.pushed_bytes += self.message_bytes;
                continue;
            }
            outcome = self.handle_answer(&message, out);
            if outcome.is_err() {
                break;
            }
            framer.max_kept = MAX_ANSWER_KEPT;
            // The answer showed that the position in the stream is lost.
            if self.to_client.is_lost() {
                framer.mark_lost();
            }
        }
        if framer.is_push && !framer.is_lost() && !framer.is_between_messages() {
            out.undecided_bytes = self.message_bytes;
        }
        if framer.is_lost() {
            out.rows = Rows::Missed;
        }
        self.to_client = framer;
        outcome
    }

    fn handle_answer(
        &mut self,
        message: &Message,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let head = message.head;
        let first = head.first().copied().unwrap_or(0);
        match self.state {
            State::Greeting => {
                self.server_capabilities =
                    Greeting::parse(head).map_or(0, |one| greeting_capabilities(&one));
                self.state = State::Login;
                out.failed |= first == ERR;
                return Ok(());
            }
            State::Login | State::Authentication => {
                out.failed |= first == ERR;
                if first == OK {
                    self.state = State::Commands;
                    self.set_status(status_of_ok(head));
                    if self.capabilities & (COMPRESS | ZSTD) != 0 {
                        return Err(COMPRESSED);
                    }
                }
                return Ok(());
            }
            State::Commands => {}
        }
        self.handle_result(first, message, out);
        Ok(())
    }

    fn handle_result(&mut self, first: u8, message: &Message, out: &mut DecoderReport) {
        if message.head.starts_with(&PROGRESS) {
            return;
        }
        if message.head.is_empty() && message.length > 0 {
            // Whether it is a row or the end was not seen.
            return self.to_client.mark_lost();
        }
        if first == ERR && !matches!(self.expect, Expect::Definitions { .. }) {
            out.failed = true;
            return self.next_pending();
        }
        match self.expect {
            Expect::First => self.handle_first(first, message, out),
            Expect::Definitions { left, then_rows } => {
                if left > 1 {
                    self.expect = Expect::Definitions {
                        left: left - 1,
                        then_rows,
                    };
                } else {
                    self.end_definitions(then_rows);
                }
            }
            Expect::DefinitionsEnd { then_rows } => {
                let cursor =
                    eof_status(message.head).is_ok_and(|status| status & CURSOR_EXISTS != 0);
                if cursor {
                    self.next_pending();
                } else {
                    self.after_definitions(then_rows);
                }
            }
            Expect::Rows => self.handle_row(first, message, out),
        }
    }

    fn handle_first(&mut self, first: u8, message: &Message, out: &mut DecoderReport) {
        let head = message.head;
        match (self.pending.front(), first) {
            (Some(Pending::Prepare(_)), OK) => self.handle_prepared(head),
            (Some(Pending::Line), _) => self.next_pending(),
            (Some(Pending::Fields), _) if !is_eof(message.length, first) => {}
            (_, OK) => self.end_result(status_of_ok(head)),
            (_, EOF) if is_eof(message.length, first) => self.end_result(eof_status(head).ok()),
            // The client sends a file now.
            (_, LOCAL_INFILE) => {}
            _ => {
                out.rows.add(0);
                let caches = self.capabilities & CACHE_METADATA != 0;
                let Ok(result) = ResultHead::parse(head, caches) else {
                    return self.to_client.mark_lost();
                };
                if result.definitions > 0 {
                    self.expect = Expect::Definitions {
                        left: result.definitions.into(),
                        then_rows: true,
                    };
                } else if self.capabilities & DEPRECATE_EOF == 0 {
                    self.expect = Expect::DefinitionsEnd { then_rows: true };
                } else {
                    self.expect = Expect::Rows;
                }
            }
        }
    }

    fn handle_prepared(&mut self, head: &[u8]) {
        let Some(Pending::Prepare(digest)) = self.pending.front_mut() else {
            return;
        };
        let digest = digest.take();
        self.columns_after_parameters = None;
        let Ok(prepared) = Prepared::parse(head) else {
            return self.next_pending();
        };
        if self.statements.len() < MAX_STATEMENTS {
            let known = Statement {
                digest,
                parameters: prepared.parameters,
            };
            self.statements.insert(prepared.statement, known);
        }
        match (prepared.parameters.into(), prepared.columns.into()) {
            (0, 0) => self.next_pending(),
            (0, left) => {
                self.expect = Expect::Definitions {
                    left,
                    then_rows: false,
                }
            }
            (left, columns) => {
                self.columns_after_parameters = (columns > 0).then_some(columns);
                self.expect = Expect::Definitions {
                    left,
                    then_rows: false,
                };
            }
        }
    }

    fn end_definitions(&mut self, then_rows: bool) {
        if self.capabilities & DEPRECATE_EOF == 0 {
            self.expect = Expect::DefinitionsEnd { then_rows };
        } else {
            self.after_definitions(then_rows);
        }
    }

    fn after_definitions(&mut self, then_rows: bool) {
        if then_rows {
            self.expect = Expect::Rows;
        } else if let Some(left) = self.columns_after_parameters.take() {
            self.expect = Expect::Definitions {
                left,
                then_rows: false,
            };
        } else {
            self.next_pending();
        }
    }

    fn handle_row(&mut self, first: u8, message: &Message, out: &mut DecoderReport) {
        let deprecated = self.capabilities & DEPRECATE_EOF != 0;
        let ends = if deprecated {
            first == EOF && message.length < MAX_PAYLOAD
        } else {
            is_eof(message.length, first)
        };
        if !ends {
            out.rows.add(1);
        } else if deprecated {
            self.end_result(status_of_ok(message.head));
        } else {
            self.end_result(eof_status(message.head).ok());
        }
    }

    fn end_result(&mut self, status: Option<u16>) {
        self.set_status(status);
        if status.is_some_and(|status| status & MORE_RESULTS != 0) {
            self.expect = Expect::First;
        } else {
            self.next_pending();
        }
    }

    fn set_status(&mut self, status: Option<u16>) {
        if let Some(status) = status {
            self.backslash = status & NO_BACKSLASH_ESCAPES == 0;
        }
    }

    fn next_pending(&mut self) {
        self.pending.pop_front();
        self.expect = if matches!(self.pending.front(), Some(Pending::Fetch)) {
            Expect::Rows
        } else {
            Expect::First
        };
    }
}

/// Whether the first bytes of a server are a greeting; None if there are too few.
pub(crate) fn is_greeting(bytes: &[u8]) -> Option<bool> {
    let first = bytes.first_chunk::<5>()?;
    Some(matches!(first, [_, _, 0, 0, 0x0A | 0xFF]))
}

fn parse_id(body: &[u8]) -> Option<u32> {
    body.first_chunk::<4>()
        .map(|four| u32::from_le_bytes(*four))
}

fn greeting_capabilities(greeting: &Greeting) -> u64 {
    u64::from(greeting.capabilities) | (u64::from(greeting.extended) << 32)
}

fn status_of_ok(head: &[u8]) -> Option<u16> {
    OkPacket::parse(head).ok().map(|ok| ok.status)
}
