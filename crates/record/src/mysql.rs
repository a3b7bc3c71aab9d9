//! Decodes commands of MySQL's and MariaDB's protocol, and the parts of answers that show the outcome.

use std::collections::{HashMap, VecDeque};

use howfar_wire::mysql::command::code;
use howfar_wire::mysql::frame::MAX_PAYLOAD;
use howfar_wire::mysql::handshake::Greeting;
use howfar_wire::mysql::reply::{
    EOF, ERR, LOCAL_INFILE, MORE_RESULTS, OK, OkPacket, Prepared, ResultHeader, eof_status, is_eof,
};

use crate::digest::{Dialect, digest};
use crate::frame::{Framer, HeaderLayout, Message};
use crate::parameters;
use crate::salt::Salt;
use crate::{
    COMPRESSED, DecoderReport, ENCRYPTED, Phase, REPLICATION_STREAM, REQUESTS_MISSED, Request,
    Rows, UnreadableReason,
};

/// Capabilities of clients and servers.
const PROTOCOL_41: u64 = 1 << 9;
const SSL: u64 = 1 << 11;
const COMPRESS: u64 = 1 << 5;
const ZSTD: u64 = 1 << 26;
const DEPRECATE_EOF: u64 = 1 << 24;
const QUERY_ATTRIBUTES: u64 = 1 << 27;
const CACHE_METADATA: u64 = 1 << 36;
/// Status flags.
const CURSOR_EXISTS: u16 = 1 << 6;
const NO_BACKSLASH_ESCAPES: u16 = 1 << 9;
const MAX_REQUEST_KEPT: usize = 1 << 20;
/// Maximum bytes of a greeting that are kept: the server's capabilities follow a version that may be long.
const MAX_GREETING_KEPT: usize = 1024;
const MAX_ANSWER_KEPT: usize = 64;
/// Maximum prepared statements that are remembered for a connection.
const MAX_STATEMENTS: usize = 16_384;
const MAX_PENDING: usize = 4096;
/// First bytes of MariaDB's progress report, which has the form of an error with the number 0xFFFF.
const PROGRESS: [u8; 3] = [ERR, 0xFF, 0xFF];
/// The id of the statement prepared last in MariaDB's protocol.
const LAST_PREPARED: u32 = u32::MAX;

/// The client's next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Login,
    /// The exchange of credentials.
    Authentication,
    Commands,
}

/// The next packet of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    First,
    /// The first of `count` definitions of columns or parameters, which an EOF may follow, and rows if `has_rows`.
    Definitions {
        count: u64,
        has_rows: bool,
    },
    DefinitionsEnd {
        has_rows: bool,
    },
    Rows,
}

/// A request that will be answered.
#[derive(Debug)]
enum Pending {
    Result,
    /// A prepare, with the statement's digest.
    Prepare(Option<String>),
    Fields,
    /// A request whose answer is one line of text.
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
    has_backslash_escapes: bool,
    /// The next packet continues the request.
    is_continued: bool,
    statements: HashMap<u32, Statement>,
    last_prepared: Option<String>,
    pending: VecDeque<Pending>,
    expect: Expect,
    /// Number of column definitions that follow the parameters of a prepare.
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
            has_backslash_escapes: true,
            is_continued: false,
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

