//! The page job. `experiments/page/plan.py` builds it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Arrivals, Custom, CustomStatement, CustomStep, CustomTransaction, KeyValue, Observed, PsMode,
    Rule, ServerLogin, SessionJob, SqlProtocol, Target, Tls, Workload, check_rules, one_second,
    refuse, ten_seconds, thirty_seconds, unique_names,
};
use crate::events::Failed;

/// Maximum number of round trips of a page. A worker keeps the latencies of all of them until the page has ended.
const MAX_ROUND_TRIPS: u64 = 100_000;

/// Address and login of one service of a page. The `ready` event has a receipt for each.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Whether to request the server's RSA key, as in `Session`.
    #[serde(default)]
    pub fetch_server_key: bool,
}

impl Service {
    /// Return the session settings of the service. A page has no others.
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

/// A step of a page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PageStep {
    /// Send a statement as text `repeat` times. Each time is one round trip. Such applications do not use prepared statements.
    #[schemars(title = "QueryStep")]
    Query {
        statement: String,
        #[serde(default = "one_u32")]
        #[schemars(range(min = 1, max = 10_000))]
        repeat: u32,
    },
    /// Read `keys_each` random keys `repeat` times. Each time is one round trip.
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
    /// Compute until the thread has used this much CPU time.
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

/// Deserialize a workload of keys. It has the field `kind`, although no other kind is allowed here.
fn deserialize_keys<'de, D: Deserializer<'de>>(input: D) -> Result<Option<KeyValue>, D::Error> {
    match Option::<Workload>::deserialize(input)? {
        None => Ok(None),
        Some(Workload::KeyValue(keys)) => Ok(Some(keys)),
        Some(_) => Err(D::Error::custom("a store needs a workload of keys")),
    }
}

/// The script of a page: the steps in order, repeated `rounds` times, with at most 100000 round trips in total. A worker runs one page
/// at a time. It has one connection to each service of the script, which the first step that needs it opens.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageScript {
    #[serde(default)]
    pub mysql: Option<Service>,
    /// The PostgreSQL server, instead of `mysql`. A page sends all statements to one server.
    #[serde(default)]
    pub postgresql: Option<Service>,
    #[serde(default)]
    pub redis: Option<Service>,
    #[serde(default)]
    pub memcached: Option<Service>,
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub statements: Vec<CustomStatement>,
    /// Keys of Redis: their number, distribution and protocol. The weights of commands and the pipeline are ignored.
    #[serde(default, deserialize_with = "deserialize_keys")]
    pub redis_keys: Option<KeyValue>,
    #[serde(default, deserialize_with = "deserialize_keys")]
    pub memcached_keys: Option<KeyValue>,
    #[schemars(length(min = 1, max = 1024))]
    pub steps: Vec<PageStep>,
    #[serde(default = "one_u32")]
    #[schemars(range(min = 1, max = 10_000))]
    pub rounds: u32,
    /// When connections are opened. `per_page`: each page opens its connections and closes them at its end, and its latency includes
    /// both.
    #[serde(default)]
    pub connect: PageConnect,
}

/// An application that serves pages over FastCGI, for example PHP-FPM.
///
/// A page succeeds if its status is 200 and its body ends with `ends_with`. The application can report values in the header
/// `X-Howfar-Page: name=integer,…`, whose names consist of lower-case letters, digits and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastCgi {
    #[schemars(extend("$ref" = "#/$defs/UnixTarget"))]
    pub target: Target,
    /// Parameters of each FastCGI request, such as `SCRIPT_FILENAME` and `REQUEST_METHOD`.
    pub parameters: BTreeMap<String, String>,
    #[serde(default)]
    #[schemars(length(max = 200))]
    pub ends_with: String,
    /// Whether each worker keeps one connection open (`FCGI_KEEP_CONN`), if the application allows it. PHP-FPM dedicates a child to an
    /// open connection, and web servers close it after each page by default. If the connection was closed by the application, it is
    /// reopened and the page is requested again: the child had served its maximum number of pages, or failed while serving this page.
    /// `Finished.reconnects` counts these cases.
    #[serde(default)]
    pub keep_connection: bool,
}

/// The application that serves the pages: a script that the engine runs, or a program behind FastCGI.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Application {
    #[schemars(title = "PageScript")]
    Script(Box<PageScript>),
    #[schemars(title = "FastCgi")]
    #[serde(rename = "fastcgi")]
    FastCgi(FastCgi),
}

/// Load of pages. Each of `workers` threads serves one page at a time, like the processes of an application, and the kernel schedules
/// them on the CPUs. Without `arrivals` it is a closed loop.
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
    /// Maximum number of pages. The job ends when all of them are complete or when the window ends. 0: no limit.
    #[serde(default)]
    pub pages: u64,
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub interval_ns: u64,
    #[serde(default)]
    pub observe: Vec<Observed>,
    /// Whether the job starts with a delay: after the event `ready` it waits for the command `begin`.
    #[serde(default, alias = "held")]
    pub waits_for_begin: bool,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

impl PageJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
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
                "an application needs the address of a Unix socket",
            )],
        }
    }
}

impl PageScript {
    /// Return the service that executes statements.
    pub fn sql(&self) -> Option<&Service> {
        self.mysql.as_ref().or(self.postgresql.as_ref())
    }

    /// Return the protocol of the service that executes statements.
    pub fn protocol(&self) -> SqlProtocol {
        if self.postgresql.is_some() {
            SqlProtocol::Postgresql
        } else {
            SqlProtocol::Mysql
        }
    }

    /// Return the queries of one round as a transaction that is sent as text, or `None` if there are none.
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
                "a page needs at least one service",
            ),
            (
                self.mysql.is_none() || self.postgresql.is_none(),
                "a page sends statements to mysql or postgresql, not to both",
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
                "a step refers to a service or a statement that the script does not declare",
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

    /// Return the number of round trips of one page.
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
                "a store needs a workload of keys, and the keys need their store",
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
            rules.extend(keys.rules());
            rules.extend(keys.session_rules(&service.session(), &service.login));
            rules.extend(service.session().rules());
        }
        rules
    }
}
