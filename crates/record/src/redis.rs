//! Decodes Redis commands, sent as arrays of strings or as lines, and counts the replies.

use std::collections::VecDeque;

use howfar_wire::redis::{Kind, Scanner, Token};

use crate::frame::{parse_number, take_line};
use crate::salt::{KeyHasher, Salt};
use crate::{
    DecoderReport, NOT_UNDERSTOOD, Phase, REPLICATION_STREAM, REQUESTS_MISSED, Request,
    UnreadableReason, known_name,
};

/// Maximum bytes of a word that are examined.
const MAX_WORD_BYTES: usize = 24;

/// Command names that may be stored; any other is "other".
#[rustfmt::skip]
const COMMANDS: &[&str] = &[
    "acl", "append", "asking", "auth", "bgrewriteaof", "bgsave", "bitcount", "bitfield", "bitfield_ro", "bitop",
    "bitpos", "blmove", "blmpop", "blpop", "brpop", "brpoplpush", "bzmpop", "bzpopmax", "bzpopmin", "client",
    "cluster", "command", "config", "copy", "dbsize", "debug", "decr", "decrby", "del", "discard", "dump", "echo",
    "eval", "eval_ro", "evalsha", "evalsha_ro", "exec", "exists", "expire", "expireat", "expiretime", "failover",
    "fcall", "fcall_ro", "flushall", "flushdb", "function", "geoadd", "geodist", "geohash", "geopos", "georadius",
    "georadius_ro", "georadiusbymember", "georadiusbymember_ro", "geosearch", "geosearchstore", "get", "getbit",
    "getdel", "getex", "getrange", "getset", "hdel", "hello", "hexists", "hexpire", "hexpireat", "hget", "hgetall",
    "hincrby", "hincrbyfloat", "hkeys", "hlen", "hmget", "hmset", "hpersist", "hpexpire", "hpttl", "hrandfield",
    "hscan", "hset", "hsetnx", "hstrlen", "httl", "hvals", "incr", "incrby", "incrbyfloat", "info", "keys", "lastsave",
    "latency", "lcs", "lindex", "linsert", "llen", "lmove", "lmpop", "lolwut", "lpop", "lpos", "lpush", "lpushx",
    "lrange", "lrem", "lset", "ltrim", "memory", "mget", "migrate", "module", "monitor", "move", "mset", "msetnx",
    "multi", "object", "persist", "pexpire", "pexpireat", "pexpiretime", "pfadd", "pfcount", "pfdebug", "pfmerge",
    "pfselftest", "ping", "psetex", "psubscribe", "psync", "pttl", "publish", "pubsub", "punsubscribe", "quit",
    "randomkey", "readonly", "readwrite", "rename", "renamenx", "replconf", "replicaof", "reset", "restore", "role",
    "rpop", "rpoplpush", "rpush", "rpushx", "sadd", "save", "scan", "scard", "script", "sdiff", "sdiffstore", "select",
    "set", "setbit", "setex", "setnx", "setrange", "shutdown", "sinter", "sintercard", "sinterstore", "sismember",
    "slaveof", "slowlog", "smembers", "smismember", "smove", "sort", "sort_ro", "spop", "spublish", "srandmember",
    "srem", "sscan", "ssubscribe", "strlen", "subscribe", "substr", "sunion", "sunionstore", "sunsubscribe", "swapdb",
    "sync", "time", "touch", "ttl", "type", "unlink", "unsubscribe", "unwatch", "wait", "waitaof", "watch", "xack",
    "xadd", "xautoclaim", "xclaim", "xdel", "xgroup", "xinfo", "xlen", "xpending", "xrange", "xread", "xreadgroup",
    "xrevrange", "xsetid", "xtrim", "zadd", "zcard", "zcount", "zdiff", "zdiffstore", "zincrby", "zinter",
    "zintercard", "zinterstore", "zlexcount", "zmpop", "zmscore", "zpopmax", "zpopmin", "zrandmember", "zrange",
    "zrangebylex", "zrangebyscore", "zrangestore", "zrank", "zrem", "zremrangebylex", "zremrangebyrank",
    "zremrangebyscore", "zrevrange", "zrevrangebylex", "zrevrangebyscore", "zrevrank", "zscan", "zscore", "zunion",
    "zunionstore",
];
/// Commands that clients send while connecting.
const LOGIN_COMMANDS: [&str; 5] = ["auth", "hello", "select", "client", "readonly"];
/// Commands that a server answers with one message for each channel.
const SUBSCRIPTION_COMMANDS: [&str; 6] = [
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
];
/// First words of messages to subscribers.
const MESSAGE_WORDS: [&str; 3] = ["message", "pmessage", "smessage"];
const MAX_PENDING: usize = 65_536;

