//! Commands of Redis or Memcached, as `key_value.py` defines them.

use serde::Deserialize;

use super::{Distribution, Rule, SessionJob, Workload};

/// Keys are numbered in twelve digits.
const MOST_KEYS: u64 = 999_999_999_999;
const KEY_DIGITS: u64 = 12;
/// Of the values of one request, or of one reply, with their keys: a connection holds as much.
const MOST_BYTES_AT_ONCE: u64 = 64 << 20;
/// Longest value.
const LONGEST: u32 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Resp2,
    Resp3,
    MemcachedText,
    MemcachedMeta,
}

impl Protocol {
    /// As the contract has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resp2 => "resp2",
            Self::Resp3 => "resp3",
            Self::MemcachedText => "memcached_text",
            Self::MemcachedMeta => "memcached_meta",
        }
    }

    pub fn is_redis(self) -> bool {
        matches!(self, Self::Resp2 | Self::Resp3)
    }
}

/// A size that has its share of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub bytes: u32,
    #[serde(default = "one")]
    pub weight: u32,
}

/// How long values are.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sizes {
    Fixed { bytes: u32 },
    Uniform { low: u32, high: u32 },
    Lognormal { median: u32, sigma: f64, most: u32 },
    Listed { sizes: Vec<Size> },
}

const fn one() -> u32 {
    1
}

impl Sizes {
    /// The longest that there may be.
    pub fn most(&self) -> u32 {
        match self {
            Self::Fixed { bytes } => *bytes,
            Self::Uniform { high, .. } => *high,
            Self::Lognormal { most, .. } => *most,
            Self::Listed { sizes } => sizes.iter().map(|one| one.bytes).max().unwrap_or(0),
        }
    }

    fn holds(&self) -> bool {
        let consistent = match self {
            Self::Fixed { .. } => true,
            Self::Uniform { low, high } => low <= high,
            Self::Lognormal {
                median,
                sigma,
                most,
            } => (1..=*most).contains(median) && (0.0..=10.0).contains(sigma),
            Self::Listed { sizes } => {
                (1..=256).contains(&sizes.len())
                    && sizes
                        .iter()
                        .all(|one| (1..=1_000_000).contains(&one.weight))
            }
        };
        consistent && self.most() <= LONGEST
    }
}

/// What an error of the server does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    #[default]
    Stop,
    Count,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyValue {
    pub protocol: Protocol,
    #[serde(default = "ten_thousand")]
    pub keys: u64,
    #[serde(default = "key")]
    pub key_prefix: String,
    #[serde(default = "Distribution::uniform")]
    pub distribution: Distribution,
    #[serde(default = "nine")]
    pub get: u32,
    #[serde(default = "one")]
    pub set: u32,
    #[serde(default)]
    pub multi_get: u32,
    #[serde(default)]
    pub delete: u32,
    #[serde(default = "ten")]
    pub keys_each: u16,
    #[serde(default = "hundred")]
    pub value: Sizes,
    #[serde(default = "once")]
    pub pipeline: u16,
    #[serde(default)]
    pub on_error: OnError,
}

const fn ten_thousand() -> u64 {
    10_000
}

fn key() -> String {
    "key:".to_owned()
}

const fn nine() -> u32 {
    9
}

const fn ten() -> u16 {
    10
}

const fn once() -> u16 {
    1
}

const fn hundred() -> Sizes {
    Sizes::Fixed { bytes: 100 }
}

impl Workload {
    /// The commands, when it is of those.
    pub fn key_value(&self) -> Option<&KeyValue> {
        match self {
            Self::KeyValue(load) => Some(load),
            _ => None,
        }
    }

    /// What this workload asks of its session; `account` is user, password and database.
    pub(super) fn session_rules(
        &self,
        session: &SessionJob,
        account: (&str, &str, &str),
    ) -> Vec<Rule> {
        self.key_value()
            .map_or_else(Vec::new, |load| load.session_rules(session, account))
    }
}

