//! A workload of commands on keys of Redis or Memcached, and its rules. `key_value.py` builds it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Distribution, Rule, ServerLogin, SessionJob, Workload};

const KEY_DIGITS: u64 = 12;
/// Maximum size of the values and keys in one request or reply, in bytes. A connection's buffer holds that much.
const MAX_BYTES_AT_ONCE: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Resp2,
    Resp3,
    MemcachedText,
    MemcachedMeta,
}

impl Protocol {
    /// Name of the protocol in messages.
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

/// One of several value sizes, with its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    #[schemars(range(max = 1_048_576))]
    pub bytes: u32,
    #[serde(default = "one_u32")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
}

/// Distribution of the value sizes, in bytes.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sizes {
    /// All values have the same size.
    #[schemars(title = "FixedSize")]
    Fixed {
        #[serde(default = "hundred_bytes")]
        #[schemars(range(max = 1_048_576))]
        bytes: u32,
    },
    /// Uniformly distributed from `low` to `high`, both included.
    #[schemars(title = "UniformSize")]
    Uniform {
        #[schemars(range(max = 1_048_576))]
        low: u32,
        #[schemars(range(max = 1_048_576))]
        high: u32,
    },
    /// Log-normally distributed. `sigma` is the standard deviation of the natural logarithm, and larger sizes than `most` are reduced
    /// to `most`.
    #[schemars(title = "LognormalSize")]
    Lognormal {
        #[schemars(range(min = 1, max = 1_048_576))]
        median: u32,
        #[schemars(range(min = 0.0, max = 10.0))]
        sigma: f64,
        #[schemars(range(min = 1, max = 1_048_576))]
        most: u32,
    },
    /// A list of sizes. Each is chosen with a probability of its weight divided by the sum of all weights.
    #[schemars(title = "ListedSizes")]
    Listed {
        #[schemars(length(min = 1, max = 256))]
        sizes: Vec<Size>,
    },
}

const fn one_u32() -> u32 {
    1
}

impl Sizes {
    /// Size of the largest possible value, in bytes.
    pub fn max_bytes(&self) -> u32 {
        match self {
            Self::Fixed { bytes } => *bytes,
            Self::Uniform { high, .. } => *high,
            Self::Lognormal { most, .. } => *most,
            Self::Listed { sizes } => sizes.iter().map(|size| size.bytes).max().unwrap_or(0),
        }
    }

    fn is_ordered(&self) -> bool {
        match self {
            Self::Uniform { low, high } => low <= high,
            Self::Lognormal { median, most, .. } => median <= most,
            Self::Fixed { .. } | Self::Listed { .. } => true,
        }
    }
}

/// Reaction to an error that the server returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    #[default]
    Stop,
    Count,
}

/// A workload of commands on keys. A transaction is one request with `pipeline` commands and their replies; its latency ends with the
/// last byte received.
///
/// A key consists of `key_prefix` and a number from 1 with twelve digits. Size and content of its value depend only on that number. A
/// tables job with the same workload therefore sets (`prepare`), reads (`warmup`) or deletes (`cleanup`) all keys, and a load writes
/// the same values again.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyValue {
    /// Protocol of the server. With `resp3`, a Redis session begins with HELLO 3; with `resp2`, it begins with AUTH if there is a
    /// password.
    pub protocol: Protocol,
    #[serde(default = "default_keys")]
    #[schemars(range(min = 1, max = 999_999_999_999_u64))]
    pub keys: u64,
    #[serde(default = "default_key_prefix")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9:_.-]{0,64}$"))]
    pub key_prefix: String,
    #[serde(default = "Distribution::uniform")]
    pub distribution: Distribution,
    /// Weight of the command `get`. Each command is chosen with a probability of its weight divided by the sum of all weights.
    #[serde(default = "default_get_weight")]
    #[schemars(range(max = 1_000_000))]
    pub get: u32,
    #[serde(default = "one_u32")]
    #[schemars(range(max = 1_000_000))]
    pub set: u32,
    /// Weight of reading `keys_each` keys with one command: MGET in Redis; in Memcached, `get` with several keys, or quiet `mg`
    /// commands followed by `mn`.
    #[serde(default)]
    #[schemars(range(max = 1_000_000))]
    pub multi_get: u32,
    #[serde(default)]
    #[schemars(range(max = 1_000_000))]
    pub delete: u32,
    #[serde(default = "ten_u16")]
    #[schemars(range(min = 1, max = 1000))]
    pub keys_each: u16,
    #[serde(default = "default_sizes")]
    pub value: Sizes,
    /// Number of commands in a request. The next request is sent after all their replies.
    #[serde(default = "one_u16")]
    #[schemars(range(min = 1, max = 1000))]
    pub pipeline: u16,
    /// Reaction to an error that the server returns: end the job, or count the error under its first word. Commands are not retried.
    #[serde(default)]
    pub on_error: OnError,
}