#[derive(Debug)]
enum ReadState {
    /// A line that begins a command or an argument.
    Line(Vec<u8>),
    /// Bytes of an argument, including its line end.
    Body { bytes_left: usize, length: usize },
}

/// Reads a client's commands.
#[derive(Debug)]
struct Commands {
    read_state: ReadState,
    /// Words of the current command that are still to come.
    words_left: usize,
    /// Number of words of the command so far.
    word_count: usize,
    /// The command's name; for CLIENT followed by its arguments, truncated.
    name: Vec<u8>,
    keys: Option<KeyHasher>,
    is_lost: bool,
}

/// A complete command.
#[derive(Debug)]
struct Command {
    name: &'static str,
    keys: u64,
    word_count: usize,
}

/// Reads a server's replies.
#[derive(Debug, Default)]
struct Replies {
    scanner: Scanner,
    value_start: ValueStart,
    /// The first byte of the current value.
    first_byte: Option<u8>,
    /// Bytes of the current value, while it is unknown whether it answers a request.
    undecided_bytes: u64,
    /// Whether the current value is a push; None while unknown.
    is_push: Option<bool>,
    is_lost: bool,
}

/// The beginning of a server's value, which shows whether it answers a request.
#[derive(Debug, Default)]
struct ValueStart {
    word: Vec<u8>,
    has_word: bool,
    /// The value's last number: in a confirmation, the number of subscriptions.
    number: i64,
}

/// Values that answer a request, or several successive requests.
#[derive(Debug)]
struct ExpectedValues {
    count: usize,
    /// The values confirm subscriptions.
    are_confirmations: bool,
}

/// Whether requests are answered, as set by CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyMode {
    On,
    Off,
    /// The next request is not answered.
    Skip,
}

#[derive(Debug)]
pub(crate) struct Redis {
    commands: Commands,
    replies: Replies,
    expected: VecDeque<ExpectedValues>,
    reply_mode: ReplyMode,
    /// Numbers of subscriptions: to channels and patterns, and to shard channels.
    subscriptions: [i64; 2],
    is_monitoring: bool,
    is_logged_in: bool,
}

impl ValueStart {
    fn handle_token(&mut self, token: Token<'_>) {
        match token {
            Token::Open(_, count) => self.has_word |= count == 0,
            Token::Block(..) => {}
            Token::Line(_, text) => {
                self.number = parse_number(text).unwrap_or(self.number);
                self.add_text(text);
                self.has_word = true;
            }
            Token::Part(text) => self.add_text(text),
            Token::Close(_) => self.has_word = true,
        }
    }

    fn add_text(&mut self, text: &[u8]) {
        if !self.has_word {
            let space = MAX_WORD_BYTES
                .saturating_sub(self.word.len())
                .min(text.len());
            self.word.extend_from_slice(&text[..space]);
        }
    }

