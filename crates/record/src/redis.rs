//! Decodes Redis's commands, sent as arrays of strings or as lines, and counts the replies.

use std::collections::VecDeque;

use howfar_wire::redis::{Kind, Scanner, Token};

use crate::frame::{number, take_line};
use crate::salt::{Keys, Salt};
use crate::{Dark, Heard, NOT_UNDERSTOOD, Phase, REPLICATION, REQUESTS_MISSED, Request, known};

/// Maximum bytes of a word that are examined.
const NAME: usize = 24;

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
const OPENING: [&str; 5] = ["auth", "hello", "select", "client", "readonly"];
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
const MOST_PENDING: usize = 65_536;

#[derive(Debug)]
enum Reading {
    /// A line that begins a command or an argument.
    Line(Vec<u8>),
    /// Bytes of an argument, including its line end.
    Body { left: usize, of: usize },
}

/// Reads what a client sends.
#[derive(Debug)]
struct Commands {
    reading: Reading,
    /// Arguments of the current command that are still to come.
    arguments: usize,
    /// Words of the command so far.
    words: usize,
    /// The command's name; for CLIENT also its arguments, as far as they fit.
    name: Vec<u8>,
    keys: Option<Keys>,
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
    top: Top,
    /// The first byte of the current value.
    first: Option<u8>,
    /// Bytes of the current value, while it is unknown whether they answer a request.
    undecided: u64,
    /// Whether the current value is a push; None while unknown.
    is_own: Option<bool>,
    lost: bool,
}

/// The beginning of a server's value, which shows whether it answers a request.
#[derive(Debug, Default)]
struct Top {
    word: Vec<u8>,
    has_word: bool,
    /// The last number in it; in a confirmation, the number of subscriptions.
    number: i64,
}

/// Values due to a request, or to several in succession.
#[derive(Debug)]
struct Awaited {
    count: usize,
    /// The values confirm subscriptions.
    confirm: bool,
}

/// Whether requests are answered, as set by CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    On,
    Off,
    /// The next request is not answered.
    Skip,
}

#[derive(Debug)]
pub(crate) struct Redis {
    commands: Commands,
    replies: Replies,
    awaited: VecDeque<Awaited>,
    answers: Answers,
    /// Number of subscriptions: to channels and patterns, and to shard channels.
    subscribed: [i64; 2],
    monitors: bool,
    opened: bool,
}

impl Top {
    fn see(&mut self, token: Token<'_>) {
        match token {
            Token::Open(_, count) => self.has_word |= count == 0,
            Token::Block(..) => {}
            Token::Line(_, text) => {
                self.number = number(text).unwrap_or(self.number);
                self.add(text);
                self.has_word = true;
            }
            Token::Part(text) => self.add(text),
            Token::Close(_) => self.has_word = true,
        }
    }

    fn add(&mut self, text: &[u8]) {
        if !self.has_word {
            let room = NAME.saturating_sub(self.word.len()).min(text.len());
            self.word.extend_from_slice(&text[..room]);
        }
    }

    fn is_one_of(&self, names: &[&'static str]) -> bool {
        known(names, &self.word) != "other"
    }
}

impl Redis {
    pub(crate) fn new() -> Self {
        Self {
            commands: Commands {
                reading: Reading::Line(Vec::new()),
                arguments: 0,
                words: 0,
                name: Vec::new(),
                keys: None,
                lost: false,
            },
            replies: Replies::default(),
            awaited: VecDeque::new(),
            answers: Answers::On,
            subscribed: [0; 2],
            monitors: false,
            opened: false,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.opened {
            Phase::Operation
        } else {
            Phase::Connect
        }
    }

    pub(crate) fn turn(&mut self) {
        if self.commands.lost || self.replies.lost {
            self.commands.lost = false;
            self.commands.reading = Reading::Line(Vec::new());
            self.commands.arguments = 0;
            self.replies = Replies::default();
            self.awaited.clear();
        }
    }

    pub(crate) fn client_said(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        out: &mut Heard,
    ) -> Result<(), Dark> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.commands.lost {
            if let Some(command) = self.commands.next(&mut rest, salt)? {
                self.request(&command, out)?;
            }
        }
        if skipped > 0 && !self.commands.lost {
            match &mut self.commands.reading {
                Reading::Body { left, .. } if *left > skipped => {
                    *left -= skipped;
                    if let Some(keys) = &mut self.commands.keys {
                        keys.mark(u64::MAX);
                    }
                }
                _ => {
                    self.commands.lost = true;
                    out.unknown.push(REQUESTS_MISSED);
                }
            }
        }
        out.awaits |= self.commands.lost;
        out.is_between = self.commands.is_between();
        Ok(())
    }

