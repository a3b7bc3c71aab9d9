//! Finds the round trips of one connection in pieces of bytes with their times.
//!
//! A round trip is a run of bytes to the server and the run that comes back. It is found without decoding; the decoders identify its
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
/// Maximum number of digests in the name of one flight of pipelined requests.
const MAX_DIGESTS: usize = 4;
/// First bytes of TLS records.
const HANDSHAKE: u8 = 0x16;
const CHANGE_CIPHER: u8 = 0x14;
/// Maximum round trips inside TLS that may be login: the longest usual login, PostgreSQL's with SCRAM, takes this many.
const MAX_HIDDEN_LOGIN_ROUND_TRIPS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// A run of bytes to the server, and the run that answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundTrip {
    /// Time of the first byte of the first request that will be answered; of the last request if none will be.
    pub begun_ns: u64,
    /// Time of the last byte to the server.
    pub sent_ns: u64,
    /// Time of the first byte of the answer; `sent_ns` without an answer.
    pub answered_ns: u64,
    /// Time of the last byte of the answer; `sent_ns` without an answer.
    pub ended_ns: u64,
    pub bytes_to_server: u64,
    pub bytes_to_client: u64,
    pub requests: u32,
    pub command: &'static str,
    pub digest: Option<String>,
    /// Salted hash of the requests' literals, keys or values; None if it is unknown.
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
    /// With TLS a lower bound: the bytes after the handshake are hidden.
    pub login_round_trips: u32,
    /// From the connection's opening to the end of the last login round trip.
    pub login_ns: u64,
}

#[derive(Debug)]
enum Decoder {
    /// The protocol is not recognised yet. Holds the bytes so far of the client, or of the server if it sent first.
    Guessing(Vec<u8>),
    Mysql(Box<Mysql>),
    Postgres(Box<Postgres>),
    Redis(Box<Redis>),
    Memcached(Box<Memcached>),
    Http(Box<Http>),
    Unreadable(UnreadableReason),
}

/// Whether the server will answer the bytes sent so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    /// No complete request will be answered.
    NotDue,
    /// No complete request will be answered, and the next byte begins a request.
    NotDueBetweenRequests,
    Due,
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
    /// The name to use if no request gives one.
    name: Option<&'static str>,
    answer_state: AnswerState,
    phase: Phase,
    rows: Rows,
    failed: bool,
}

/// Turns the bytes of one connection into round trips, and counts its requests.
#[derive(Debug)]
pub struct Conversation {
    opened_ns: u64,
    is_new: bool,
    decoder: Decoder,
    protocol: &'static str,
    open_round_trip: Option<OpenRoundTrip>,
    /// Number of bytes from the server of which it is unknown whether they belong to an answer or to a push.
    undecided_bytes: u64,
    /// How many more round trips inside TLS may be login.
    hidden_logins_left: u32,
    login_round_trips: u32,
    login_ns: u64,
    commands: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
    page_keys: Arc<[String]>,
}

impl Conversation {
    /// A connection without bytes so far. `is_new`: it is seen from its first byte.
    pub fn new(opened_ns: u64, is_new: bool) -> Self {
        Self {
            opened_ns,
            is_new,
            decoder: Decoder::Guessing(Vec::new()),
            protocol: "unknown",
            open_round_trip: None,
            undecided_bytes: 0,
            hidden_logins_left: MAX_HIDDEN_LOGIN_ROUND_TRIPS,
            login_round_trips: 0,
            login_ns: 0,
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
            page_keys: Arc::default(),
        }
    }

    /// Set the query parameters, and the parts of a path (with a leading `/`), that page names keep.
    pub fn set_page_keys(&mut self, page_keys: &Arc<[String]>) {
        self.page_keys = Arc::clone(page_keys);
    }

    pub fn summary(&self) -> Summary {
        Summary {
            protocol: self.protocol,
            tls: matches!(self.decoder, Decoder::Unreadable(reason) if reason == ENCRYPTED),
            login_round_trips: self.login_round_trips,
            login_ns: self.login_ns,
        }
    }