    fn is_one_of(&self, names: &[&'static str]) -> bool {
        known_name(names, &self.word) != "other"
    }
}

impl Redis {
    pub(crate) fn new() -> Self {
        Self {
            commands: Commands {
                read_state: ReadState::Line(Vec::new()),
                words_left: 0,
                word_count: 0,
                name: Vec::new(),
                keys: None,
                is_lost: false,
            },
            replies: Replies::default(),
            expected: VecDeque::new(),
            reply_mode: ReplyMode::On,
            subscriptions: [0; 2],
            is_monitoring: false,
            is_logged_in: false,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.is_logged_in {
            Phase::Operation
        } else {
            Phase::Connect
        }
    }

    pub(crate) fn begin_round_trip(&mut self) {
        if self.commands.is_lost || self.replies.is_lost {
            self.commands.is_lost = false;
            self.commands.read_state = ReadState::Line(Vec::new());
            self.commands.words_left = 0;
            self.replies = Replies::default();
            self.expected.clear();
        }
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.commands.is_lost {
            if let Some(command) = self.commands.next(&mut rest, salt)? {
                self.handle_request(&command, report)?;
            }
        }
        if skipped > 0 && !self.commands.is_lost {
            match &mut self.commands.read_state {
                ReadState::Body { bytes_left, .. } if *bytes_left > skipped => {
                    *bytes_left -= skipped;
                    // The value's hash must differ from that of the bytes that were kept.
                    if let Some(keys) = &mut self.commands.keys {
                        keys.add_number(u64::MAX);
                    }
                }
                _ => {
                    self.commands.is_lost = true;
                    report.unknown.push(REQUESTS_MISSED);
                }
            }
        }
        report.expects_answer |= self.commands.is_lost;
        report.is_between_messages = self.commands.is_between_messages();
        Ok(())
    }

    fn handle_request(
        &mut self,
        command: &Command,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let name = command.name;
        self.is_logged_in |= !LOGIN_COMMANDS.contains(&name);
        self.is_monitoring |= name == "monitor";
        let is_answered = self.update_reply_mode();
        if is_answered {
            let are_confirmations = SUBSCRIPTION_COMMANDS.contains(&name);
            let count = if are_confirmations {
                (command.word_count - 1).max(1)
            } else {
                1
            };
            self.expect_answer(ExpectedValues {
                count,
                are_confirmations,
            });
        }
        report.requests.push(Request {
            digest: Some(name.to_ascii_uppercase()),
            keys: Some(command.keys),
            phase: self.phase(),
            is_answered,
            ..Request::new(name)
        });
        if matches!(name, "sync" | "psync") {
            return Err(REPLICATION_STREAM);
        }
        Ok(())
    }

    /// Update the reply mode by the current command; returns whether the command is answered. CLIENT REPLY ON is answered, OFF and SKIP
    /// are not.
    fn update_reply_mode(&mut self) -> bool {
        let words = self.commands.name.to_ascii_lowercase();
        match words.strip_prefix(b"client reply ") {
            Some(b"off") => self.reply_mode = ReplyMode::Off,
            Some(b"skip") if self.reply_mode == ReplyMode::On => {
                self.reply_mode = ReplyMode::Skip;
                return false;
            }
            Some(b"on") => self.reply_mode = ReplyMode::On,
            _ => {}
        }
        let is_answered = self.reply_mode == ReplyMode::On;
        if self.reply_mode == ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
        }
        is_answered
    }