    fn request(&mut self, command: &Command, out: &mut Heard) -> Result<(), Dark> {
        let name = command.name;
        self.opened |= !OPENING.contains(&name);
        self.monitors |= name == "monitor";
        let is_answered = self.is_answered();
        if is_answered {
            let confirm = SUBSCRIBES.contains(&name);
            let count = if confirm {
                (command.words - 1).max(1)
            } else {
                1
            };
            self.wait_for(Awaited { count, confirm });
        }
        out.requests.push(Request {
            digest: Some(name.to_ascii_uppercase()),
            keys: Some(command.keys),
            phase: self.phase(),
            is_answered,
            ..Request::new(name)
        });
        if matches!(name, "sync" | "psync") {
            return Err(REPLICATION);
        }
        Ok(())
    }

    /// Whether the current command is answered. CLIENT REPLY ON is, OFF and SKIP are not.
    fn is_answered(&mut self) -> bool {
        let said = self.commands.name.to_ascii_lowercase();
        match said.strip_prefix(b"client reply ") {
            Some(b"off") => self.answers = Answers::Off,
            Some(b"skip") if self.answers == Answers::On => {
                self.answers = Answers::Skip;
                return false;
            }
            Some(b"on") => self.answers = Answers::On,
            _ => {}
        }
        let is_answered = self.answers == Answers::On;
        if self.answers == Answers::Skip {
            self.answers = Answers::On;
        }
        is_answered
    }

    fn wait_for(&mut self, one: Awaited) {
        let is_full = self.awaited.len() == MOST_PENDING;
        match self.awaited.back_mut() {
            Some(last) if !last.confirm && !one.confirm => last.count += one.count,
            _ if is_full => self.replies.lost = true,
            _ => self.awaited.push_back(one),
        }
    }

