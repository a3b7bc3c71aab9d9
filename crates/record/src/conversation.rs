//! One connection: pieces of bytes with their times in, round trips out.
//!
//! A round trip is a run of bytes to the server and the run that comes back. That needs no decoder; the decoders add what it was.

use std::collections::BTreeMap;

use crate::http::{self, Http};
use crate::memcached::{self, Memcached};
use crate::mysql::{self, Mysql};
use crate::postgres::{self, Postgres};
use crate::redis::{self, Redis};
use crate::salt::Salt;
use crate::{Dark, ENCRYPTED, Heard, NOT_UNDERSTOOD, Phase, Request};

/// Bytes of a client by which its protocol is recognised.
const GUESSED_BY: usize = 64;
/// Digests that one flight of requests shows.
const MOST_DIGESTS: usize = 4;
const HANDSHAKE: u8 = 0x16;
const CHANGE_CIPHER: u8 = 0x14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// A run of bytes to the server, and the run that answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundTrip {
    /// The first byte of the request.
    pub begun_ns: u64,
    /// The last byte of the request.
    pub sent_ns: u64,
    /// The first byte of the answer; without one, the same as the next before.
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

/// What a connection was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub protocol: &'static str,
    pub tls: bool,
    pub login_round_trips: u32,
    /// From its opening to the end of the last of them.
    pub login_ns: u64,
}

#[derive(Debug)]
enum Decoder {
    /// Nothing has been recognised yet.
    Guessing(Vec<u8>),
    Mysql(Box<Mysql>),
    Postgres(Box<Postgres>),
    Redis(Box<Redis>),
    Memcached(Box<Memcached>),
    Http(Box<Http>),
    Dark(Dark),
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
    phase: Phase,
    rows: Option<u64>,
    failed: bool,
}

/// The state of a connection, and what was counted.
#[derive(Debug)]
pub struct Conversation {
    opened_ns: u64,
    is_new: bool,
    decoder: Decoder,
    protocol: &'static str,
    open: Option<Open>,
    login_round_trips: u32,
    login_ns: u64,
    commands: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
}

impl Conversation {
    /// `is_new`: its first byte will be seen.
    pub fn new(opened_ns: u64, is_new: bool) -> Self {
        Self {
            opened_ns,
            is_new,
            decoder: Decoder::Guessing(Vec::new()),
            protocol: "unknown",
            open: None,
            login_round_trips: 0,
            login_ns: 0,
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
        }
    }

    pub fn summary(&self) -> Summary {
        Summary {
            protocol: self.protocol,
            tls: matches!(self.decoder, Decoder::Dark(dark) if dark == ENCRYPTED),
            login_round_trips: self.login_round_trips,
            login_ns: self.login_ns,
        }
    }