    fn expect_answer(&mut self, values: ExpectedValues) {
        let is_full = self.expected.len() == MAX_PENDING;
        match self.expected.back_mut() {
            Some(last) if !last.are_confirmations && !values.are_confirmations => {
                last.count += values.count;
            }
            _ if is_full => self.replies.is_lost = true,
            _ => self.expected.push_back(values),
        }
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        report: &mut DecoderReport,
    ) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.replies.is_lost {
            let old_length = rest.len();
            let first_byte = *self.replies.first_byte.get_or_insert(rest[0]);
            let (scanner, value_start) = (&mut self.replies.scanner, &mut self.replies.value_start);
            let outcome = scanner.next(&mut rest, &mut |token| {
                value_start.handle_token(token);
                Ok(())
            });
            self.replies.undecided_bytes += (old_length - rest.len()) as u64;
            match outcome {
                Ok(None) => self.decide_push(first_byte),
                Ok(Some(kind)) => {
                    self.replies.value_start.has_word = true;
                    self.decide_push(first_byte);
                    self.handle_value(kind, report);
                }
                Err(_) => self.replies.is_lost = true,
            }
            if let Some(is_push) = self.replies.is_push {
                let bytes = std::mem::take(&mut self.replies.undecided_bytes);
                report.pushed_bytes += if is_push { bytes } else { 0 };
            }
            if matches!(outcome, Ok(Some(_))) {
                self.replies.value_start = ValueStart::default();
                (self.replies.first_byte, self.replies.is_push) = (None, None);
            }
        }
        if skipped > 0 && !self.replies.is_lost {
            self.replies.is_lost = !self.replies.scanner.skip(skipped);
            if self.replies.is_push == Some(true) && !self.replies.is_lost {
                report.pushed_bytes += skipped as u64;
            }
        }
        if !self.replies.is_lost {
            report.undecided_bytes = self.replies.undecided_bytes;
        }
    }

    /// Decide whether the current value, which begins with `first_byte`, is a push, as soon as that is known.
    fn decide_push(&mut self, first_byte: u8) {
        let value_start = &self.replies.value_start;
        let expects_confirmation = self
            .expected
            .front()
            .is_some_and(|values| values.are_confirmations);
        let is_subscribed = expects_confirmation || self.subscriptions != [0; 2];
        let is_push = match first_byte {
            b'>' if value_start.has_word => {
                Some(!(expects_confirmation && value_start.is_one_of(&SUBSCRIPTION_COMMANDS)))
            }
            b'>' => None,
            _ if self.expected.is_empty() => Some(true),
            b'*' if is_subscribed => value_start
                .has_word
                .then(|| value_start.is_one_of(&MESSAGE_WORDS)),
            b'+' if self.is_monitoring => value_start
                .has_word
                .then(|| value_start.word.first().is_some_and(u8::is_ascii_digit)),
            _ => Some(false),
        };
        self.replies.is_push = self.replies.is_push.or(is_push);
    }

    /// Process a complete value.
    fn handle_value(&mut self, kind: Kind, report: &mut DecoderReport) {
        let value_start = &self.replies.value_start;
        let is_confirmation = matches!(kind, Kind::Push | Kind::Array)
            && value_start.is_one_of(&SUBSCRIPTION_COMMANDS);
        if is_confirmation {
            let is_shard_channel = value_start.is_one_of(&["ssubscribe", "sunsubscribe"]);
            self.subscriptions[usize::from(is_shard_channel)] = value_start.number;
        }
        if self.replies.is_push == Some(true) {
            // UNSUBSCRIBE without channels is confirmed once for each channel that was subscribed.
            report.pushes += u64::from(!is_confirmation);
            return;
        }
        if kind == Kind::Simple && value_start.word.eq_ignore_ascii_case(b"RESET") {
            (self.subscriptions, self.is_monitoring) = ([0; 2], false);
        }
        let is_error = matches!(kind, Kind::Error | Kind::BulkError);
        report.failed |= is_error;
        if let Some(values) = self.expected.front_mut() {
            values.count -= if values.are_confirmations && is_error {
                values.count
            } else {
                1
            };
            if values.count == 0 {
                self.expected.pop_front();
            }
        }
    }
}

impl Commands {
    fn is_between_messages(&self) -> bool {
        let is_at_line_start = matches!(&self.read_state, ReadState::Line(line) if line.is_empty());
        self.words_left == 0 && is_at_line_start && !self.is_lost
    }

