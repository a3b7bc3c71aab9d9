//! Commands on keys, sent to Redis or Memcached instead of statements: chooses the next command, its key and its value.
//!
//! The length and the content of a value are pure functions of the key: setting a key again does not change its value.

use howfar_contract::jobs::{KeyValue, OnError, Protocol, SqlProtocol};
use howfar_wire::keyvalue::{ExpectReplies, Expected};
use howfar_wire::memcached::Dialect;
use howfar_wire::redis::request;

use super::sizes::Values;
use super::{Cursor, DueStatement, Group, Program, StatementKind, Step, Table};
use crate::distribution::IdSampler;
use crate::random_stream::RandomStream;

/// Digits of a key's number.
const KEY_DIGITS: usize = 12;
/// Maximum length of a key: the contract's longest prefix, and the digits.
const MAX_KEY_BYTES: usize = 64 + KEY_DIGITS;

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Set,
    MultiGet,
    Delete,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "command.get",
            Self::Set => "command.set",
            Self::MultiGet => "command.multi_get",
            Self::Delete => "command.delete",
        }
    }
}

/// The commands of a workload, shared by all connections.
#[derive(Debug)]
pub(crate) struct Commands {
    protocol: Protocol,
    stops_on_error: bool,
    /// Commands, each with the end of its range in `1..=shares`: a drawn number selects the command in whose range it is.
    verbs: Vec<(u64, Verb)>,
    shares: u64,
    ids: IdSampler,
    keys_each: u16,
    pipeline: u16,
    prefix: Vec<u8>,
    values: Values,
}

/// Build a program whose transactions are one request each. Without a pipeline, latencies are recorded by command.
pub(super) fn build_program(workload: &KeyValue) -> Program {
    let commands = Commands::new(workload);
    let make_groups = |kind: usize| {
        vec![Group {
            table: Table::None,
            repeat: 1,
            steps: vec![Step {
                kind,
                think_ns: 0,
                sources: Vec::new(),
            }],
        }]
    };
    let requests: Vec<(u64, &str)> = if commands.pipeline == 1 {
        let verbs = commands.verbs.iter();
        verbs.map(|(end, verb)| (*end, verb.name())).collect()
    } else {
        vec![(1, "command.pipeline")]
    };
    let (mut kinds, mut transactions) = (Vec::new(), Vec::new());
    for (kind, (end, name)) in requests.into_iter().enumerate() {
        kinds.push(StatementKind::new(name, "", 0, SqlProtocol::Mysql));
        transactions.push((end, make_groups(kind)));
    }
    let mut program = Program::from_parts(kinds, transactions, 1);
    program.commands = Some(Box::new(commands));
    program
}

impl Program {
    /// The commands, if the program consists of commands and not of statements.
    #[inline]
    pub(crate) fn commands(&self) -> Option<&Commands> {
        self.commands.as_deref()
    }
}