    /// Begin a round trip: the client sends after the server has sent.
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
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        // Move the framer out of `self`, because its messages borrow it.
        let mut framer =
            std::mem::replace(&mut self.to_server, Framer::new(HeaderLayout::Mysql, 0));
        let was_lost = framer.is_lost();
        let mut outcome = Ok(());
        while let Some(message) = framer.next(&mut bytes, &mut skipped) {
            outcome = self.handle_request(&message, salt, report);
            if outcome.is_err() {
                break;
            }
        }
        // Packets of a local file have sequence numbers above 0.
        if framer.is_lost() && !was_lost && framer.last_header()[3] == 0 {
            report.unknown.push(REQUESTS_MISSED);
        }
        report.expects_answer |= framer.is_lost();
        report.is_between_messages = framer.is_between_messages();
        self.to_server = framer;
        outcome
    }

    fn handle_request(
        &mut self,
        message: &Message,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        match self.state {
            State::Greeting | State::Login => return self.handle_login(message, report),
            State::Authentication => {
                report
                    .requests
                    .push(Request::new("login").with_phase(Phase::Connect));
                return Ok(());
            }
            State::Commands => {}
        }
        let is_continuation =
            std::mem::replace(&mut self.is_continued, message.length == MAX_PAYLOAD);
        // A sequence number other than 0 marks the file of LOAD DATA LOCAL.
        if is_continuation || message.kind != 0 {
            report.expects_answer = true;
            report.name = Some("local file");
            return Ok(());
        }
        let Some((&code, body)) = message.first_bytes.split_first() else {
            return Ok(());
        };
        if !message.is_complete() {
            report.unknown.push("statement longer than kept");
        }
        self.handle_command(code, body, message.is_complete(), salt, report)
    }

    fn handle_login(
        &mut self,
        message: &Message,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let read_u32 = |offset: usize| {
            let bytes = message.first_bytes.get(offset..).and_then(parse_u32);
            bytes.map_or(0, u64::from)
        };
        self.capabilities = read_u32(0);
        if self.capabilities & PROTOCOL_41 == 0 {
            return Err(crate::NOT_UNDERSTOOD);
        }
        self.capabilities |= read_u32(28) << 32;
        report
            .requests
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
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let request = match code {
            code::QUIT => Request::unanswered("quit").with_phase(Phase::Close),
            code::SEND_LONG_DATA => Request::unanswered("send_long_data"),
            code::CLOSE => {
                if let Some(id) = parse_u32(body) {
                    self.statements.remove(&id);
                }
                Request::unanswered("close_statement")
            }
            code::CHANGE_USER => {
                self.state = State::Authentication;
                Request::new("change_user").with_phase(Phase::Connect)
            }
            code::BINLOG_DUMP | code::BINLOG_DUMP_GTID => {
                report.requests.push(Request::new("binlog_dump"));
                return Err(REPLICATION_STREAM);
            }
            code::QUERY => self.handle_query(body, is_complete, salt, report),
            code::PREPARE => self.handle_prepare(body, is_complete, salt),
            code::EXECUTE | code::BULK_EXECUTE => {
                self.handle_execute(code, body, is_complete, salt, report)
            }
            _ => self.handle_simple_command(code),
        };
        report.requests.push(request);
        Ok(())
    }

    fn handle_simple_command(&mut self, code: u8) -> Request {
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
        self.expect_answer(pending);
        Request::new(name)
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
            backslash: self.has_backslash_escapes,
        }
    }

    fn handle_query(
        &mut self,
        body: &[u8],
        is_complete: bool,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Request {
        self.expect_answer(Pending::Result);
        let sql = if self.capabilities & QUERY_ATTRIBUTES == 0 {
            Some(body)
        } else {
            parameters::strip_attributes(body)
        };
        let Some(sql) = sql else {
            report.unknown.push("query with attributes");
            return Request::new("query");
        };
        let mut request = Request::from_statement(digest(sql, self.dialect(), salt));
        request.keys = request.keys.filter(|_| is_complete);
        request
    }

    fn handle_prepare(&mut self, sql: &[u8], is_complete: bool, salt: &Salt) -> Request {
        let statement = digest(sql, self.dialect(), salt);
        self.last_prepared = Some(statement.text.clone());
        self.expect_answer(Pending::Prepare(Some(statement.text.clone())));
        Request {
            digest: Some(statement.text),
            keys: is_complete.then_some(statement.keys),
            ..Request::new("prepare")
        }
    }

    fn handle_execute(
        &mut self,
        code: u8,
        body: &[u8],
        is_complete: bool,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Request {
        self.expect_answer(Pending::Result);
        let id = parse_u32(body).unwrap_or(0);
        let supports_attributes = self.capabilities & QUERY_ATTRIBUTES != 0;
        let values = body.get(4..).filter(|_| is_complete);
        let statement = self.statements.get(&id);
        let keys = match statement {
            Some(statement) if code == code::EXECUTE => values.and_then(|body| {
                parameters::hash_parameters(body, statement.parameters, supports_attributes, salt)
            }),
            _ => values.map(|body| salt.hash(body)),
        };
        let digest = if id == LAST_PREPARED {
            self.last_prepared.clone()
        } else {
            statement.and_then(|statement| statement.digest.clone())
        };
        if digest.is_none() {
            report
                .unknown
                .push("statement prepared before the recording");
        }
        Request {
            digest,
            keys,
            ..Request::new("execute")
        }
    }

    /// Whether no answer is due. An error that comes now is unrequested, as after an idle timeout.
    fn is_idle(&self) -> bool {
        self.state == State::Commands && self.pending.is_empty() && !self.to_server.is_lost()
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        mut bytes: &[u8],
        mut skipped: usize,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut framer =
            std::mem::replace(&mut self.to_client, Framer::new(HeaderLayout::Mysql, 0));
        let mut outcome = Ok(());
        loop {
            if framer.is_between_messages() {
                (self.message_bytes, framer.is_push) = (0, self.is_idle());
            }
            let (old_length, is_push) = (bytes.len() + skipped, framer.is_push);
            let message = framer.next(&mut bytes, &mut skipped);
            self.message_bytes += (old_length - bytes.len() - skipped) as u64;
            let Some(message) = message else {
                break;
            };
            if is_push && message.first_bytes.first() == Some(&ERR) {
                report.pushes += 1;
                report.pushed_bytes += self.message_bytes;
                continue;
            }
            outcome = self.handle_answer(&message, report);
            if outcome.is_err() {
                break;
            }
            framer.max_kept = MAX_ANSWER_KEPT;
            // The answer showed that message boundaries are lost.
            if self.to_client.is_lost() {
                framer.mark_lost();
            }
        }
        if framer.is_push && !framer.is_lost() && !framer.is_between_messages() {
            report.undecided_bytes = self.message_bytes;
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
        let payload = message.first_bytes;
        let first_byte = payload.first().copied().unwrap_or(0);
        match self.state {
            State::Greeting => {
                self.server_capabilities = Greeting::parse(payload).map_or(0, |greeting| {
                    let extended = u64::from(greeting.extended_capabilities);
                    u64::from(greeting.capabilities) | (extended << 32)
                });
                self.state = State::Login;
                report.failed |= first_byte == ERR;
                return Ok(());
            }
            State::Login | State::Authentication => {
                report.failed |= first_byte == ERR;
                if first_byte == OK {
                    self.state = State::Commands;
                    self.set_status(ok_status(payload));
                    if self.capabilities & (COMPRESS | ZSTD) != 0 {
                        return Err(COMPRESSED);
                    }
                }
                return Ok(());
            }
            State::Commands => {}
        }
        self.handle_result(first_byte, message, report);
        Ok(())
    }

    fn handle_result(&mut self, first_byte: u8, message: &Message, report: &mut DecoderReport) {
        if message.first_bytes.starts_with(&PROGRESS) {
            return;
        }
        if message.first_bytes.is_empty() && message.length > 0 {
            // The first byte, which distinguishes a row from the end, was not seen.
            return self.to_client.mark_lost();
        }
        if first_byte == ERR && !matches!(self.expect, Expect::Definitions { .. }) {
            report.failed = true;
            return self.finish_pending();
        }
        match self.expect {
            Expect::First => self.handle_first_packet(first_byte, message, report),
            Expect::Definitions { count, has_rows } if count > 1 => {
                self.expect = Expect::Definitions {
                    count: count - 1,
                    has_rows,
                };
            }
            Expect::Definitions { has_rows, .. } if self.deprecates_eof() => {
                self.end_definitions(has_rows);
            }
            Expect::Definitions { has_rows, .. } => {
                self.expect = Expect::DefinitionsEnd { has_rows };
            }
            Expect::DefinitionsEnd { has_rows } => {
                let status = eof_status(message.first_bytes);
                if status.is_ok_and(|status| status & CURSOR_EXISTS != 0) {
                    self.finish_pending();
                } else {
                    self.end_definitions(has_rows);
                }
            }
            Expect::Rows => self.handle_row(first_byte, message, report),
        }
    }

    fn handle_first_packet(
        &mut self,
        first_byte: u8,
        message: &Message,
        report: &mut DecoderReport,
    ) {
        let payload = message.first_bytes;
        match (self.pending.front(), first_byte) {
            (Some(Pending::Prepare(_)), OK) => self.handle_prepared(payload),
            (Some(Pending::Line), _) => self.finish_pending(),
            (Some(Pending::Fields), _) if !is_eof(message.length, first_byte) => {}
            (_, OK) => self.end_result(ok_status(payload)),
            (_, EOF) if is_eof(message.length, first_byte) => {
                self.end_result(eof_status(payload).ok());
            }
            // The client sends the file next.
            (_, LOCAL_INFILE) => {}
            _ => {
                report.rows.add(0);
                let caches_metadata = self.capabilities & CACHE_METADATA != 0;
                let Ok(result) = ResultHeader::parse(payload, caches_metadata) else {
                    return self.to_client.mark_lost();
                };
                if result.definitions > 0 {
                    self.expect = Expect::Definitions {
                        count: result.definitions.into(),
                        has_rows: true,
                    };
                } else if self.deprecates_eof() {
                    self.expect = Expect::Rows;
                } else {
                    self.expect = Expect::DefinitionsEnd { has_rows: true };
                }
            }
        }
    }

    fn handle_prepared(&mut self, payload: &[u8]) {
        let Some(Pending::Prepare(digest)) = self.pending.front_mut() else {
            return;
        };
        let digest = digest.take();
        self.columns_after_parameters = None;
        let Ok(prepared) = Prepared::parse(payload) else {
            return self.finish_pending();
        };
        if self.statements.len() < MAX_STATEMENTS {
            let statement = Statement {
                digest,
                parameters: prepared.parameters,
            };
            self.statements.insert(prepared.statement, statement);
        }
        let (parameters, columns) = (prepared.parameters.into(), prepared.columns.into());
        if parameters > 0 {
            self.columns_after_parameters = (columns > 0).then_some(columns);
        }
        self.expect_prepared_definitions(if parameters > 0 { parameters } else { columns });
    }

    /// Expect definitions of a prepare; with a `count` of 0 its answer is complete.
    fn expect_prepared_definitions(&mut self, count: u64) {
        if count == 0 {
            return self.finish_pending();
        }
        self.expect = Expect::Definitions {
            count,
            has_rows: false,
        };
    }

    /// Continue after a list of definitions and its EOF.
    fn end_definitions(&mut self, has_rows: bool) {
        if has_rows {
            self.expect = Expect::Rows;
        } else {
            let columns = self.columns_after_parameters.take();
            self.expect_prepared_definitions(columns.unwrap_or(0));
        }
    }

    /// Whether the server omits the EOF after definitions, and ends rows with an OK.
    fn deprecates_eof(&self) -> bool {
        self.capabilities & DEPRECATE_EOF != 0
    }

    fn handle_row(&mut self, first_byte: u8, message: &Message, report: &mut DecoderReport) {
        let is_end = if self.deprecates_eof() {
            first_byte == EOF && message.length < MAX_PAYLOAD
        } else {
            is_eof(message.length, first_byte)
        };
        if !is_end {
            report.rows.add(1);
        } else if self.deprecates_eof() {
            self.end_result(ok_status(message.first_bytes));
        } else {
            self.end_result(eof_status(message.first_bytes).ok());
        }
    }

    fn end_result(&mut self, status: Option<u16>) {
        self.set_status(status);
        if status.is_some_and(|status| status & MORE_RESULTS != 0) {
            self.expect = Expect::First;
        } else {
            self.finish_pending();
        }
    }

    fn set_status(&mut self, status: Option<u16>) {
        if let Some(status) = status {
            self.has_backslash_escapes = status & NO_BACKSLASH_ESCAPES == 0;
        }
    }

    /// End the answer to the first pending request.
    fn finish_pending(&mut self) {
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

fn parse_u32(body: &[u8]) -> Option<u32> {
    body.first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

fn ok_status(payload: &[u8]) -> Option<u16> {
    OkPacket::parse(payload).ok().map(|ok| ok.status)
}
