//! Decodes Redis's commands, sent as arrays of strings or as lines, and counts the replies.

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
const COMMANDS: &[&str] = &[
    "acl",
    "append",
    "asking",
    "auth",
    "bgrewriteaof",
    "bgsave",
    "bitcount",
    "bitfield",
    "bitfield_ro",
    "bitop",
    "bitpos",
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "client",
    "cluster",
    "command",
    "config",
    "copy",
    "dbsize",
    "debug",
    "decr",
    "decrby",
    "del",
    "discard",
    "dump",
    "echo",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "exec",
    "exists",
    "expire",
    "expireat",
    "expiretime",
    "failover",
    "fcall",
    "fcall_ro",
    "flushall",
    "flushdb",
    "function",
    "geoadd",
    "geodist",
    "geohash",
    "geopos",
    "georadius",
    "georadius_ro",
    "georadiusbymember",
    "georadiusbymember_ro",
    "geosearch",
    "geosearchstore",
    "get",
    "getbit",
    "getdel",
    "getex",
    "getrange",
    "getset",
    "hdel",
    "hello",
    "hexists",
    "hexpire",
    "hexpireat",
    "hget",
    "hgetall",
    "hincrby",
    "hincrbyfloat",
    "hkeys",
    "hlen",
    "hmget",
    "hmset",
    "hpersist",
    "hpexpire",
    "hpttl",
    "hrandfield",
    "hscan",
    "hset",
    "hsetnx",
    "hstrlen",
    "httl",
    "hvals",
    "incr",
    "incrby",
    "incrbyfloat",
    "info",
    "keys",
    "lastsave",
    "latency",
    "lcs",
    "lindex",
    "linsert",
    "llen",
    "lmove",
    "lmpop",
    "lolwut",
    "lpop",
    "lpos",
    "lpush",
    "lpushx",
    "lrange",
    "lrem",
    "lset",
    "ltrim",
    "memory",
    "mget",
    "migrate",
    "module",
    "monitor",
    "move",
    "mset",
    "msetnx",
    "multi",
    "object",
    "persist",
    "pexpire",
    "pexpireat",
    "pexpiretime",
    "pfadd",
    "pfcount",
    "pfdebug",
    "pfmerge",
    "pfselftest",
    "ping",
    "psetex",
    "psubscribe",
    "psync",
    "pttl",
    "publish",
    "pubsub",
    "punsubscribe",
    "quit",
    "randomkey",
    "readonly",
    "readwrite",
    "rename",
    "renamenx",
    "replconf",
    "replicaof",
    "reset",
    "restore",
    "role",
    "rpop",
    "rpoplpush",
    "rpush",
    "rpushx",
    "sadd",
    "save",
    "scan",
    "scard",
    "script",
    "sdiff",
    "sdiffstore",
    "select",
    "set",
    "setbit",
    "setex",
    "setnx",
    "setrange",
    "shutdown",
    "sinter",
    "sintercard",
    "sinterstore",
    "sismember",
    "slaveof",
    "slowlog",
    "smembers",
    "smismember",
    "smove",
    "sort",
    "sort_ro",
    "spop",
    "spublish",
    "srandmember",
    "srem",
    "sscan",
    "ssubscribe",
    "strlen",
    "subscribe",
    "substr",
    "sunion",
    "sunionstore",
    "sunsubscribe",
    "swapdb",
    "sync",
    "time",
    "touch",
    "ttl",
    "type",
    "unlink",
    "unsubscribe",
    "unwatch",
    "wait",
    "waitaof",
    "watch",
    "xack",
    "xadd",
    "xautoclaim",
    "xclaim",
    "xdel",
    "xgroup",
    "xinfo",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xreadgroup",
    "xrevrange",
    "xsetid",
    "xtrim",
    "zadd",
    "zcard",
    "zcount",
    "zdiff",
    "zdiffstore",
    "zincrby",
    "zinter",
    "zintercard",
    "zinterstore",
    "zlexcount",
    "zmpop",
    "zmscore",
    "zpopmax",
    "zpopmin",
    "zrandmember",
    "zrange",
    "zrangebylex",
    "zrangebyscore",
    "zrangestore",
    "zrank",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zremrangebyscore",
    "zrevrange",
    "zrevrangebylex",
    "zrevrangebyscore",
    "zrevrank",
    "zscan",
    "zscore",
    "zunion",
    "zunionstore",
];
/// Commands that belong to connecting.
const LOGIN_COMMANDS: [&str; 5] = ["auth", "hello", "select", "client", "readonly"];
/// Commands that a server answers with one message for each channel.
const SUBSCRIBES: [&str; 6] = [
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
];
/// First words of messages to subscribers.
const MESSAGES: [&str; 3] = ["message", "pmessage", "smessage"];
const MAX_PENDING: usize = 65_536;

