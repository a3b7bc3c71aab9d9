//! One connection: pieces of bytes with their times in, round trips out.
//!
//! A round trip is a run of bytes to the server and the run that comes back. Finding it needs no decoder; the decoders identify its
//! requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::frame::LONGEST_LINE;
use crate::http::{self, Http};
use crate::memcached::{self, Memcached};
use crate::mysql::{self, Mysql};
use crate::postgres::{self, Postgres};
use crate::redis::{self, Redis};
use crate::salt::Salt;
use crate::{Dark, ENCRYPTED, Heard, IN_THE_MIDDLE, NOT_UNDERSTOOD, Phase, Request, Rows};

/// Maximum number of a client's first bytes that are used to recognise its protocol.
const GUESSED_BY: usize = 64;
/// Maximum number of digests shown for one flight of pipelined requests.
const MOST_DIGESTS: usize = 4;
const HANDSHAKE: u8 = 0x16;
const CHANGE_CIPHER: u8 = 0x14;
/// Round trips of the longest usual login, PostgreSQL's with SCRAM: inside TLS, this many may be login.
const MOST_HIDDEN: u32 = 3;

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
    Dark(Dark),
}

/// Whether what was sent will be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    /// No complete request will be answered.
    Nothing,
    /// As `Nothing`, and the next byte begins a request.
    NextRequest,
    Answer,
}