impl Commands {
    fn new(workload: &KeyValue) -> Self {
        let mut shares = 0;
        let mut verbs = Vec::new();
        for (weight, verb) in [
            (workload.get, Verb::Get),
            (workload.set, Verb::Set),
            (workload.multi_get, Verb::MultiGet),
            (workload.delete, Verb::Delete),
        ] {
            if weight > 0 {
                shares += u64::from(weight);
                verbs.push((shares, verb));
            }
        }
        Self {
            protocol: workload.protocol,
            stops_on_error: workload.on_error == OnError::Stop,
            verbs,
            shares,
            ids: IdSampler::new(&workload.distribution, workload.keys),
            keys_each: workload.keys_each,
            pipeline: workload.pipeline,
            prefix: workload.key_prefix.clone().into_bytes(),
            values: Values::new(&workload.value),
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether an error of the server ends the job.
    pub(crate) fn stops_on_error(&self) -> bool {
        self.stops_on_error
    }

    /// Whether every reply to a request is at most about 900 bytes long.
    pub(crate) fn has_short_replies(&self) -> bool {
        let keys = if self.verbs.iter().any(|(_, verb)| *verb == Verb::MultiGet) {
            usize::from(self.keys_each)
        } else {
            1
        };
        (self.values.max_bytes() + 40) * keys * usize::from(self.pipeline) <= 900
    }

    /// Append a request, and register the expected replies with `replies`. Returns the number of commands.
    #[inline]
    pub(crate) fn write(
        &self,
        due: DueStatement,
        cursor: &mut Cursor,
        out: &mut Vec<u8>,
        replies: &mut (impl ExpectReplies + ?Sized),
    ) -> u64 {
        replies.begin();
        if self.pipeline == 1 {
            let (_, verb) = self.verbs[due.kind];
            self.write_random(verb, &mut cursor.random, out, replies);
            return 1;
        }
        for _ in 0..self.pipeline {
            let index = if self.verbs.len() == 1 {
                0
            } else {
                let share = cursor.random.up_to(self.shares);
                self.verbs.partition_point(|(end, _)| *end < share)
            };
            self.write_random(self.verbs[index].1, &mut cursor.random, out, replies);
        }
        u64::from(self.pipeline)
    }

    /// Append one command on random keys.
    #[inline]
    fn write_random(
        &self,
        verb: Verb,
        random: &mut RandomStream,
        out: &mut Vec<u8>,
        replies: &mut (impl ExpectReplies + ?Sized),
    ) {
        if verb == Verb::MultiGet {
            replies.expect(Expected::MultiGet(self.keys_each));
            self.write_multi_get(self.keys_each, random, out);
        } else {
            self.write_command(verb, self.ids.draw(random), out, replies);
        }
    }

    /// Append one command on the key `id`.
    #[inline]
    pub(crate) fn write_command(
        &self,
        verb: Verb,
        id: u64,
        out: &mut Vec<u8>,
        replies: &mut (impl ExpectReplies + ?Sized),
    ) {
        replies.expect(match verb {
            Verb::Get | Verb::MultiGet => Expected::Get,
            Verb::Set | Verb::Delete => Expected::Write,
        });
        let mut key_buffer = [0; MAX_KEY_BYTES];
        let key = self.key(id, &mut key_buffer);
        if let Some(dialect) = self.dialect() {
            return match verb {
                Verb::Get | Verb::MultiGet => dialect.get(out, key),
                Verb::Set => {
                    let value = self.values.value(id);
                    dialect.set(out, key, value.len(), |out| out.extend_from_slice(value));
                }
                Verb::Delete => dialect.delete(out, key),
            };
        }
        match verb {
            Verb::Get | Verb::MultiGet => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                request::word(out, key);
            }
            Verb::Set => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                request::word(out, key);
                request::word(out, self.values.value(id));
            }
            Verb::Delete => {
                out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n");
                request::word(out, key);
            }
        }
    }

    /// Append a request that reads `count` random keys at once.
    pub(crate) fn write_read(
        &self,
        count: u16,
        random: &mut RandomStream,
        out: &mut Vec<u8>,
        replies: &mut (impl ExpectReplies + ?Sized),
    ) {
        replies.begin();
        if count == 1 {
            self.write_command(Verb::Get, self.ids.draw(random), out, replies);
        } else {
            replies.expect(Expected::MultiGet(count));
            self.write_multi_get(count, random, out);
        }
    }

    fn write_multi_get(&self, count: u16, random: &mut RandomStream, out: &mut Vec<u8>) {
        let count = usize::from(count);
        let mut key_buffer = [0; MAX_KEY_BYTES];
        if let Some(dialect) = self.dialect() {
            return dialect.multi_get(out, count, |out| {
                out.extend_from_slice(self.key(self.ids.draw(random), &mut key_buffer));
            });
        }
        request::begin(out, count + 1);
        request::word(out, b"MGET");
        for _ in 0..count {
            request::word(out, self.key(self.ids.draw(random), &mut key_buffer));
        }
    }