    /// Every request that was decoded, by command, and what is not known, by reason, since the last call.
    pub fn take_counts(&mut self) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
        (
            std::mem::take(&mut self.commands),
            std::mem::take(&mut self.unknown),
        )
    }

    /// `bytes` came at `at_ns`, followed by `skipped` bytes that were not kept. Gives the round trip that they end.
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
            Direction::ToClient => self.server_said(at_ns, bytes, skipped),
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
        if self.open.is_none() {
            self.turn();
        }
        let count = (bytes.len() + skipped) as u64;
        let phase = self.phase(bytes);
        let open = self.open.get_or_insert_with(|| Open::new(at_ns, phase));
        open.sent_ns = at_ns;
        open.ended_ns = at_ns;
        open.bytes_to_server += count;
        let mut out = Heard::default();
        let outcome = self.decode_request(bytes, skipped, salt, &mut out);
        for request in &out.requests {
            *self.commands.entry(request.command).or_default() += 1;
        }
        if let Some(open) = &mut self.open {
            open.requests.append(&mut out.requests);
        }
        self.count_unknown(&out.unknown);
        self.darken(outcome);
        ended
    }

    fn server_said(&mut self, at_ns: u64, bytes: &[u8], skipped: usize) -> Option<RoundTrip> {
        let count = (bytes.len() + skipped) as u64;
        let idle = match &self.decoder {
            Decoder::Postgres(postgres) => postgres.is_idle(),
            Decoder::Redis(redis) => redis.is_idle(),
            _ => false,
        };
        let mut out = Heard::default();
        let outcome = self.decode_answer(bytes, skipped, &mut out);
        self.darken(outcome);
        if idle {
            // Nobody asked: no round trip waits for it.
            self.count_unknown(&["pushed by the server"]);
            return None;
        }
        let is_first = self.open.is_none();
        let opened_ns = self.opened_ns;
        let open = self.open.get_or_insert_with(|| Open {
            requests: vec![Request::new("greeting").in_phase(Phase::Connect)],
            ..Open::new(opened_ns, Phase::Connect)
        });
        if is_first && open.bytes_to_server == 0 && !self.is_new {
            open.begun_ns = at_ns;
            open.sent_ns = at_ns;
        }
        open.answered_ns.get_or_insert(at_ns);
        open.ended_ns = at_ns;
        open.bytes_to_client += count;
        open.failed |= out.failed;
        if out.counts_rows {
            *open.rows.get_or_insert(0) += out.rows;
        } else if let Some(rows) = &mut open.rows {
            *rows += out.rows;
        }
        None
    }

    /// The connection has ended, or the recording has: the round trip that was on its way, if it was answered or needs no answer.
    pub fn close(&mut self) -> Option<RoundTrip> {
        let open = self.open.as_ref()?;
        let needs_answer =
            open.requests.is_empty() || open.requests.iter().any(|request| request.leads);
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
        let is_dark = matches!(self.decoder, Decoder::Dark(_) | Decoder::Guessing(_));
        if let Decoder::Dark(dark) = self.decoder {
            if open.requests.is_empty() {
                self.count_unknown(&[dark.0]);
            }
        }
        let ended = open.into_round_trip(is_dark);
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
            Decoder::Guessing(_) | Decoder::Dark(_) => Ok(()),
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
        let (guessed, kept);
        let mut bytes = bytes;
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            if !so_far.is_empty() {
                so_far.extend_from_slice(bytes);
                kept = std::mem::take(so_far);
                bytes = &kept;
            }
            guessed = guess(bytes);
            match guessed {
                Some(decoder) => {
                    self.decoder = decoder;
                    self.protocol = self.decoder.name();
                }
                None if bytes.len() < GUESSED_BY && skipped == 0 => {
                    self.decoder = Decoder::Guessing(bytes.to_vec());
                    return Ok(());
                }
                None => return Err(self.not_recognised()),
            }
        }
        match &mut self.decoder {
            Decoder::Mysql(mysql) => mysql.client_said(bytes, skipped, salt, out),
            Decoder::Postgres(postgres) => postgres.client_said(bytes, skipped, salt, out),
            Decoder::Redis(redis) => redis.client_said(bytes, skipped, salt, out),
            Decoder::Memcached(memcached) => memcached.client_said(bytes, skipped, salt, out),
            Decoder::Http(http) => {
                http.client_said(bytes, skipped, out);
                Ok(())
            }
            Decoder::Guessing(_) | Decoder::Dark(_) => Ok(()),
        }
    }

    fn decode_answer(&mut self, bytes: &[u8], skipped: usize, out: &mut Heard) -> Result<(), Dark> {
        let greeting;
        let mut bytes = bytes;
        if let Decoder::Guessing(so_far) = &mut self.decoder {
            if self
                .open
                .as_ref()
                .is_some_and(|open| open.bytes_to_server > 0)
                || !self.is_new
            {
                return Err(self.not_recognised());
            }
            so_far.extend_from_slice(bytes);
            match mysql::is_greeting(so_far) {
                None if skipped == 0 => return Ok(()),
                Some(true) => {}
                _ => return Err(NOT_UNDERSTOOD),
            }
            greeting = std::mem::take(so_far);
            bytes = &greeting;
            self.decoder = Decoder::Mysql(Box::new(Mysql::new()));
            self.protocol = "mysql";
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
            Dark("connection opened before the recording")
        }
    }
}

/// What the first bytes of a client say; None when there are too few.
fn guess(bytes: &[u8]) -> Option<Decoder> {
    if matches!(bytes, [HANDSHAKE, 3, ..]) {
        return Some(Decoder::Dark(ENCRYPTED));
    }
    if redis::begins(bytes) {
        return Some(Decoder::Redis(Box::new(Redis::new())));
    }
    if let Some(true) = postgres::begins(bytes) {
        return Some(Decoder::Postgres(Box::new(Postgres::new())));
    }
    match http::begins(bytes) {
        Some(true) => return Some(Decoder::Http(Box::default())),
        // Memcached's commands are in small letters.
        None => return None,
        Some(false) => {}
    }
    match memcached::begins(bytes) {
        Some(true) => Some(Decoder::Memcached(Box::new(Memcached::new(bytes[0])))),
        Some(false) if bytes.len() >= 8 => Some(Decoder::Dark(NOT_UNDERSTOOD)),
        _ => None,
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
            phase,
            rows: None,
            failed: false,
        }
    }

    fn into_round_trip(self, is_blind: bool) -> RoundTrip {
        let leading: Vec<&Request> = self
            .requests
            .iter()
            .filter(|request| request.leads)
            .collect();
        let named: Vec<&Request> = if leading.is_empty() {
            self.requests.iter().collect()
        } else {
            leading
        };
        let nameless = if is_blind { "blind" } else { "data" };
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
                named.len() as u32
            },
            command: named.first().map_or(nameless, |request| request.command),
            digest: join(&named).or_else(|| named.is_empty().then(|| nameless.to_owned())),
            keys: combine(&named),
            phase: named.first().map_or(self.phase, |request| request.phase),
            rows: self.rows,
            failed: self.failed,
        }
    }
}

/// The digests of a flight, each once.
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

/// One hash for all; None where one is not known.
fn combine(requests: &[&Request]) -> Option<u64> {
    let (first, rest) = requests.split_first()?;
    rest.iter().try_fold(first.keys?, |sum, request| {
        Some(sum.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ request.keys?)
    })
}