    pub(crate) fn server_said(&mut self, bytes: &[u8], skipped: usize, out: &mut Heard) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.replies.lost {
            let before = rest.len();
            let first = *self.replies.first.get_or_insert(rest[0]);
            let (scanner, top) = (&mut self.replies.scanner, &mut self.replies.top);
            let ended = scanner.next(&mut rest, &mut |token| {
                top.see(token);
                Ok(())
            });
            self.replies.undecided += (before - rest.len()) as u64;
            match ended {
                Ok(None) => self.decide(first),
                Ok(Some(kind)) => {
                    self.replies.top.has_word = true;
                    self.decide(first);
                    self.value(kind, out);
                }
                Err(_) => self.replies.lost = true,
            }
            if let Some(is_own) = self.replies.is_own {
                let bytes = std::mem::take(&mut self.replies.undecided);
                out.pushed_bytes += if is_own { bytes } else { 0 };
            }
            if matches!(ended, Ok(Some(_))) {
                (self.replies.top, self.replies.first) = (Top::default(), None);
                self.replies.is_own = None;
            }
        }
        if skipped > 0 && !self.replies.lost {
            self.replies.lost = !self.replies.scanner.skip(skipped);
            out.pushed_bytes += if self.replies.is_own == Some(true) && !self.replies.lost {
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
    fn decide(&mut self, first: u8) {
        let top = &self.replies.top;
        let confirms = self.awaited.front().is_some_and(|one| one.confirm);
        let listens = confirms || self.subscribed != [0; 2];
        let is_own = match first {
            b'>' if top.has_word => Some(!(confirms && top.is_one_of(&SUBSCRIBES))),
            b'>' => None,
            _ if self.awaited.is_empty() => Some(true),
            b'*' if listens => top.has_word.then(|| top.is_one_of(&MESSAGES)),
            b'+' if self.monitors => top
                .has_word
                .then(|| top.word.first().is_some_and(u8::is_ascii_digit)),
            _ => Some(false),
        };
        self.replies.is_own = self.replies.is_own.or(is_own);
    }

    /// Process a value that is complete.
    fn value(&mut self, kind: Kind, out: &mut Heard) {
        let top = &self.replies.top;
        let confirms = matches!(kind, Kind::Push | Kind::Array) && top.is_one_of(&SUBSCRIBES);
        if confirms {
            let of_shards = top.word.first().is_some_and(|first| b"sS".contains(first))
                && known(&["ssubscribe", "sunsubscribe"], &top.word) != "other";
            self.subscribed[usize::from(of_shards)] = top.number;
        }
        if self.replies.is_own == Some(true) {
            // UNSUBSCRIBE without channels is confirmed once for each channel that was subscribed.
            out.pushes += u64::from(!confirms);
            return;
        }
        if kind == Kind::Simple && top.word.eq_ignore_ascii_case(b"RESET") {
            (self.subscribed, self.monitors) = ([0; 2], false);
        }
        let failed = matches!(kind, Kind::Error | Kind::BulkError);
        out.failed |= failed;
        if let Some(first) = self.awaited.front_mut() {
            first.count -= if first.confirm && failed {
                first.count
            } else {
                1
            };
            if first.count == 0 {
                self.awaited.pop_front();
            }
        }
    }
}

impl Commands {
    fn is_between(&self) -> bool {
        let is_begun = !matches!(&self.reading, Reading::Line(line) if line.is_empty());
        self.arguments == 0 && !is_begun && !self.lost
    }

    /// Read on; returns a command when it is complete.
    fn next(&mut self, rest: &mut &[u8], salt: &Salt) -> Result<Option<Command>, Dark> {
        match &mut self.reading {
            Reading::Line(line) => {
                let Some(line) = take_line(rest, line)? else {
                    return Ok(None);
                };
                self.line(&line, salt)
            }
            Reading::Body { left, of } => {
                let (of, taken) = (*of, (*left).min(rest.len()));
                // Without the line end behind it.
                let of_value = (*left).saturating_sub(2).min(taken);
                *left -= taken;
                let is_whole = *left == 0;
                self.piece(&rest[..of_value]);
                *rest = &rest[taken..];
                if !is_whole {
                    return Ok(None);
                }
                if let Some(keys) = &mut self.keys {
                    keys.mark(of as u64);
                }
                self.words += 1;
                self.arguments -= 1;
                self.reading = Reading::Line(Vec::new());
                Ok((self.arguments == 0).then(|| self.ended()))
            }
        }
    }

    /// Add a piece of a word: of the name, or of a value, whose bytes are kept only for CLIENT.
    fn piece(&mut self, piece: &[u8]) {
        if self.words == 0 || self.is_client() {
            let room = NAME.saturating_sub(self.name.len()).min(piece.len());
            self.name.extend_from_slice(&piece[..room]);
        }
        if let (Some(keys), true) = (&mut self.keys, self.words > 0) {
            keys.piece(piece);
        }
    }

    fn is_client(&self) -> bool {
        self.name
            .get(..6)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"client"))
    }

    fn ended(&mut self) -> Command {
        let name = self.name.split(|&byte| byte == b' ').next();
        Command {
            name: known(COMMANDS, name.unwrap_or_default()),
            keys: self.keys.take().map_or(0, |keys| keys.finish()),
            words: self.words,
        }
    }

    fn line(&mut self, line: &[u8], salt: &Salt) -> Result<Option<Command>, Dark> {
        if self.arguments > 0 {
            let length: usize = line
                .strip_prefix(b"$")
                .and_then(number)
                .ok_or(NOT_UNDERSTOOD)?;
            if self.words > 0 && self.is_client() {
                self.name.push(b' ');
            }
            self.reading = Reading::Body {
                left: length.saturating_add(2),
                of: length,
            };
            return Ok(None);
        }
        self.name.clear();
        self.words = 0;
        self.keys = Some(salt.keys());
        if let Some(count) = line.strip_prefix(b"*") {
            let count: i64 = number(count).ok_or(NOT_UNDERSTOOD)?;
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
            self.piece(word);
            if let (Some(keys), true) = (&mut self.keys, self.words > 0) {
                keys.mark(word.len() as u64);
            }
            self.words += 1;
        }
        Ok((self.words > 0).then(|| self.ended()))
    }
}

/// Whether the bytes of a client begin with a command as an array; None if there are too few.
pub(crate) fn begins(bytes: &[u8]) -> Option<bool> {
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
    known(COMMANDS, word) != "other"
}

/// Whether a server that answers like this speaks this protocol.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes
        .first()
        .is_some_and(|first| b"+-:$*_#,(!=~%|>".contains(first))
}