#[derive(Debug)]
enum ReadState {
    /// A line that begins a command or an argument.
    Line(Vec<u8>),
    /// Bytes of an argument, including its line end.
    Body { left: usize, length: usize },
}

/// Reads what a client sends.
#[derive(Debug)]
struct Commands {
    read_state: ReadState,
    /// Arguments of the current command that are still to come.
    arguments: usize,
    /// Words of the command so far.
    words: usize,
    /// The command's name; for CLIENT also its arguments, as far as they fit.
    name: Vec<u8>,
    keys: Option<KeyHasher>,
    lost: bool,
}

/// A complete command.
#[derive(Debug)]
struct Command {
    name: &'static str,
    keys: u64,
    words: usize,
}

/// Reads what a server sends.
#[derive(Debug, Default)]
struct Replies {
    scanner: Scanner,
    value_start: ValueStart,
    /// The first byte of the current value.
    first: Option<u8>,
    /// Bytes of the current value, while it is unknown whether they answer a request.
    undecided: u64,
    /// Whether the current value is a push; None while unknown.
    is_push: Option<bool>,
    lost: bool,
}

/// The beginning of a server's value, which shows whether it answers a request.
#[derive(Debug, Default)]
struct ValueStart {
    word: Vec<u8>,
    has_word: bool,
    /// The last number in it; in a confirmation, the number of subscriptions.
    number: i64,
}

