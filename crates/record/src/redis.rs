//! Redis's commands, as arrays of strings or as lines, and how many replies came.

use howfar_wire::redis::{Kind, Scanner};

use crate::frame::{number, take_line};
use crate::salt::{Keys, Salt};
use crate::{Dark, Heard, NOT_UNDERSTOOD, Phase, Request, known};

/// Bytes of a command's name.
const NAME: usize = 24;

/// Names that may be stored; what is not here is "other".
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
/// They belong to connecting.
const OPENING: [&str; 5] = ["auth", "hello", "select", "client", "readonly"];
/// From here on the server speaks by itself.
const STREAMS: [&str; 8] = [
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "monitor",
    "sync",
    "psync",
    "unsubscribe",
    "punsubscribe",
];

#[derive(Debug)]
enum Reading {
    /// A line that begins a command or an argument.
    Line(Vec<u8>),
    /// Bytes of an argument, with its line end.
    Body { left: usize, of: usize },
}

/// Reads what a client sends.
#[derive(Debug)]
struct Commands {
    reading: Reading,
    /// Arguments of the present command that are still to come.
    arguments: usize,
    name: Vec<u8>,
    is_name: bool,
    keys: Option<Keys>,
    lost: bool,
}

/// Counts what a server sends.
#[derive(Debug, Default)]
struct Replies {
    scanner: Scanner,
    lost: bool,
}

#[derive(Debug)]
pub(crate) struct Redis {
    commands: Commands,
    replies: Replies,
    awaited: u64,
    streams: bool,
    opened: bool,
}

impl Redis {
    pub(crate) fn new() -> Self {
        Self {
            commands: Commands {
                reading: Reading::Line(Vec::new()),
                arguments: 0,
                name: Vec::new(),
                is_name: false,
                keys: None,
                lost: false,
            },
            replies: Replies::default(),
            awaited: 0,
            streams: false,
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

    pub(crate) fn is_idle(&self) -> bool {
        self.awaited == 0 && !self.streams && !self.replies.lost && !self.commands.lost
    }

    pub(crate) fn turn(&mut self) {
        if self.commands.lost || self.replies.lost {
            self.commands.lost = false;
            self.commands.reading = Reading::Line(Vec::new());
            self.commands.arguments = 0;
            self.replies = Replies::default();
            self.awaited = 0;
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
            if let Some((name, keys)) = self.commands.next(&mut rest, salt)? {
                self.request(name, keys, out);
            }
        }
        if skipped > 0 {
            match &mut self.commands.reading {
                Reading::Body { left, .. } if *left > skipped => {
                    *left -= skipped;
                    if let Some(keys) = &mut self.commands.keys {
                        keys.mark(u64::MAX);
                    }
                }
                _ => self.commands.lost = true,
            }
        }
        Ok(())
    }

    fn request(&mut self, name: &'static str, keys: u64, out: &mut Heard) {
        self.streams |= STREAMS.contains(&name);
        self.opened |= !OPENING.contains(&name);
        self.awaited += 1;
        out.requests.push(Request {
            digest: Some(name.to_ascii_uppercase()),
            keys: Some(keys),
            phase: self.phase(),
            ..Request::new(name)
        });
    }

    pub(crate) fn server_said(&mut self, bytes: &[u8], skipped: usize, out: &mut Heard) {
        let (replies, mut rest) = (&mut self.replies, bytes);
        while !rest.is_empty() && !replies.lost {
            match replies.scanner.next(&mut rest, &mut |_| Ok(())) {
                Ok(None | Some(Kind::Push)) => {}
                Ok(Some(kind)) => {
                    out.failed |= matches!(kind, Kind::Error | Kind::BulkError);
                    self.awaited = self.awaited.saturating_sub(1);
                }
                Err(_) => replies.lost = true,
            }
        }
        replies.lost |= !replies.scanner.skip(skipped);
    }
}

impl Commands {
    /// A command that has ended.
    fn next(&mut self, rest: &mut &[u8], salt: &Salt) -> Result<Option<(&'static str, u64)>, Dark> {
        match &mut self.reading {
            Reading::Line(line) => {
                let Some(line) = take_line(rest, line)? else {
                    return Ok(None);
                };
                self.line(&line, salt)
            }
            Reading::Body { left, of } => {
                let taken = (*left).min(rest.len());
                // Without the line end behind it.
                let of_value = (*left).saturating_sub(2).min(taken);
                if self.is_name {
                    let room = NAME.saturating_sub(self.name.len()).min(of_value);
                    self.name.extend_from_slice(&rest[..room]);
                } else if let Some(keys) = &mut self.keys {
                    keys.piece(&rest[..of_value]);
                }
                *rest = &rest[taken..];
                *left -= taken;
                if *left > 0 {
                    return Ok(None);
                }
                if let Some(keys) = &mut self.keys {
                    keys.mark(*of as u64);
                }
                self.is_name = false;
                self.arguments -= 1;
                self.reading = Reading::Line(Vec::new());
                Ok((self.arguments == 0).then(|| self.ended()))
            }
        }
    }

    fn ended(&mut self) -> (&'static str, u64) {
        let keys = self.keys.take().map_or(0, |keys| keys.finish());
        (known(COMMANDS, &self.name), keys)
    }

    fn line(&mut self, line: &[u8], salt: &Salt) -> Result<Option<(&'static str, u64)>, Dark> {
        if self.arguments > 0 {
            let length: usize = line
                .strip_prefix(b"$")
                .and_then(number)
                .ok_or(NOT_UNDERSTOOD)?;
            self.reading = Reading::Body {
                left: length.saturating_add(2),
                of: length,
            };
            return Ok(None);
        }
        self.name.clear();
        self.keys = Some(salt.keys());
        if let Some(count) = line.strip_prefix(b"*") {
            let count: i64 = number(count).ok_or(NOT_UNDERSTOOD)?;
            self.arguments = usize::try_from(count).unwrap_or(0);
            self.is_name = true;
            return Ok(None);
        }
        let mut words = line.splitn(2, u8::is_ascii_whitespace);
        let name = words.next().unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        self.name.extend_from_slice(&name[..name.len().min(NAME)]);
        if let Some(keys) = &mut self.keys {
            keys.add(words.next().unwrap_or_default());
        }
        Ok(Some(self.ended()))
    }
}

/// Whether the first byte of a client begins this protocol.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'*')
}