impl KeyValue {
    /// Create a workload with the default values and this protocol.
    pub fn with_defaults(protocol: Protocol) -> Self {
        Self {
            protocol,
            keys: default_keys(),
            key_prefix: default_key_prefix(),
            distribution: Distribution::uniform(),
            get: default_get_weight(),
            set: one_u32(),
            multi_get: 0,
            delete: 0,
            keys_each: ten_u16(),
            value: default_sizes(),
            pipeline: one_u16(),
            on_error: OnError::default(),
        }
    }
}

const fn default_keys() -> u64 {
    10_000
}

fn default_key_prefix() -> String {
    "key:".to_owned()
}

const fn default_get_weight() -> u32 {
    9
}

const fn ten_u16() -> u16 {
    10
}

const fn one_u16() -> u16 {
    1
}

const fn hundred_bytes() -> u32 {
    100
}

const fn default_sizes() -> Sizes {
    Sizes::Fixed { bytes: 100 }
}

impl Workload {
    /// Return the workload's options if it is a workload of keys.
    pub fn key_value(&self) -> Option<&KeyValue> {
        match self {
            Self::KeyValue(load) => Some(load),
            _ => None,
        }
    }

    /// Return the rules of this workload for its session.
    pub(super) fn session_rules(&self, session: &SessionJob, login: &ServerLogin) -> Vec<Rule> {
        self.key_value()
            .map_or_else(Vec::new, |load| load.session_rules(session, login))
    }
}

impl KeyValue {
    pub(super) fn rules(&self) -> Vec<Rule> {
        let weights = [self.get, self.set, self.multi_get, self.delete];
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_.-".contains(&byte);
        vec![
            (
                self.key_prefix.len() <= 64 && self.key_prefix.bytes().all(plain),
                "key_prefix has at most 64 letters, digits and :_.-",
            ),
            (
                weights.iter().any(|&weight| weight > 0),
                "a workload of keys needs a command with a weight above 0",
            ),
            (
                self.value.is_ordered(),
                "the sizes of values need low <= high, and median <= most",
            ),
            (
                self.max_bytes_at_once() <= MAX_BYTES_AT_ONCE,
                "pipeline and keys_each times the longest value with its key must be 64 MiB at most",
            ),
        ]
    }

    /// Return the size in bytes of the largest request or reply with values.
    fn max_bytes_at_once(&self) -> u64 {
        let keys = if self.multi_get > 0 {
            self.keys_each
        } else {
            1
        };
        self.max_bytes(self.pipeline.max(keys))
    }

    /// Return the size in bytes of this many values of the maximum size, with their keys.
    fn max_bytes(&self, keys: u16) -> u64 {
        let bytes_per_key =
            u64::from(self.value.max_bytes()) + self.key_prefix.len() as u64 + KEY_DIGITS;
        bytes_per_key * u64::from(keys)
    }

    /// Whether a reply with this many values of the maximum size is within `MAX_BYTES_AT_ONCE`.
    pub(super) fn fits_at_once(&self, keys: u16) -> bool {
        self.max_bytes(keys) <= MAX_BYTES_AT_ONCE
    }

    /// Return the rules of this workload for its session.
    pub(super) fn session_rules(&self, session: &SessionJob, login: &ServerLogin) -> Vec<Rule> {
        let (user, password, database) = (&*login.user, &*login.password, &*login.database);
        let is_redis = self.protocol.is_redis();
        vec![
            (
                session.compression.is_none(),
                "neither Redis nor Memcached compresses its protocol",
            ),
            (
                is_redis || (user.is_empty() && password.is_empty() && database.is_empty()),
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
    use super::super::check_rules;
    use super::*;

    fn load(change: &str) -> KeyValue {
        let text = format!(r#"{{"protocol":"resp3"{change}}}"#);
        serde_json::from_str(&text).expect("the JSON is valid")
    }

    fn is_valid(load: &KeyValue) -> bool {
        check_rules(load, load.rules()).is_ok()
    }

    #[test]
    fn bounds_are_checked() {
        assert!(is_valid(&load("")));
        assert!(is_valid(&load(
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
            assert!(!is_valid(&load(bad)), "{bad}");
        }
    }

    #[test]
    fn sessions_request_only_features_of_their_protocol() {
        let is_allowed = |protocol, (user, password, database): (&str, &str, &str)| {
            let mut load = load("");
            load.protocol = protocol;
            let login = serde_json::json!({
                "target": {"kind": "unix", "path": "/s"}, "user": user, "password": password, "database": database,
            });
            let login = serde_json::from_value(login).expect("the JSON is valid");
            let rules = load.session_rules(&SessionJob::default(), &login);
            rules.iter().all(|(holds, _)| *holds)
        };
        assert!(is_allowed(Protocol::Resp2, ("me", "secret", "3")));
        assert!(is_allowed(Protocol::MemcachedText, ("", "", "")));
        assert!(!is_allowed(Protocol::MemcachedMeta, ("", "secret", "")));
        assert!(!is_allowed(Protocol::Resp3, ("me", "", "")));
        assert!(!is_allowed(Protocol::Resp3, ("", "", "shop")));
    }
}