/// Values due to a request, or to several in succession.
#[derive(Debug)]
struct ExpectedValues {
    count: usize,
    /// The values confirm subscriptions.
    confirm: bool,
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
    /// Number of subscriptions: to channels and patterns, and to shard channels.
    subscribed: [i64; 2],
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
                self.add(text);
                self.has_word = true;
            }
            Token::Part(text) => self.add(text),
            Token::Close(_) => self.has_word = true,
        }
    }

    fn add(&mut self, text: &[u8]) {
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
                arguments: 0,
                words: 0,
                name: Vec::new(),
                keys: None,
                lost: false,
            },
            replies: Replies::default(),
            expected: VecDeque::new(),
            reply_mode: ReplyMode::On,
            subscribed: [0; 2],
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
        if self.commands.lost || self.replies.lost {
            self.commands.lost = false;
            self.commands.read_state = ReadState::Line(Vec::new());
            self.commands.arguments = 0;
            self.replies = Replies::default();
            self.expected.clear();
        }
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.commands.lost {
            if let Some(command) = self.commands.next(&mut rest, salt)? {
                self.handle_request(&command, out)?;
            }
        }
        if skipped > 0 && !self.commands.lost {
            match &mut self.commands.read_state {
                ReadState::Body { left, .. } if *left > skipped => {
                    *left -= skipped;
                    if let Some(keys) = &mut self.commands.keys {
                        keys.add_number(u64::MAX);
                    }
                }
                _ => {
                    self.commands.lost = true;
                    out.unknown.push(REQUESTS_MISSED);
                }
            }
        }
        out.expects_answer |= self.commands.lost;
        out.is_between_messages = self.commands.is_between_messages();
        Ok(())
    }

    fn handle_request(
        &mut self,
        command: &Command,
        out: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let name = command.name;
        self.is_logged_in |= !LOGIN_COMMANDS.contains(&name);
        self.is_monitoring |= name == "monitor";
        let is_answered = self.is_answered();
        if is_answered {
            let confirm = SUBSCRIBES.contains(&name);
            let count = if confirm {
                (command.words - 1).max(1)
            } else {
                1
            };
            self.expect_answer(ExpectedValues { count, confirm });
        }
        out.requests.push(Request {
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

    /// Whether the current command is answered. CLIENT REPLY ON is, OFF and SKIP are not.
    fn is_answered(&mut self) -> bool {
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

    fn expect_answer(&mut self, one: ExpectedValues) {
        let is_full = self.expected.len() == MAX_PENDING;
        match self.expected.back_mut() {
            Some(last) if !last.confirm && !one.confirm => last.count += one.count,
            _ if is_full => self.replies.lost = true,
            _ => self.expected.push_back(one),
        }
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        out: &mut DecoderReport,
    ) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.replies.lost {
            let before = rest.len();
            let first = *self.replies.first.get_or_insert(rest[0]);
            let (scanner, value_start) = (&mut self.replies.scanner, &mut self.replies.value_start);
            let ended = scanner.next(&mut rest, &mut |token| {
                value_start.handle_token(token);
                Ok(())
            });
            self.replies.undecided += (before - rest.len()) as u64;
            match ended {
                Ok(None) => self.decide_push(first),
                Ok(Some(kind)) => {
                    self.replies.value_start.has_word = true;
                    self.decide_push(first);
                    self.handle_value(kind, out);
                }
                Err(_) => self.replies.lost = true,
            }
            if let Some(is_push) = self.replies.is_push {
                let bytes = std::mem::take(&mut self.replies.undecided);
                out.pushed_bytes += if is_push { bytes } else { 0 };
            }
            if matches!(ended, Ok(Some(_))) {
                (self.replies.value_start, self.replies.first) = (ValueStart::default(), None);
                self.replies.is_push = None;
            }
        }
        if skipped > 0 && !self.replies.lost {
            self.replies.lost = !self.replies.scanner.skip(skipped);
            out.pushed_bytes += if self.replies.is_push == Some(true) && !self.replies.lost {
                skipped as u64
            } else {
                0
            };
        }
        if !self.replies.lost {
            out.undecided_bytes = self.replies.undecided;
        }
    }

    /// Decide whether the current value, which begins with `first`, is a push, as soon as that is known.
    fn decide_push(&mut self, first: u8) {
        let value_start = &self.replies.value_start;
        let confirms = self.expected.front().is_some_and(|one| one.confirm);
        let is_subscribed = confirms || self.subscribed != [0; 2];
        let is_push = match first {
            b'>' if value_start.has_word => Some(!(confirms && value_start.is_one_of(&SUBSCRIBES))),
            b'>' => None,
            _ if self.expected.is_empty() => Some(true),
            b'*' if is_subscribed => value_start
                .has_word
                .then(|| value_start.is_one_of(&MESSAGES)),
            b'+' if self.is_monitoring => value_start
                .has_word
                .then(|| value_start.word.first().is_some_and(u8::is_ascii_digit)),
            _ => Some(false),
        };
        self.replies.is_push = self.replies.is_push.or(is_push);
    }

    /// Process a value that is complete.
    fn handle_value(&mut self, kind: Kind, out: &mut DecoderReport) {
        let value_start = &self.replies.value_start;
        let confirms =
            matches!(kind, Kind::Push | Kind::Array) && value_start.is_one_of(&SUBSCRIBES);
        if confirms {
            let is_shard_channel = value_start
                .word
                .first()
                .is_some_and(|first| b"sS".contains(first))
                && known_name(&["ssubscribe", "sunsubscribe"], &value_start.word) != "other";
            self.subscribed[usize::from(is_shard_channel)] = value_start.number;
        }
        if self.replies.is_push == Some(true) {
            // UNSUBSCRIBE without channels is confirmed once for each channel that was subscribed.
            out.pushes += u64::from(!confirms);
            return;
        }
        if kind == Kind::Simple && value_start.word.eq_ignore_ascii_case(b"RESET") {
            (self.subscribed, self.is_monitoring) = ([0; 2], false);
        }
        let failed = matches!(kind, Kind::Error | Kind::BulkError);
        out.failed |= failed;
        if let Some(first) = self.expected.front_mut() {
            first.count -= if first.confirm && failed {
                first.count
            } else {
                1
            };
            if first.count == 0 {
                self.expected.pop_front();
            }
        }
    }
}

impl Commands {
    fn is_between_messages(&self) -> bool {
        let is_begun = !matches!(&self.read_state, ReadState::Line(line) if line.is_empty());
        self.arguments == 0 && !is_begun && !self.lost
    }

    /// Read on; returns a command when it is complete.
    fn next(&mut self, rest: &mut &[u8], salt: &Salt) -> Result<Option<Command>, UnreadableReason> {
        match &mut self.read_state {
            ReadState::Line(line) => {
                let Some(line) = take_line(rest, line)? else {
                    return Ok(None);
                };
                self.handle_line(&line, salt)
            }
            ReadState::Body { left, length } => {
                let (length, taken) = (*length, (*left).min(rest.len()));
                // Without the line end behind it.
                let of_value = (*left).saturating_sub(2).min(taken);
                *left -= taken;
                let is_complete = *left == 0;
                self.add_piece(&rest[..of_value]);
                *rest = &rest[taken..];
                if !is_complete {
                    return Ok(None);
                }
                if let Some(keys) = &mut self.keys {
                    keys.add_number(length as u64);
                }
                self.words += 1;
                self.arguments -= 1;
                self.read_state = ReadState::Line(Vec::new());
                Ok((self.arguments == 0).then(|| self.finish_command()))
            }
        }
    }

    /// Add a piece of a word: of the name, or of a value, whose bytes are kept only for CLIENT.
    fn add_piece(&mut self, piece: &[u8]) {
        if self.words == 0 || self.is_client() {
            let space = MAX_WORD_BYTES
                .saturating_sub(self.name.len())
                .min(piece.len());
            self.name.extend_from_slice(&piece[..space]);
        }
        if let (Some(keys), true) = (&mut self.keys, self.words > 0) {
            keys.add_piece(piece);
        }
    }

    fn is_client(&self) -> bool {
        self.name
            .get(..6)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"client"))
    }

    fn finish_command(&mut self) -> Command {
        let name = self.name.split(|&byte| byte == b' ').next();
        Command {
            name: known_name(COMMANDS, name.unwrap_or_default()),
            keys: self.keys.take().map_or(0, |keys| keys.finish()),
            words: self.words,
        }
    }

    fn handle_line(
        &mut self,
        line: &[u8],
        salt: &Salt,
    ) -> Result<Option<Command>, UnreadableReason> {
        if self.arguments > 0 {
            let length: usize = line
                .strip_prefix(b"$")
                .and_then(parse_number)
                .ok_or(NOT_UNDERSTOOD)?;
            if self.words > 0 && self.is_client() {
                self.name.push(b' ');
            }
            self.read_state = ReadState::Body {
                left: length.saturating_add(2),
                length,
            };
            return Ok(None);
        }
        self.name.clear();
        self.words = 0;
        self.keys = Some(salt.hasher());
        if let Some(count) = line.strip_prefix(b"*") {
            let count: i64 = parse_number(count).ok_or(NOT_UNDERSTOOD)?;
            self.arguments = usize::try_from(count).unwrap_or(0);
            return Ok(None);
        }
        for word in line.split(u8::is_ascii_whitespace) {
            if word.is_empty() {
                continue;
            }
            if self.words > 0 && self.is_client() {
                self.name.push(b' ');
            }
            self.add_piece(word);
            if let (Some(keys), true) = (&mut self.keys, self.words > 0) {
                keys.add_number(word.len() as u64);
            }
            self.words += 1;
        }
        Ok((self.words > 0).then(|| self.finish_command()))
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

/// Whether a server that answers like this speaks this protocol.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes
        .first()
        .is_some_and(|first| b"+-:$*_#,(!=~%|>".contains(first))
}