#[derive(Debug)]
struct Open {
    begun_ns: u64,
    sent_ns: u64,
    answered_ns: Option<u64>,
    ended_ns: u64,
    bytes_to_server: u64,
    bytes_to_client: u64,
    requests: Vec<Request>,
    /// A name, used if no request gives one.
    name: Option<&'static str>,
    awaits: Awaits,
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
    open: Option<Open>,
    /// Bytes of the server that may belong to an answer or to a push.
    undecided_bytes: u64,
    /// How many of the next round trips inside TLS may still be login.
    hidden: u32,
    login_round_trips: u32,
    login_ns: u64,
    commands: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
    page_by: Arc<[String]>,
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
            hidden: MOST_HIDDEN,
            login_round_trips: 0,
            login_ns: 0,
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
            page_by: Arc::default(),
        }
    }

    /// Set which query parameters, and which parts of a path (given with a leading `/`), page names keep.
    pub fn name_pages_by(&mut self, kept: &Arc<[String]>) {
        self.page_by = Arc::clone(kept);
    }

    pub fn summary(&self) -> Summary {
        Summary {
            protocol: self.protocol,
            tls: matches!(self.decoder, Decoder::Dark(dark) if dark == ENCRYPTED),
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
            Direction::ToServer => self.client_said(at_ns, bytes, skipped, salt),
            Direction::ToClient => {
                self.server_said(at_ns, bytes, skipped, salt);
                None
            }
        }
    }

    fn client_said(
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
        if matches!(self.decoder, Decoder::Dark(dark) if dark.is_stream()) {
            return ended;
        }
        if self.open.is_none() {
            self.turn();
        }
        let count = (bytes.len() + skipped) as u64;
        let phase = self.phase(bytes);
        let open = self.open.get_or_insert_with(|| Open::new(at_ns, phase));
        if open.awaits == Awaits::NextRequest {
            open.begun_ns = at_ns;
        }
        open.sent_ns = at_ns;
        open.ended_ns = at_ns;
        open.bytes_to_server += count;
        let mut out = Heard::default();
        let outcome = self.decode_request(bytes, skipped, salt, &mut out);
        let is_unanswered = out.requests.iter().any(|request| !request.is_answered);
        self.add_requests(&mut out);
        let unanswered = |open: &&mut Open| open.awaits != Awaits::Answer;
        if let Some(open) = self.open.as_mut().filter(unanswered) {
            // The complete requests will not be answered: what follows them, in this piece or the next, begins the round trip.
            if is_unanswered {
                open.begun_ns = at_ns;
            }
            open.awaits = if out.is_between {
                Awaits::NextRequest
            } else {
                Awaits::Nothing
            };
        }
        self.darken(outcome);
        ended
    }

    fn add_requests(&mut self, out: &mut Heard) {
        for request in &out.requests {
            *self.commands.entry(request.command).or_default() += 1;
        }
        if let Some(open) = &mut self.open {
            if out.awaits || out.requests.iter().any(|request| request.is_answered) {
                open.awaits = Awaits::Answer;
            }
            open.name = open.name.or(out.name);
            open.requests.append(&mut out.requests);
        }
        self.count_unknown(&std::mem::take(&mut out.unknown));
    }

    fn server_said(&mut self, at_ns: u64, bytes: &[u8], skipped: usize, salt: &Salt) {
        if self.open.is_none() && !self.is_new && matches!(self.decoder, Decoder::Guessing(_)) {
            return self.count_unknown(&["answer to a request before the recording"]);
        }
        let mut out = Heard::default();
        let outcome = self.decode_answer(bytes, skipped, salt, &mut out);
        self.add_requests(&mut out);
        self.darken(outcome);
        let is_stream = matches!(self.decoder, Decoder::Dark(dark) if dark.is_stream());
        let is_awaited = |open: &Open| open.answered_ns.is_none();
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
        let open = self.open.get_or_insert_with(|| Open {
            requests: vec![Request::new("greeting").in_phase(Phase::Connect)],
            ..Open::new(opened_ns, Phase::Connect)
        });
        open.answered_ns.get_or_insert(at_ns);
        open.ended_ns = at_ns;
        open.bytes_to_client += count;
        open.failed |= out.failed;
        open.rows = open.rows.and(out.rows);
    }

    /// End the connection, or its recording. Returns the round trip in progress, if it was answered or needs no answer.
    pub fn close(&mut self) -> Option<RoundTrip> {
        let open = self.open.as_ref()?;
        let needs_answer = open.awaits == Awaits::Answer || open.requests.is_empty();
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
        let dark = match self.decoder {
            Decoder::Dark(dark) => Some(dark),
            Decoder::Guessing(_) => Some(self.not_recognised()),
            _ => None,
        };
        if let Some(dark) = dark.filter(|_| open.requests.is_empty()) {
            self.count_unknown(&[dark.0]);
        }
        let is_nameless = open.requests.is_empty();
        let mut ended = open.into_round_trip(dark.is_some());
        if is_nameless && ended.requests > 0 {
            *self.commands.entry(ended.command).or_default() += 1;
        }
        if self.hidden > 0 && ended.phase == Phase::Operation && self.summary().tls {
            self.hidden -= 1;
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

    fn darken(&mut self, outcome: Result<(), Dark>) {
        if let Err(dark) = outcome {
            if dark.is_stream() {
                self.count_unknown(&[dark.0]);
            }
            self.decoder = Decoder::Dark(dark);
        }
    }

    fn phase(&self, bytes: &[u8]) -> Phase {
        match &self.decoder {
            Decoder::Mysql(mysql) => mysql.phase(),
            Decoder::Postgres(postgres) => postgres.phase(),
            Decoder::Redis(redis) => redis.phase(),
            Decoder::Memcached(_) | Decoder::Http(_) => Phase::Operation,
            Decoder::Guessing(_) if bytes.first() == Some(&0) => Phase::Connect,
            Decoder::Guessing(_) | Decoder::Dark(_) => match bytes.first() {
                Some(&(HANDSHAKE | CHANGE_CIPHER)) => Phase::Connect,
                _ => Phase::Operation,
            },
        }
    }

    fn turn(&mut self) {
        let outcome = match &mut self.decoder {
            Decoder::Mysql(mysql) => {
                mysql.turn();
                Ok(())
            }
            Decoder::Postgres(postgres) => postgres.turn(),
            Decoder::Redis(redis) => {
                redis.turn();
                Ok(())
            }
            Decoder::Memcached(memcached) => {
                memcached.turn();
                Ok(())
            }
            Decoder::Http(http) => {
                http.turn();
                Ok(())
            }
            // If the recording began in mid-connection, a request may begin here.
            Decoder::Guessing(so_far) => {
                so_far.clear();
                Ok(())
            }
            Decoder::Dark(_) => Ok(()),
        };
        self.darken(outcome);
    }

    fn decode_request(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        out: &mut Heard,
    ) -> Result<(), Dark> {
        let kept;
        let mut bytes = bytes;
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            so_far.extend_from_slice(bytes);
            match guess(so_far) {
                Guess::Known(decoder) => {
                    kept = std::mem::take(so_far);
                    bytes = &kept;
                    self.recognise(decoder);
                }
                Guess::Lines if skipped == 0 && so_far.len() <= LONGEST_LINE => return Ok(()),
                // Of the two, only Memcached has values of this length besides its lines.
                Guess::Lines => {
                    kept = std::mem::take(so_far);
                    bytes = &kept;
                    self.recognise(Decoder::Memcached(Box::new(Memcached::new(bytes[0]))));
                }
                Guess::More if so_far.len() < GUESSED_BY && skipped == 0 => return Ok(()),
                Guess::More | Guess::Nothing if self.is_new => return Err(NOT_UNDERSTOOD),
                Guess::More | Guess::Nothing => {
                    out.awaits = true;
                    return Ok(());
                }
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.client_said(bytes, skipped, salt, out),
            Decoder::Postgres(postgres) => postgres.client_said(bytes, skipped, salt, out),
            Decoder::Redis(redis) => redis.client_said(bytes, skipped, salt, out),
            Decoder::Memcached(memcached) => memcached.client_said(bytes, skipped, salt, out),
            Decoder::Http(http) => {
                http.client_said(bytes, skipped, out);
                out.awaits = true;
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Dark(_) => {
                out.awaits = true;
                Ok(())
            }
        }
    }

    fn recognise(&mut self, mut decoder: Decoder) {
        self.protocol = decoder.name();
        if let Decoder::Http(http) = &mut decoder {
            http.page_by = Arc::clone(&self.page_by);
        }
        self.decoder = decoder;
    }

    /// Recognise the protocol by the answer to the first requests.
    fn guess_by_answer(
        &mut self,
        requests: &[u8],
        answer: &[u8],
        salt: &Salt,
        out: &mut Heard,
    ) -> Result<(), Dark> {
        if !matches!(guess(requests), Guess::Lines) {
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
        out: &mut Heard,
    ) -> Result<(), Dark> {
        let greeting;
        let mut bytes = bytes;
        let is_asked = self
            .open
            .as_ref()
            .is_some_and(|open| open.bytes_to_server > 0);
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            if is_asked {
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
            Decoder::Mysql(mysql) => mysql.server_said(bytes, skipped, out),
            Decoder::Postgres(postgres) => postgres.server_said(bytes, skipped, out),
            Decoder::Redis(redis) => {
                redis.server_said(bytes, skipped, out);
                Ok(())
            }
            Decoder::Memcached(memcached) => {
                memcached.server_said(bytes, skipped, out);
                Ok(())
            }
            Decoder::Http(http) => {
                http.server_said(bytes, out);
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Dark(_) => Ok(()),
        }
    }

    fn not_recognised(&self) -> Dark {
        if self.is_new {
            NOT_UNDERSTOOD
        } else {
            IN_THE_MIDDLE
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

fn guess(bytes: &[u8]) -> Guess {
    if matches!(bytes, [HANDSHAKE, 3, 1..=4, ..]) {
        return Guess::Known(Decoder::Dark(ENCRYPTED));
    }
    if memcached::begins_binary(bytes) {
        return Guess::Known(Decoder::Memcached(Box::new(Memcached::new(bytes[0]))));
    }
    match redis::begins(bytes) {
        Some(true) => return Guess::Known(Decoder::Redis(Box::new(Redis::new()))),
        None => return Guess::More,
        Some(false) => {}
    }
    if postgres::begins(bytes) == Some(true) {
        return Guess::Known(Decoder::Postgres(Box::new(Postgres::new())));
    }
    match http::begins(bytes) {
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
            Self::Guessing(_) | Self::Dark(_) => "unknown",
        }
    }
}

impl Open {
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
            awaits: Awaits::Nothing,
            phase,
            rows: Rows::Uncounted,
            failed: false,
        }
    }

    fn into_round_trip(self, is_blind: bool) -> RoundTrip {
        let of = |is_named: fn(&Request) -> bool| -> Vec<&Request> {
            self.requests.iter().filter(|one| is_named(one)).collect()
        };
        let mut named = of(|one| one.leads);
        if named.is_empty() {
            named = of(|one| one.is_answered);
        }
        if named.is_empty() && !(self.awaits == Awaits::Answer && self.name.is_some()) {
            // Its times are those of the last request.
            named = self.requests.last().into_iter().collect();
        }
        let nameless = match self.name {
            Some(name) => name,
            None if is_blind => "blind",
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
            if distinct.len() == MOST_DIGESTS {
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