    #[inline]
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        match self.protocol {
            Protocol::Resp2 | Protocol::Resp3 => None,
            Protocol::MemcachedText => Some(Dialect::Text),
            Protocol::MemcachedMeta => Some(Dialect::Meta),
        }
    }

    #[inline]
    fn key<'a>(&self, mut id: u64, key_buffer: &'a mut [u8; MAX_KEY_BYTES]) -> &'a [u8] {
        let prefix_bytes = self.prefix.len();
        key_buffer[..prefix_bytes].copy_from_slice(&self.prefix);
        let key = &mut key_buffer[..prefix_bytes + KEY_DIGITS];
        for digit in key[prefix_bytes..].iter_mut().rev() {
            *digit = b'0' + (id % 10) as u8;
            id /= 10;
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use howfar_contract::jobs::Workload;
    use serde_json::{Value, json};

    use super::*;

    /// The first requests of a workload with these fields, each with its number of commands.
    fn encode_requests(protocol: &str, fields: &Value, requests: u64) -> Vec<(String, u64)> {
        let mut workload_json =
            json!({"kind": "key_value", "protocol": protocol, "keys": 1, "get": 0, "set": 0});
        workload_json["value"] = json!({"kind": "fixed", "bytes": 3});
        for (name, value) in fields.as_object().expect("the fields are an object") {
            workload_json[name] = value.clone();
        }
        let workload: Workload =
            serde_json::from_value(workload_json).expect("the JSON is well formed");
        let program = Program::new(&workload, 1, 9).expect("the workload is valid");
        let commands = program.commands().expect("the program has commands");
        let mut replies = howfar_wire::redis::Replies::default();
        let encode = |number| {
            let mut cursor = program.transaction(0, number);
            let due = cursor.next(&program).expect("a transaction has one step");
            assert_eq!(cursor.clone().next(&program), None);
            let mut out = Vec::new();
            let count = commands.write(due, &mut cursor, &mut out, &mut replies);
            (String::from_utf8(out).expect("the request is text"), count)
        };
        (0..requests).map(encode).collect()
    }

    fn encode_first(protocol: &str, fields: &Value) -> String {
        encode_requests(protocol, fields, 1).remove(0).0
    }

    const KEY: &str = "key:000000000001";

    #[test]
    fn commands_have_their_known_bytes() {
        let get = encode_first("resp2", &json!({"get": 1}));
        assert_eq!(get, format!("*2\r\n$3\r\nGET\r\n$16\r\n{KEY}\r\n"));
        let delete = encode_first("resp3", &json!({"delete": 1}));
        assert_eq!(delete, format!("*2\r\n$3\r\nDEL\r\n$16\r\n{KEY}\r\n"));
        let multi_get = encode_first("resp3", &json!({"multi_get": 1, "keys_each": 2}));
        assert!(
            multi_get.starts_with("*3\r\n$4\r\nMGET\r\n$16\r\n"),
            "{multi_get}"
        );
        let set = encode_first("resp2", &json!({"set": 1}));
        assert!(set.starts_with("*3\r\n$3\r\nSET\r\n"), "{set}");
        let value = &set[set.len() - 5..];
        for (protocol, get, set) in [
            (
                "memcached_text",
                format!("get {KEY}\r\n"),
                format!("set {KEY} 0 0 3\r\n{value}"),
            ),
            (
                "memcached_meta",
                format!("mg {KEY} v\r\n"),
                format!("ms {KEY} 3\r\n{value}"),
            ),
        ] {
            assert_eq!(encode_first(protocol, &json!({"get": 1})), get);
            assert_eq!(encode_first(protocol, &json!({"set": 1})), set);
        }
    }

    #[test]
    fn requests_are_reproducible_and_have_the_requested_shares() {
        let fields = json!({"get": 3, "set": 1, "pipeline": 8});
        let all = encode_requests("resp2", &fields, 200);
        assert_eq!(all, encode_requests("resp2", &fields, 200));
        assert!(all.iter().all(|(_, count)| *count == 8));
        // A quarter of 1600; six standard deviations of 17.3 are allowed.
        let sets: usize = all
            .iter()
            .map(|(text, _)| text.matches("SET").count())
            .sum();
        assert!((296..=504).contains(&sets), "{sets}");
    }
}