    /// Consume a line or a part of an argument; returns a command if that completes it.
    fn next(&mut self, rest: &mut &[u8], salt: &Salt) -> Result<Option<Command>, UnreadableReason> {
        match &mut self.read_state {
            ReadState::Line(line) => {
                let Some(line) = take_line(rest, line)? else {
                    return Ok(None);
                };
                self.handle_line(&line, salt)
            }
            ReadState::Body { bytes_left, length } => {
                let (length, consumed_bytes) = (*length, (*bytes_left).min(rest.len()));
                // The line end after the value is not part of it.
                let value_bytes = (*bytes_left).saturating_sub(2).min(consumed_bytes);
                *bytes_left -= consumed_bytes;
                let is_complete = *bytes_left == 0;
                self.add_piece(&rest[..value_bytes]);
                *rest = &rest[consumed_bytes..];
                if !is_complete {
                    return Ok(None);
                }
                if let Some(keys) = &mut self.keys {
                    keys.add_number(length as u64);
                }
                self.word_count += 1;
                self.words_left -= 1;
                self.read_state = ReadState::Line(Vec::new());
                Ok((self.words_left == 0).then(|| self.finish_command()))
            }
        }
    }

    /// Add a piece of a word. The command's name is kept; of other words only a hash, except for CLIENT, whose words are kept.
    fn add_piece(&mut self, piece: &[u8]) {
        if self.word_count == 0 || self.is_client_command() {
            let space = MAX_WORD_BYTES
                .saturating_sub(self.name.len())
                .min(piece.len());
            self.name.extend_from_slice(&piece[..space]);
        }
        if let (Some(keys), true) = (&mut self.keys, self.word_count > 0) {
            keys.add_piece(piece);
        }
    }

    fn is_client_command(&self) -> bool {
        self.name
            .get(..6)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"client"))
    }

    fn finish_command(&mut self) -> Command {
        let name = self.name.split(|&byte| byte == b' ').next();
        Command {
            name: known_name(COMMANDS, name.unwrap_or_default()),
            keys: self.keys.take().map_or(0, |keys| keys.finish()),
            word_count: self.word_count,
        }
    }

    fn handle_line(
        &mut self,
        line: &[u8],
        salt: &Salt,
    ) -> Result<Option<Command>, UnreadableReason> {
        if self.words_left > 0 {
            let length: usize = line
                .strip_prefix(b"$")
                .and_then(parse_number)
                .ok_or(NOT_UNDERSTOOD)?;
            if self.word_count > 0 && self.is_client_command() {
                self.name.push(b' ');
            }
            self.read_state = ReadState::Body {
                bytes_left: length.saturating_add(2),
                length,
            };
            return Ok(None);
        }
        self.name.clear();
        self.word_count = 0;
        self.keys = Some(salt.hasher());
        if let Some(count) = line.strip_prefix(b"*") {
            let count: i64 = parse_number(count).ok_or(NOT_UNDERSTOOD)?;
            self.words_left = usize::try_from(count).unwrap_or(0);
            return Ok(None);
        }
        for word in line.split(u8::is_ascii_whitespace) {
            if word.is_empty() {
                continue;
            }
            if self.word_count > 0 && self.is_client_command() {
                self.name.push(b' ');
            }
            self.add_piece(word);
            if let (Some(keys), true) = (&mut self.keys, self.word_count > 0) {
                keys.add_number(word.len() as u64);
            }
            self.word_count += 1;
        }
        Ok((self.word_count > 0).then(|| self.finish_command()))
    }
}

/// Whether the bytes of a client begin with a command as an array; None if there are too few.
pub(crate) fn is_start(bytes: &[u8]) -> Option<bool> {
    let Some(digits) = bytes.strip_prefix(b"*") else {
        return Some(false);
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    match digits.get(count) {
        None if count <= 10 => None,
        end => Some(count > 0 && end == Some(&b'\r')),
    }
}

/// Whether a client's first word is a command, in upper or lower case.
pub(crate) fn is_command(word: &[u8]) -> bool {
    known_name(COMMANDS, word) != "other"
}

/// Whether an answer of this protocol begins with these bytes.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes
        .first()
        .is_some_and(|first| b"+-:$*_#,(!=~%|>".contains(first))
}
