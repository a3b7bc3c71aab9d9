//! One connection: pieces of bytes with their times in, round trips out.
//!
//! A round trip is a run of bytes to the server and the run that comes back. Finding it needs no decoder; the decoders identify its
//! requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::frame::MAX_LINE_BYTES;
use crate::http::{self, Http};
use crate::memcached::{self, Memcached};
use crate::mysql::{self, Mysql};
use crate::postgres::{self, Postgres};
use crate::redis::{self, Redis};
use crate::salt::Salt;
use crate::{
    DecoderReport, ENCRYPTED, NOT_UNDERSTOOD, OPENED_BEFORE_RECORDING, Phase, Request, Rows,
    UnreadableReason,
};

/// Maximum number of a client's first bytes that are used to recognise its protocol.
const MAX_GUESS_BYTES: usize = 64;
/// Maximum number of digests shown for one flight of pipelined requests.
const MAX_DIGESTS: usize = 4;
const HANDSHAKE: u8 = 0x16;
const CHANGE_CIPHER: u8 = 0x14;
/// Round trips of the longest usual login, PostgreSQL's with SCRAM: inside TLS, this many may be login.
const MAX_HIDDEN_LOGIN: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// A run of bytes to the server, and the run that answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundTrip {
    /// Time of the first byte of the request: of the first request that will be answered, if any will.
    pub begun_ns: u64,
    /// Time of the last byte of the request.
    pub sent_ns: u64,
    /// Time of the first byte of the answer; `sent_ns` without an answer.
    pub answered_ns: u64,
    pub ended_ns: u64,
    pub bytes_to_server: u64,
    pub bytes_to_client: u64,
    pub requests: u32,
    pub command: &'static str,
    pub digest: Option<String>,
    pub keys: Option<u64>,
    pub phase: Phase,
    pub rows: Option<u64>,
    pub failed: bool,
}

/// Protocol, encryption and login of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub protocol: &'static str,
    pub tls: bool,
    /// With TLS a lower bound: what follows the handshake is hidden.
    pub login_round_trips: u32,
    /// From the connection's opening to the end of the last login round trip.
    pub login_ns: u64,
}

#[derive(Debug)]
enum Decoder {
    /// Protocol not recognised yet; the bytes so far of the client, or of the server if it sent first.
    Guessing(Vec<u8>),
    Mysql(Box<Mysql>),
    Postgres(Box<Postgres>),
    Redis(Box<Redis>),
    Memcached(Box<Memcached>),
    Http(Box<Http>),
    Unreadable(UnreadableReason),
}

/// Whether what was sent will be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    /// No complete request will be answered.
    Nothing,
    /// As `Nothing`, and the next byte begins a request.
    NextRequest,
    Answer,
}

#[derive(Debug)]
struct OpenRoundTrip {
    begun_ns: u64,
    sent_ns: u64,
    answered_ns: Option<u64>,
    ended_ns: u64,
    bytes_to_server: u64,
    bytes_to_client: u64,
    requests: Vec<Request>,
    /// A name, used if no request gives one.
    name: Option<&'static str>,
    answer_state: AnswerState,
    phase: Phase,
    rows: Rows,
    failed: bool,
}

/// State and counts of a connection.
#[derive(Debug)]
pub struct Conversation {
    opened_ns: u64,
    is_new: bool,
    decoder: Decoder,
    protocol: &'static str,
    open: Option<OpenRoundTrip>,
    /// Bytes of the server that may belong to an answer or to a push.
    undecided_bytes: u64,
    /// How many of the next round trips inside TLS may still be login.
    hidden_left: u32,
    login_round_trips: u32,
    login_ns: u64,
    commands: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
    page_keys: Arc<[String]>,
}

impl Conversation {
    /// `is_new`: the connection is seen from its first byte.
    pub fn new(opened_ns: u64, is_new: bool) -> Self {
        Self {
            opened_ns,
            is_new,
            decoder: Decoder::Guessing(Vec::new()),
            protocol: "unknown",
            open: None,
            undecided_bytes: 0,
            hidden_left: MAX_HIDDEN_LOGIN,
            login_round_trips: 0,
            login_ns: 0,
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
            page_keys: Arc::default(),
        }
    }

