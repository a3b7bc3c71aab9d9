//! The page job, as `experiments/page/plan.py` defines it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Arrivals, Custom, CustomStatement, CustomStep, CustomTransaction, KeyValue, Observed, Password,
    PsMode, Rule, SessionJob, SqlProtocol, Target, Tls, Workload, check_rules, one_second, refuse,
    ten_seconds, thirty_seconds, unique_names,
};
use crate::events::Failed;

/// Maximum round trips of a page: a worker keeps the latency of each until the page has ended.
const MAX_ROUND_TRIPS: u64 = 100_000;

/// Where one server is, and as whom; each one that is named gives a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub target: Target,
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub password: Password,
    #[serde(default)]
    pub database: String,
    #[serde(default)]
    pub tls: Option<Tls>,
    /// As in `Session`.
    #[serde(default)]
    pub fetch_server_key: bool,
}

impl Service {
    /// The session that the service requests; a page has no other session settings.
    pub fn session(&self) -> SessionJob {
        SessionJob {
            tls: self.tls.clone(),
            fetch_server_key: self.fetch_server_key,
            ..SessionJob::default()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Store {
    Redis,
    Memcached,
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PageStep {
    /// A statement, `repeat` times; each is a turn. It is sent as text: applications of this kind do not prepare.
    #[schemars(title = "QueryStep")]
    Query {
        statement: String,
        #[serde(default = "one_u32")]
        #[schemars(range(min = 1, max = 10_000))]
        repeat: u32,
    },
    /// A read of `keys_each` drawn keys, `repeat` times; each is a turn.
    #[schemars(title = "GetStep")]
    Get {
        store: Store,
        #[serde(default = "one_key")]
        #[schemars(range(min = 1, max = 1000))]
        keys_each: u16,
        #[serde(default = "one_u32")]
        #[schemars(range(min = 1, max = 10_000))]
        repeat: u32,
    },
    /// The application computes, by the CPU time that its own thread has used.
    #[schemars(title = "CpuStep")]
    Cpu {
        #[schemars(range(max = crate::LONGEST_NS))]
        cpu_ns: u64,
    },
}

const fn one_u32() -> u32 {
    1
}

const fn one_key() -> u16 {
    1
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PageConnect {
    #[default]
    Persistent,
    PerPage,
}

/// Deserialize a workload of keys, which has the field `kind` even where no other kind is possible.
fn deserialize_keys<'de, D: Deserializer<'de>>(input: D) -> Result<Option<KeyValue>, D::Error> {
    match Option::<Workload>::deserialize(input)? {
        None => Ok(None),
        Some(Workload::KeyValue(keys)) => Ok(Some(keys)),
        Some(_) => Err(D::Error::custom("a store needs a workload of keys")),
    }
}

/// The steps in order, `rounds` times, make a page, of at most 100000 turns. A worker runs one page at a time over
/// one connection to each service that the script uses, opened by the first step that needs it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageScript {
    #[serde(default)]
    pub mysql: Option<Service>,
    /// Instead of `mysql`: statements go to one server.
    #[serde(default)]
    pub postgresql: Option<Service>,
    #[serde(default)]
    pub redis: Option<Service>,
    #[serde(default)]
    pub memcached: Option<Service>,
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub statements: Vec<CustomStatement>,
    /// Which keys are drawn, how, in which protocol; its weights and its pipeline mean nothing here.
    #[serde(default, deserialize_with = "deserialize_keys")]
    pub redis_keys: Option<KeyValue>,
    #[serde(default, deserialize_with = "deserialize_keys")]
    pub memcached_keys: Option<KeyValue>,
    #[schemars(length(min = 1, max = 1024))]
    pub steps: Vec<PageStep>,
    #[serde(default = "one_u32")]
    #[schemars(range(min = 1, max = 10_000))]
    pub rounds: u32,
    /// `per_page`: each page opens its connections and closes them at its end, inside its latency.
    #[serde(default)]
    pub connect: PageConnect,
}

/// An application behind FastCGI, as PHP-FPM. Each worker may keep one connection, where the application lets it.
///
/// A page is good when its status is 200 and its body ends with `ends_with`. What it tells of itself is in the
/// header `X-Howfar-Page: name=integer,…`: names of small letters, digits and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastCgi {
    #[schemars(extend("$ref" = "#/$defs/UnixTarget"))]
    pub target: Target,
    /// As FastCGI wants them: `SCRIPT_FILENAME`, `REQUEST_METHOD`, …
    pub parameters: BTreeMap<String, String>,
    #[serde(default)]
    #[schemars(length(max = 200))]
    pub ends_with: String,
    /// `FCGI_KEEP_CONN`. PHP-FPM binds a child to a connection that is kept, and web servers close it after each page
    /// by default. One that is found closed is opened again, the page is asked for once more, and
    /// `Finished.reconnects` counts it: the child had served as many pages as it may, or died over this one.
    #[serde(default)]
    pub keep_connection: bool,
}

/// What makes the pages.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Application {
    #[schemars(title = "PageScript")]
    Script(Box<PageScript>),
    #[schemars(title = "FastCgi")]
    #[serde(rename = "fastcgi")]
    FastCgi(FastCgi),
}

/// Load by pages. `workers` threads, each with one page at a time, as the processes of an application: the kernel
/// shares the CPU among them. Closed loop without `arrivals`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageJob {
    #[schemars(extend("const" = "page"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub application: Application,
    #[schemars(range(min = 1, max = 1024))]
    pub workers: u32,
    #[serde(default)]
    pub arrivals: Option<Arrivals>,
    #[schemars(range(max = i64::MAX))]
    pub seed: u64,
    #[schemars(range(max = crate::LONGEST_NS))]
    pub warmup_ns: u64,
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub measure_ns: u64,
    /// End when so many have begun and all are answered, or when time is up; 0: no limit.
    #[serde(default)]
    pub pages: u64,
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub interval_ns: u64,
    #[serde(default)]
    pub observe: Vec<Observed>,
    /// After `ready` it waits for the line `begin`.
    #[serde(default)]
    pub held: bool,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

impl PageJob {
    /// Check the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), Failed> {
        let rules = self.application.rules().into_iter();
        check_rules(self, rules.chain([Observed::rule(&self.observe)]))?;
        match &self.application {
            Application::Script(script) => refuse(
                script
                    .queries()
                    .and_then(|queries| queries.find_violation()),
            ),
            Application::FastCgi(_) => Ok(()),
        }
    }
}

impl Application {
    fn rules(&self) -> Vec<Rule> {
        match self {
            Self::Script(script) => script.rules(),
            Self::FastCgi(application) => vec![(
                matches!(application.target, Target::Unix { .. }),
                "an application is asked over a Unix socket",
            )],
        }
    }
}

impl PageScript {
    /// The service that statements go to.
    pub fn sql(&self) -> Option<&Service> {
        self.mysql.as_ref().or(self.postgresql.as_ref())
    }