    /// Take the counts since the last call: requests by command, and unknown parts of the traffic by reason.
    pub fn take_counts(&mut self) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
        (
            std::mem::take(&mut self.commands),
            std::mem::take(&mut self.unknown),
        )
    }

    /// Process `bytes`, which came at `at_ns`, followed by `skipped` bytes that were not kept. Returns the round trip that ended before
    /// them, if any.
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
        let round_trip = match &self.open_round_trip {
            Some(open) if open.answered_ns.is_some() => self.finish(),
            _ => None,
        };
        if matches!(self.decoder, Decoder::Unreadable(reason) if reason.is_stream()) {
            return round_trip;
        }
        if self.open_round_trip.is_none() {
            self.begin_round_trip();
        }
        let count = (bytes.len() + skipped) as u64;
        let phase = self.phase(bytes);
        let open = self
            .open_round_trip
            .get_or_insert_with(|| OpenRoundTrip::new(at_ns, phase));
        if open.answer_state == AnswerState::NotDueBetweenRequests {
            open.begun_ns = at_ns;
        }
        open.sent_ns = at_ns;
        open.ended_ns = at_ns;
        open.bytes_to_server += count;
        let mut report = DecoderReport::default();
        let outcome = self.decode_request(bytes, skipped, salt, &mut report);
        let has_unanswered_request = report.requests.iter().any(|request| !request.is_answered);
        self.add_requests(&mut report);
        let is_not_due = |open: &&mut OpenRoundTrip| open.answer_state != AnswerState::Due;
        if let Some(open) = self.open_round_trip.as_mut().filter(is_not_due) {
            // The server will not answer the complete requests: the round trip begins with the bytes after them, in this piece or the next.
            if has_unanswered_request {
                open.begun_ns = at_ns;
            }
            open.answer_state = if report.is_between_messages {
                AnswerState::NotDueBetweenRequests
            } else {
                AnswerState::NotDue
            };
        }
        self.stop_decoding(outcome);
        round_trip
    }

    fn add_requests(&mut self, report: &mut DecoderReport) {
        for request in &report.requests {
            *self.commands.entry(request.command).or_default() += 1;
        }
        if let Some(open) = &mut self.open_round_trip {
            if report.expects_answer || report.requests.iter().any(|request| request.is_answered) {
                open.answer_state = AnswerState::Due;
            }
            open.name = open.name.or(report.name);
            open.requests.append(&mut report.requests);
        }
        self.count_unknown(&std::mem::take(&mut report.unknown));
    }

    fn handle_server_bytes(&mut self, at_ns: u64, bytes: &[u8], skipped: usize, salt: &Salt) {
        if self.open_round_trip.is_none()
            && !self.is_new
            && matches!(self.decoder, Decoder::Guessing(_))
        {
            return self.count_unknown(&["answer to a request before the recording"]);
        }
        let mut report = DecoderReport::default();
        let outcome = self.decode_answer(bytes, skipped, salt, &mut report);
        self.add_requests(&mut report);
        self.stop_decoding(outcome);
        let is_stream = matches!(self.decoder, Decoder::Unreadable(reason) if reason.is_stream());
        let awaits_answer = |open: &OpenRoundTrip| open.answered_ns.is_none();
        if is_stream && !self.open_round_trip.as_ref().is_some_and(awaits_answer) {
            return;
        }
        if report.pushes > 0 {
            *self.unknown.entry("pushed by the server").or_default() += report.pushes;
        }
        let count = (bytes.len() + skipped) as u64 + self.undecided_bytes;
        self.undecided_bytes = report.undecided_bytes;
        let count = count.saturating_sub(report.undecided_bytes + report.pushed_bytes);
        if count == 0 {
            return;
        }
        let opened_ns = self.opened_ns;
        let open = self.open_round_trip.get_or_insert_with(|| OpenRoundTrip {
            requests: vec![Request::new("greeting").with_phase(Phase::Connect)],
            ..OpenRoundTrip::new(opened_ns, Phase::Connect)
        });
        open.answered_ns.get_or_insert(at_ns);
        open.ended_ns = at_ns;
        open.bytes_to_client += count;
        open.failed |= report.failed;
        open.rows = open.rows.combine(report.rows);
    }

    /// End the connection, or its recording. Returns the open round trip if it was answered or needs no answer.
    pub fn close(&mut self) -> Option<RoundTrip> {
        let open = self.open_round_trip.as_ref()?;
        let needs_answer = open.answer_state == AnswerState::Due || open.requests.is_empty();
        if open.answered_ns.is_none() && needs_answer {
            self.count_unknown(&["not answered when the connection or the recording ended"]);
            self.open_round_trip = None;
            return None;
        }
        self.finish()
    }

    fn finish(&mut self) -> Option<RoundTrip> {
        let open = self.open_round_trip.take()?;
        let (opened_ns, is_answered) = (self.opened_ns, open.answered_ns.is_some());
        let reason = match self.decoder {
            Decoder::Unreadable(reason) => Some(reason),
            Decoder::Guessing(_) if self.is_new => Some(NOT_UNDERSTOOD),
            Decoder::Guessing(_) => Some(OPENED_BEFORE_RECORDING),
            _ => None,
        };
        let is_nameless = open.requests.is_empty();
        if let Some(reason) = reason.filter(|_| is_nameless) {
            self.count_unknown(&[reason.0]);
        }
        let mut round_trip = open.into_round_trip(reason.is_some());
        if is_nameless && round_trip.requests > 0 {
            *self.commands.entry(round_trip.command).or_default() += 1;
        }
        let is_operation = round_trip.phase == Phase::Operation;
        if self.hidden_logins_left > 0 && is_operation && self.summary().tls {
            self.hidden_logins_left -= 1;
            round_trip.phase = Phase::Hidden;
            self.count_unknown(&["round trips inside TLS that may be login"]);
        }
        if round_trip.phase == Phase::Connect {
            self.login_round_trips += u32::from(is_answered);
            self.login_ns = round_trip.ended_ns.saturating_sub(opened_ns);
        }
        Some(round_trip)
    }

    fn count_unknown(&mut self, reasons: &[&'static str]) {
        for reason in reasons {
            *self.unknown.entry(reason).or_default() += 1;
        }
    }

    /// Stop decoding if the outcome is an error.
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
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.begin_round_trip(),
            Decoder::Postgres(postgres) => {
                let outcome = postgres.begin_round_trip();
                self.stop_decoding(outcome);
            }
            Decoder::Redis(redis) => redis.begin_round_trip(),
            Decoder::Memcached(memcached) => memcached.begin_round_trip(),
            Decoder::Http(http) => http.begin_round_trip(),
            // If the recording began during the connection, a request may begin here.
            Decoder::Guessing(first_bytes) => first_bytes.clear(),
            Decoder::Unreadable(_) => {}
        }
    }

    fn decode_request(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let buffered;
        let mut bytes = bytes;
        if let Decoder::Guessing(first_bytes) = &mut self.decoder {
            first_bytes.extend_from_slice(bytes);
            match guess_protocol(first_bytes) {
                Guess::Known(decoder) => {
                    buffered = std::mem::take(first_bytes);
                    bytes = &buffered;
                    self.set_decoder(decoder);
                }
                Guess::Lines if skipped == 0 && first_bytes.len() <= MAX_LINE_BYTES => {
                    return Ok(());
                }
                // Of the two protocols, only Memcached sends values of this length after a line.
                Guess::Lines => {
                    buffered = std::mem::take(first_bytes);
                    bytes = &buffered;
                    self.set_decoder(Decoder::Memcached(Box::new(Memcached::new(bytes[0]))));
                }
                Guess::TooShort if first_bytes.len() < MAX_GUESS_BYTES && skipped == 0 => {
                    return Ok(());
                }
                Guess::TooShort | Guess::Unknown if self.is_new => return Err(NOT_UNDERSTOOD),
                Guess::TooShort | Guess::Unknown => {
                    report.expects_answer = true;
                    return Ok(());
                }
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.handle_client_bytes(bytes, skipped, salt, report),
            Decoder::Postgres(postgres) => {
                postgres.handle_client_bytes(bytes, skipped, salt, report)
            }
            Decoder::Redis(redis) => redis.handle_client_bytes(bytes, skipped, salt, report),
            Decoder::Memcached(memcached) => {
                memcached.handle_client_bytes(bytes, skipped, salt, report)
            }
            Decoder::Http(http) => {
                http.handle_client_bytes(bytes, skipped, report);
                report.expects_answer = true;
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Unreadable(_) => {
                report.expects_answer = true;
                Ok(())
            }
        }
    }

    /// Decode with `decoder` from now on.
    fn set_decoder(&mut self, mut decoder: Decoder) {
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
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        if !matches!(guess_protocol(requests), Guess::Lines) {
            return if self.is_new {
                Err(NOT_UNDERSTOOD)
            } else {
                Ok(())
            };
        }
        self.set_decoder(if redis::is_answer(answer) {
            Decoder::Redis(Box::new(Redis::new()))
        } else {
            Decoder::Memcached(Box::new(Memcached::new(requests[0])))
        });
        self.decode_request(requests, 0, salt, report)
    }

    fn decode_answer(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let buffered;
        let mut bytes = bytes;
        let has_request = self
            .open_round_trip
            .as_ref()
            .is_some_and(|open| open.bytes_to_server > 0);
        if let Decoder::Guessing(first_bytes) = &mut self.decoder {
            if has_request {
                let requests = std::mem::take(first_bytes);
                self.guess_by_answer(&requests, bytes, salt, report)?;
            } else {
                first_bytes.extend_from_slice(bytes);
                match mysql::is_greeting(first_bytes) {
                    None if skipped == 0 => return Ok(()),
                    Some(true) => {}
                    _ => return Err(NOT_UNDERSTOOD),
                }
                buffered = std::mem::take(first_bytes);
                bytes = &buffered;
                self.set_decoder(Decoder::Mysql(Box::new(Mysql::new())));
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => return mysql.handle_server_bytes(bytes, skipped, report),
            Decoder::Postgres(postgres) => {
                return postgres.handle_server_bytes(bytes, skipped, report);
            }
            Decoder::Redis(redis) => redis.handle_server_bytes(bytes, skipped, report),
            Decoder::Memcached(memcached) => memcached.handle_server_bytes(bytes, skipped, report),
            Decoder::Http(http) => http.handle_server_bytes(bytes, report),
            Decoder::Guessing(_) | Decoder::Unreadable(_) => {}
        }
        Ok(())
    }
}

/// The protocol that a client's first bytes show.
enum Guess {
    Known(Decoder),
    /// Commands as lines, of Redis or of Memcached: the form of the answer shows which.
    Lines,
    /// There are too few bytes to decide.
    TooShort,
    Unknown,
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
        None => return Guess::TooShort,
        Some(false) => {}
    }
    if postgres::is_start(bytes) == Some(true) {
        return Guess::Known(Decoder::Postgres(Box::new(Postgres::new())));
    }
    match http::is_start(bytes) {
        Some(true) => return Guess::Known(Decoder::Http(Box::default())),
        None => return Guess::TooShort,
        Some(false) => {}
    }
    let is_end = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let Some(end) = bytes.iter().position(is_end) else {
        return Guess::TooShort;
    };
    let word = &bytes[..end];
    if memcached::is_command(word) || redis::is_command(word) {
        Guess::Lines
    } else if bytes.len() >= 8 {
        Guess::Unknown
    } else {
        Guess::TooShort
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
            answer_state: AnswerState::NotDue,
            phase,
            rows: Rows::Uncounted,
            failed: false,
        }
    }

    fn into_round_trip(self, is_unreadable: bool) -> RoundTrip {
        let select = |is_selected: fn(&&Request) -> bool| -> Vec<&Request> {
            self.requests.iter().filter(is_selected).collect()
        };
        // The requests that give the round trip its name, by preference.
        let mut naming_requests = select(|request| request.names_round_trip);
        if naming_requests.is_empty() {
            naming_requests = select(|request| request.is_answered);
        }
        if naming_requests.is_empty()
            && !(self.answer_state == AnswerState::Due && self.name.is_some())
        {
            // The round trip's times are those of the last request.
            naming_requests = self.requests.last().into_iter().collect();
        }
        let default_name = match self.name {
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
                naming_requests.len().max(usize::from(self.name.is_some())) as u32
            },
            command: naming_requests
                .first()
                .map_or(default_name, |request| request.command),
            digest: join_digests(&naming_requests)
                .or_else(|| naming_requests.is_empty().then(|| default_name.to_owned())),
            keys: combine_keys(&naming_requests),
            phase: naming_requests
                .first()
                .map_or(self.phase, |request| request.phase),
            rows: match self.rows {
                Rows::Counted(count) => Some(count),
                Rows::Uncounted | Rows::Missed => None,
            },
            failed: self.failed,
        }
    }
}

/// Join the distinct digests of a flight; None if there are none.
fn join_digests(requests: &[&Request]) -> Option<String> {
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

/// Combine the hashes of all requests into one; None if one is unknown.
fn combine_keys(requests: &[&Request]) -> Option<u64> {
    let (first, rest) = requests.split_first()?;
    rest.iter().try_fold(first.keys?, |hash, request| {
        Some(hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ request.keys?)
    })
}