impl KeyValue {
    pub(super) fn rules(&self) -> Vec<Rule> {
        let weights = [self.get, self.set, self.multi_get, self.delete];
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_.-".contains(&byte);
        let mut rules = vec![
            (
                (1..=MOST_KEYS).contains(&self.keys),
                "keys must be 1..999999999999",
            ),
            (
                self.key_prefix.len() <= 64 && self.key_prefix.bytes().all(plain),
                "key_prefix has at most 64 letters, digits and :_.-",
            ),
            (
                weights.iter().all(|&weight| weight <= 1_000_000)
                    && weights.iter().any(|&weight| weight > 0),
                "some command needs a weight above 0, none above 1000000",
            ),
            (
                (1..=1000).contains(&self.keys_each) && (1..=1000).contains(&self.pipeline),
                "keys_each and pipeline must be 1..1000",
            ),
            (self.value.holds(), "the sizes of values are out of bounds"),
            (
                self.most_at_once() <= MOST_BYTES_AT_ONCE,
                "pipeline and keys_each times the longest value with its key must be 64 MiB at most",
            ),
        ];
        rules.extend(self.distribution.rules());
        rules
    }

    /// Bytes of the largest request of values, or of the largest reply to one command.
    fn most_at_once(&self) -> u64 {
        let keys = if self.multi_get > 0 {
            self.keys_each
        } else {
            1
        };
        self.bytes_of(self.pipeline.max(keys))
    }

    /// So many of the longest values, with their keys.
    fn bytes_of(&self, keys: u16) -> u64 {
        let each = u64::from(self.value.most()) + self.key_prefix.len() as u64 + KEY_DIGITS;
        each * u64::from(keys)
    }

    /// A reply with so many values.
    pub(super) fn fits_at_once(&self, keys: u16) -> bool {
        self.bytes_of(keys) <= MOST_BYTES_AT_ONCE
    }

    /// What such a session cannot have.
    pub(super) fn session_rules(
        &self,
        session: &SessionJob,
        (user, password, database): (&str, &str, &str),
    ) -> Vec<Rule> {
        let redis = self.protocol.is_redis();
        vec![
            (
                session.compression.is_none(),
                "neither Redis nor Memcached compresses its protocol",
            ),
            (
                redis || (user.is_empty() && password.is_empty() && database.is_empty()),
                "Memcached's text protocols know no user, password or database",
            ),
            (
                user.is_empty() || !password.is_empty(),
                "a user of Redis needs a password",
            ),
            (
                database.len() <= 9 && database.bytes().all(|byte| byte.is_ascii_digit()),
                "a database of Redis is a number, or empty",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(change: &str) -> KeyValue {
        let text = format!(r#"{{"protocol":"resp3"{change}}}"#);
        serde_json::from_str(&text).expect("well formed")
    }

    fn is_good(load: &KeyValue) -> bool {
        load.rules().iter().all(|(holds, _)| *holds)
    }

    #[test]
    fn bounds_are_checked() {
        assert!(is_good(&load("")));
        assert!(is_good(&load(
            r#","pipeline":63,"value":{"kind":"fixed","bytes":1048576}"#
        )));
        for bad in [
            r#","keys":0"#,
            r#","key_prefix":"a b""#,
            r#","get":0,"set":0"#,
            r#","pipeline":0"#,
            r#","keys_each":1001"#,
            r#","value":{"kind":"fixed","bytes":1048577}"#,
            r#","value":{"kind":"uniform","low":2,"high":1}"#,
            r#","value":{"kind":"lognormal","median":0,"sigma":1,"most":9}"#,
            r#","value":{"kind":"listed","sizes":[]}"#,
            r#","distribution":{"kind":"pareto","pareto_h":1}"#,
            r#","pipeline":64,"value":{"kind":"fixed","bytes":1048576}"#,
            r#","multi_get":1,"keys_each":64,"value":{"kind":"fixed","bytes":1048576}"#,
        ] {
            assert!(!is_good(&load(bad)), "{bad}");
        }
    }

    #[test]
    fn a_session_asks_for_what_there_is() {
        let may = |protocol, account| {
            let mut load = load("");
            load.protocol = protocol;
            let rules = load.session_rules(&SessionJob::default(), account);
            rules.iter().all(|(holds, _)| *holds)
        };
        assert!(may(Protocol::Resp2, ("me", "secret", "3")));
        assert!(may(Protocol::MemcachedText, ("", "", "")));
        assert!(!may(Protocol::MemcachedMeta, ("", "secret", "")));
        assert!(!may(Protocol::Resp3, ("me", "", "")));
        assert!(!may(Protocol::Resp3, ("", "", "shop")));
    }
}