    /// The protocol of that service.
    pub fn protocol(&self) -> SqlProtocol {
        if self.postgresql.is_some() {
            SqlProtocol::Postgresql
        } else {
            SqlProtocol::Mysql
        }
    }

    /// The queries of one round as a transaction that is sent as text; `None` if there are none.
    pub fn queries(&self) -> Option<Custom> {
        let queries = self.steps.iter().filter_map(|step| match step {
            PageStep::Query { statement, repeat } => Some(CustomStep {
                statement: statement.clone(),
                repeat: *repeat,
                think_ns: 0,
            }),
            _ => None,
        });
        let steps: Vec<CustomStep> = queries.collect();
        (!steps.is_empty()).then(|| Custom {
            statements: self.statements.clone(),
            transactions: vec![CustomTransaction {
                name: "round".to_owned(),
                weight: 1,
                steps,
            }],
            prepare: Vec::new(),
            cleanup: Vec::new(),
            db_ps_mode: PsMode::Disable,
        })
    }

    fn rules(&self) -> Vec<Rule> {
        let is_declared = |name: &str| {
            self.statements
                .iter()
                .any(|statement| statement.name == name)
        };
        let steps = |holds: &dyn Fn(&PageStep) -> bool| self.steps.iter().all(holds);
        let mut rules = vec![
            (
                self.sql().is_some() || self.redis.is_some() || self.memcached.is_some(),
                "a page needs a service",
            ),
            (
                self.mysql.is_none() || self.postgresql.is_none(),
                "statements go to one server",
            ),
            (
                steps(&|step| match step {
                    PageStep::Query { statement, .. } => {
                        self.sql().is_some() && is_declared(statement)
                    }
                    PageStep::Get { store, .. } => {
                        let service = match store {
                            Store::Redis => &self.redis,
                            Store::Memcached => &self.memcached,
                        };
                        service.is_some()
                    }
                    PageStep::Cpu { .. } => true,
                }),
                "a step names a service and a statement that are there",
            ),
            unique_names(&self.statements),
            (
                self.round_trips() <= MAX_ROUND_TRIPS,
                "a page has at most 100000 round trips",
            ),
        ];
        if let Some(queries) = self.queries() {
            rules.extend(queries.rules());
        }
        if let Some(service) = self.sql() {
            rules.extend(service.session().rules());
        }
        rules.extend(self.store_rules(Store::Redis, self.redis.as_ref(), self.redis_keys.as_ref()));
        rules.extend(self.store_rules(
            Store::Memcached,
            self.memcached.as_ref(),
            self.memcached_keys.as_ref(),
        ));
        rules
    }

    /// Round trips of one page.
    fn round_trips(&self) -> u64 {
        let step_round_trips = self.steps.iter().map(|step| match step {
            PageStep::Query { repeat, .. } | PageStep::Get { repeat, .. } => u64::from(*repeat),
            PageStep::Cpu { .. } => 0,
        });
        step_round_trips
            .sum::<u64>()
            .saturating_mul(u64::from(self.rounds))
    }

    fn store_rules(
        &self,
        wanted_store: Store,
        service: Option<&Service>,
        keys: Option<&KeyValue>,
    ) -> Vec<Rule> {
        let mut rules = vec![
            (
                service.is_some() == keys.is_some(),
                "a store and its keys come together",
            ),
            (
                keys.is_none_or(|keys| keys.protocol.is_redis() == (wanted_store == Store::Redis)),
                "the keys of a store are in its own protocol",
            ),
        ];
        if let (Some(service), Some(keys)) = (service, keys) {
            let keys_per_step = self.steps.iter().filter_map(|step| match step {
                PageStep::Get {
                    store, keys_each, ..
                } if *store == wanted_store => Some(*keys_each),
                _ => None,
            });
            rules.push((
                keys.fits_at_once(keys_per_step.max().unwrap_or(1)),
                "keys_each of a step times the longest value with its key must be 64 MiB at most",
            ));
            let account = (&*service.user, &*service.password, &*service.database);
            rules.extend(keys.rules());
            rules.extend(keys.session_rules(&service.session(), account));
            rules.extend(service.session().rules());
        }
        rules
    }
}