    /// Set which query parameters, and which parts of a path (given with a leading `/`), page names keep.
    pub fn name_pages_by(&mut self, kept: &Arc<[String]>) {
        self.page_keys = Arc::clone(kept);
    }

    pub fn summary(&self) -> Summary {
        Summary {
            protocol: self.protocol,
            tls: matches!(self.decoder, Decoder::Unreadable(reason) if reason == ENCRYPTED),
            login_round_trips: self.login_round_trips,
            login_ns: self.login_ns,
        }
    }

    /// Take the counts since the last call: requests by command, and what is not known by reason.
    pub fn take_counts(&mut self) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
        (
            std::mem::take(&mut self.commands),
            std::mem::take(&mut self.unknown),
        )
    }

    /// Process `bytes`, which came at `at_ns`, followed by `skipped` bytes that were not kept. Returns the round trip that they end,
    /// if any.
    pub fn feed(
        &mut self,
        direction: Direction,
        at_ns: u64,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
    ) -> Option<RoundTrip> {
        match direction {
            Direction::ToServer => self.handle_client_bytes(at_ns, bytes, skipped, salt),
            Direction::ToClient => {
                self.handle_server_bytes(at_ns, bytes, skipped, salt);
                None
            }
        }
    }

    fn handle_client_bytes(
        &mut self,
        at_ns: u64,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
    ) -> Option<RoundTrip> {
        let ended = match &self.open {
            Some(open) if open.answered_ns.is_some() => self.finish(),
            _ => None,
        };
        if matches!(self.decoder, Decoder::Unreadable(reason) if reason.is_stream()) {
            return ended;
        }
        if self.open.is_none() {
            self.begin_round_trip();
        }
        let count = (bytes.len() + skipped) as u64;
        let phase = self.phase(bytes);
        let open = self
            .open
            .get_or_insert_with(|| OpenRoundTrip::new(at_ns, phase));
        if open.answer_state == AnswerState::NextRequest {
            open.begun_ns = at_ns;
        }
        open.sent_ns = at_ns;
        open.ended_ns = at_ns;
        open.bytes_to_server += count;
        let mut out = DecoderReport::default();
        let outcome = self.decode_request(bytes, skipped, salt, &mut out);
        let is_unanswered = out.requests.iter().any(|request| !request.is_answered);
        self.add_requests(&mut out);
        let unanswered = |open: &&mut OpenRoundTrip| open.answer_state != AnswerState::Answer;
        if let Some(open) = self.open.as_mut().filter(unanswered) {
            // The complete requests will not be answered: what follows them, in this piece or the next, begins the round trip.
            if is_unanswered {
                open.begun_ns = at_ns;
            }
            open.answer_state = if out.is_between_messages {
                AnswerState::NextRequest
            } else {
                AnswerState::Nothing
            };
        }
        self.stop_decoding(outcome);
        ended
    }

    fn add_requests(&mut self, out: &mut DecoderReport) {
        for request in &out.requests {
            *self.commands.entry(request.command).or_default() += 1;
        }
        if let Some(open) = &mut self.open {
            if out.expects_answer || out.requests.iter().any(|request| request.is_answered) {
                open.answer_state = AnswerState::Answer;
            }
            open.name = open.name.or(out.name);
            open.requests.append(&mut out.requests);
        }
        self.count_unknown(&std::mem::take(&mut out.unknown));
    }

    fn handle_server_bytes(&mut self, at_ns: u64, bytes: &[u8], skipped: usize, salt: &Salt) {
        if self.open.is_none() && !self.is_new && matches!(self.decoder, Decoder::Guessing(_)) {
            return self.count_unknown(&["answer to a request before the recording"]);
        }
        let mut out = DecoderReport::default();
        let outcome = self.decode_answer(bytes, skipped, salt, &mut out);
        self.add_requests(&mut out);
        self.stop_decoding(outcome);
        let is_stream = matches!(self.decoder, Decoder::Unreadable(reason) if reason.is_stream());
        let is_awaited = |open: &OpenRoundTrip| open.answered_ns.is_none();
        if is_stream && !self.open.as_ref().is_some_and(is_awaited) {
            return;
        }
        if out.pushes > 0 {
            *self.unknown.entry("pushed by the server").or_default() += out.pushes;
        }
        let count = (bytes.len() + skipped) as u64 + self.undecided_bytes;
        self.undecided_bytes = out.undecided_bytes;
        let count = count.saturating_sub(out.undecided_bytes + out.pushed_bytes);
        if count == 0 {
            return;
        }
        let opened_ns = self.opened_ns;
        let open = self.open.get_or_insert_with(|| OpenRoundTrip {
            requests: vec![Request::new("greeting").with_phase(Phase::Connect)],
            ..OpenRoundTrip::new(opened_ns, Phase::Connect)
        });
        open.answered_ns.get_or_insert(at_ns);
        open.ended_ns = at_ns;
        open.bytes_to_client += count;
        open.failed |= out.failed;
        open.rows = open.rows.combine(out.rows);
    }

    /// End the connection, or its recording. Returns the round trip in progress, if it was answered or needs no answer.
    pub fn close(&mut self) -> Option<RoundTrip> {
        let open = self.open.as_ref()?;
        let needs_answer = open.answer_state == AnswerState::Answer || open.requests.is_empty();
        if open.answered_ns.is_none() && needs_answer {
            self.count_unknown(&["not answered when the connection or the recording ended"]);
            self.open = None;
            return None;
        }
        self.finish()
    }

    fn finish(&mut self) -> Option<RoundTrip> {
        let open = self.open.take()?;
        let (opened_ns, is_answered) = (self.opened_ns, open.answered_ns.is_some());
        let reason = match self.decoder {
            Decoder::Unreadable(reason) => Some(reason),
            Decoder::Guessing(_) => Some(self.not_recognised()),
            _ => None,
        };
        if let Some(reason) = reason.filter(|_| open.requests.is_empty()) {
            self.count_unknown(&[reason.0]);
        }
        let is_nameless = open.requests.is_empty();
        let mut ended = open.into_round_trip(reason.is_some());
        if is_nameless && ended.requests > 0 {
            *self.commands.entry(ended.command).or_default() += 1;
        }
        if self.hidden_left > 0 && ended.phase == Phase::Operation && self.summary().tls {
            self.hidden_left -= 1;
            ended.phase = Phase::Hidden;
            self.count_unknown(&["round trips inside TLS that may be login"]);
        }
        if ended.phase == Phase::Connect {
            self.login_round_trips += u32::from(is_answered);
            self.login_ns = ended.ended_ns.saturating_sub(opened_ns);
        }
        Some(ended)
    }

    fn count_unknown(&mut self, reasons: &[&'static str]) {
        for reason in reasons {
            *self.unknown.entry(reason).or_default() += 1;
        }
    }

    fn stop_decoding(&mut self, outcome: Result<(), UnreadableReason>) {
        if let Err(reason) = outcome {
            if reason.is_stream() {
                self.count_unknown(&[reason.0]);
            }
            self.decoder = Decoder::Unreadable(reason);
        }
    }

    fn phase(&self, bytes: &[u8]) -> Phase {
        match &self.decoder {
            Decoder::Mysql(mysql) => mysql.phase(),
            Decoder::Postgres(postgres) => postgres.phase(),
            Decoder::Redis(redis) => redis.phase(),
            Decoder::Memcached(_) | Decoder::Http(_) => Phase::Operation,
            Decoder::Guessing(_) if bytes.first() == Some(&0) => Phase::Connect,
            Decoder::Guessing(_) | Decoder::Unreadable(_) => match bytes.first() {
                Some(&(HANDSHAKE | CHANGE_CIPHER)) => Phase::Connect,
                _ => Phase::Operation,
            },
        }
    }

    fn begin_round_trip(&mut self) {
        let outcome = match &mut self.decoder {
            Decoder::Mysql(mysql) => {
                mysql.begin_round_trip();
                Ok(())
            }
            Decoder::Postgres(postgres) => postgres.begin_round_trip(),
            Decoder::Redis(redis) => {
                redis.begin_round_trip();
                Ok(())
            }
            Decoder::Memcached(memcached) => {
                memcached.begin_round_trip();
                Ok(())
            }
            Decoder::Http(http) => {
                http.begin_round_trip();
                Ok(())
            }
            // If the recording began in mid-connection, a request may begin here.
            Decoder::Guessing(so_far) => {
                so_far.clear();
                Ok(())
            }
            Decoder::Unreadable(_) => Ok(()),
        };
        self.stop_decoding(outcome);
    }

    fn decode_request(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let kept;
        let mut bytes = bytes;
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            so_far.extend_from_slice(bytes);
            match guess_protocol(so_far) {
                Guess::Known(decoder) => {
                    kept = std::mem::take(so_far);
                    bytes = &kept;
                    self.recognise(decoder);
                }
                Guess::Lines if skipped == 0 && so_far.len() <= MAX_LINE_BYTES => return Ok(()),
                // Of the two, only Memcached has values of this length besides its lines.
                Guess::Lines => {
                    kept = std::mem::take(so_far);
                    bytes = &kept;
                    self.recognise(Decoder::Memcached(Box::new(Memcached::new(bytes[0]))));
                }
                Guess::More if so_far.len() < MAX_GUESS_BYTES && skipped == 0 => return Ok(()),
                Guess::More | Guess::Nothing if self.is_new => return Err(NOT_UNDERSTOOD),
                Guess::More | Guess::Nothing => {
                    out.expects_answer = true;
                    return Ok(());
                }
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.handle_client_bytes(bytes, skipped, salt, out),
            Decoder::Postgres(postgres) => postgres.handle_client_bytes(bytes, skipped, salt, out),
            Decoder::Redis(redis) => redis.handle_client_bytes(bytes, skipped, salt, out),
            Decoder::Memcached(memcached) => {
                memcached.handle_client_bytes(bytes, skipped, salt, out)
            }
            Decoder::Http(http) => {
                http.handle_client_bytes(bytes, skipped, out);
                out.expects_answer = true;
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Unreadable(_) => {
                out.expects_answer = true;
                Ok(())
            }
        }
    }

    fn recognise(&mut self, mut decoder: Decoder) {
        self.protocol = decoder.name();
        if let Decoder::Http(http) = &mut decoder {
            http.page_keys = Arc::clone(&self.page_keys);
        }
        self.decoder = decoder;
    }

    /// Recognise the protocol by the answer to the first requests.
    fn guess_by_answer(
        &mut self,
        requests: &[u8],
        answer: &[u8],
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        if !matches!(guess_protocol(requests), Guess::Lines) {
            return if self.is_new {
                Err(NOT_UNDERSTOOD)
            } else {
                Ok(())
            };
        }
        self.recognise(if redis::is_answer(answer) {
            Decoder::Redis(Box::new(Redis::new()))
        } else {
            Decoder::Memcached(Box::new(Memcached::new(requests[0])))
        });
        self.decode_request(requests, 0, salt, out)
    }

    fn decode_answer(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let greeting;
        let mut bytes = bytes;
        let has_request = self
            .open
            .as_ref()
            .is_some_and(|open| open.bytes_to_server > 0);
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            if has_request {
                let requests = std::mem::take(so_far);
                self.guess_by_answer(&requests, bytes, salt, out)?;
            } else {
                so_far.extend_from_slice(bytes);
                match mysql::is_greeting(so_far) {
                    None if skipped == 0 => return Ok(()),
                    Some(true) => {}
                    _ => return Err(NOT_UNDERSTOOD),
                }
                greeting = std::mem::take(so_far);
                bytes = &greeting;
                self.recognise(Decoder::Mysql(Box::new(Mysql::new())));
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.handle_server_bytes(bytes, skipped, out),
            Decoder::Postgres(postgres) => postgres.handle_server_bytes(bytes, skipped, out),
            Decoder::Redis(redis) => {
                redis.handle_server_bytes(bytes, skipped, out);
                Ok(())
            }
            Decoder::Memcached(memcached) => {
                memcached.handle_server_bytes(bytes, skipped, out);
                Ok(())
            }
            Decoder::Http(http) => {
                http.handle_server_bytes(bytes, out);
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Unreadable(_) => Ok(()),
        }
    }

    fn not_recognised(&self) -> UnreadableReason {
        if self.is_new {
            NOT_UNDERSTOOD
        } else {
            OPENED_BEFORE_RECORDING
        }
    }
}

/// What the first bytes of a client show about its protocol.
enum Guess {
    Known(Decoder),
    /// Commands as lines, which Redis and Memcached both have: the answer decides.
    Lines,
    /// Too few bytes to decide.
    More,
    Nothing,
}

fn guess_protocol(bytes: &[u8]) -> Guess {
    if matches!(bytes, [HANDSHAKE, 3, 1..=4, ..]) {
        return Guess::Known(Decoder::Unreadable(ENCRYPTED));
    }
    if memcached::is_binary_start(bytes) {
        return Guess::Known(Decoder::Memcached(Box::new(Memcached::new(bytes[0]))));
    }
    match redis::is_start(bytes) {
        Some(true) => return Guess::Known(Decoder::Redis(Box::new(Redis::new()))),
        None => return Guess::More,
        Some(false) => {}
    }
    if postgres::is_start(bytes) == Some(true) {
        return Guess::Known(Decoder::Postgres(Box::new(Postgres::new())));
    }
    match http::is_start(bytes) {
        Some(true) => return Guess::Known(Decoder::Http(Box::default())),
        None => return Guess::More,
        Some(false) => {}
    }
    let is_end = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let Some(end) = bytes.iter().position(is_end) else {
        return Guess::More;
    };
    let word = &bytes[..end];
    if memcached::is_command(word) || redis::is_command(word) {
        Guess::Lines
    } else if bytes.len() >= 8 {
        Guess::Nothing
    } else {
        Guess::More
    }
}

impl Decoder {
    fn name(&self) -> &'static str {
        match self {
            Self::Mysql(_) => "mysql",
            Self::Postgres(_) => "postgresql",
            Self::Redis(_) => "redis",
            Self::Memcached(_) => "memcached",
            Self::Http(_) => "http",
            Self::Guessing(_) | Self::Unreadable(_) => "unknown",
        }
    }
}

impl OpenRoundTrip {
    const fn new(at_ns: u64, phase: Phase) -> Self {
        Self {
            begun_ns: at_ns,
            sent_ns: at_ns,
            answered_ns: None,
            ended_ns: at_ns,
            bytes_to_server: 0,
            bytes_to_client: 0,
            requests: Vec::new(),
            name: None,
            answer_state: AnswerState::Nothing,
            phase,
            rows: Rows::Uncounted,
            failed: false,
        }
    }

    fn into_round_trip(self, is_unreadable: bool) -> RoundTrip {
        let requests_where = |is_named: fn(&Request) -> bool| -> Vec<&Request> {
            self.requests
                .iter()
                .filter(|request| is_named(request))
                .collect()
        };
        let mut named = requests_where(|request| request.names_round_trip);
        if named.is_empty() {
            named = requests_where(|request| request.is_answered);
        }
        if named.is_empty() && !(self.answer_state == AnswerState::Answer && self.name.is_some()) {
            // Its times are those of the last request.
            named = self.requests.last().into_iter().collect();
        }
        let nameless = match self.name {
            Some(name) => name,
            None if is_unreadable => "blind",
            None => "data",
        };
        RoundTrip {
            begun_ns: self.begun_ns,
            sent_ns: self.sent_ns,
            answered_ns: self.answered_ns.unwrap_or(self.sent_ns),
            ended_ns: self.ended_ns,
            bytes_to_server: self.bytes_to_server,
            bytes_to_client: self.bytes_to_client,
            requests: if self.bytes_to_server == 0 {
                0
            } else {
                named.len().max(usize::from(self.name.is_some())) as u32
            },
            command: named.first().map_or(nameless, |request| request.command),
            digest: join(&named).or_else(|| named.is_empty().then(|| nameless.to_owned())),
            keys: combine(&named),
            phase: named.first().map_or(self.phase, |request| request.phase),
            rows: match self.rows {
                Rows::Counted(count) => Some(count),
                Rows::Uncounted | Rows::Missed => None,
            },
            failed: self.failed,
        }
    }
}

/// The digests of a flight joined, each once.
fn join(requests: &[&Request]) -> Option<String> {
    let mut distinct: Vec<&str> = Vec::new();
    for text in requests
        .iter()
        .filter_map(|request| request.digest.as_deref())
    {
        if !distinct.contains(&text) {
            if distinct.len() == MAX_DIGESTS {
                distinct.push("…");
                break;
            }
            distinct.push(text);
        }
    }
    (!distinct.is_empty()).then(|| distinct.join("; "))
}

/// One hash of the keys of all requests; None if one of them is unknown.
fn combine(requests: &[&Request]) -> Option<u64> {
    let (first, rest) = requests.split_first()?;
    rest.iter().try_fold(first.keys?, |sum, request| {
        Some(sum.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ request.keys?)
    })
}
