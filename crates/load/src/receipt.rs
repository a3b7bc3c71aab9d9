//! The receipt of the first connection: its real properties, read from the socket and from the server, never from the job.

mod postgres;
mod store;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use howfar_contract::events::Receipt;
use howfar_contract::jobs::{PsMode, Target};
use howfar_contract::{FailCode, Failed, internal};
use howfar_wire::mysql::Malformed;
use rustix::net::{self, SocketAddrAny, sockopt};

use crate::channel::Channel;
use crate::client::{AnswerEnd, Results, Rows};
use crate::connection_error::ConnectionError;
use crate::exchange::Exchange;
use crate::failure::{self, TimeLimit};
use crate::session::{Facts, LoginParameters, Replies, Session};
use crate::socket::Address;
use crate::sockopt::{max_segment, peer_pid};

const STATUS_QUERY: &str = "SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_cipher','Ssl_version','Compression','Compression_algorithm','Compression_level')";
const STATUS_OPERATION: &str = "SHOW SESSION STATUS";
/// Maximum bytes of the answer: five rows, their framing, and some slack.
const MAX_STATUS_BYTES: usize = 1 << 12;

/// What is needed to make a receipt: the connection's target and account, and facts of the job.
#[derive(Clone, Copy)]
pub(crate) struct ReceiptContext<'a> {
    pub(crate) parameters: &'a LoginParameters<'a>,
    pub(crate) address: &'a Address,
    /// Time limit for the server to answer.
    pub(crate) limit_ns: u64,
    pub(crate) mode: PsMode,
    pub(crate) threads: u32,
    pub(crate) cpus: &'a [u32],
}

/// Number of round trips that opening this session took; TCP's own handshake is one.
pub(crate) fn connect_round_trips(address: &Address, session: &Session) -> u32 {
    u32::from(matches!(address, Address::Tcp(_))) + session.round_trips
}

/// Open a connection and query its socket and the server. If a proxy closes the connection because it does not support the query, the
/// server's facts stay unknown, and a new connection is opened.
pub(crate) fn open_with_receipt(
    context: ReceiptContext<'_>,
    open: impl Fn() -> Result<(OwnedFd, Session), Failed>,
) -> Result<(Receipt, OwnedFd, Session), Failed> {
    let (mut socket, mut session) = open()?;
    let facts = match query_server(context, &socket, &mut session) {
        Err(failed) if failed.code == FailCode::ServerGone && session.facts.is_none() => {
            (socket, session) = open()?;
            ServerFacts::unknown()
        }
        facts => facts?,
    };
    let receipt = make_receipt(context, &socket, &session, facts);
    Ok((receipt, socket, session))
}

fn make_receipt(
    context: ReceiptContext<'_>,
    socket: &OwnedFd,
    session: &Session,
    facts: ServerFacts,
) -> Receipt {
    let status = |name: &str| {
        facts
            .status
            .get(name)
            .filter(|value| !value.is_empty() && *value != "OFF")
            .cloned()
    };
    let tls = session.tls.as_ref();
    let is_tcp = matches!(context.address, Address::Tcp(_));
    let peer = socket_address(net::getpeername(socket).ok().flatten());
    Receipt {
        address_family: context.address.family(),
        local_address: socket_address(net::getsockname(socket).ok()),
        peer_address: peer.unwrap_or_else(|| requested_address(context.parameters.target)),
        server_address: postgres::server_address(&facts.status),
        peer_pid: if is_tcp { None } else { peer_pid(socket) },
        server_version: facts.version,
        server_connection_id: facts.connection,
        auth_plugin: login_method(context.parameters, session).to_owned(),
        protocol_mode: protocol_mode(context),
        tls_version: status("Ssl_version"),
        tls_cipher: status("Ssl_cipher"),
        tls_client_version: tls.map(|tls| tls.version.to_owned()),
        tls_client_cipher: tls.map(|tls| tls.cipher.to_owned()),
        tls_group: tls.and_then(|tls| tls.group.clone()),
        tls_retried: tls.map(|tls| tls.retried),
        tls_resumed: None,
        connect_round_trips: connect_round_trips(context.address, session),
        // Servers that report no algorithm have only zlib.
        compression: status("Compression")
            .map(|_| status("Compression_algorithm").unwrap_or_else(|| "zlib".to_owned())),
        compression_level: status("Compression")
            .and_then(|_| status("Compression_level"))
            .and_then(|level| level.parse().ok()),
        tcp_mss: is_tcp.then(|| max_segment(socket)).flatten(),
        tcp_nodelay: is_tcp.then(|| sockopt::tcp_nodelay(socket).ok()).flatten(),
        congestion_control: is_tcp
            .then(|| sockopt::tcp_congestion(socket).ok())
            .flatten(),
        driver: "",
        client_threads: context.threads,
        client_cpus: context.cpus.to_vec(),
    }
}

/// Facts about the server and the session, as the server reports them.
struct ServerFacts {
    version: String,
    connection: Option<u32>,
    status: BTreeMap<String, String>,
}

impl ServerFacts {
    fn unknown() -> Self {
        Self {
            version: store::UNKNOWN.to_owned(),
            connection: None,
            status: BTreeMap::new(),
        }
    }
}

fn query_server(
    context: ReceiptContext<'_>,
    socket: &OwnedFd,
    session: &mut Session,
) -> Result<ServerFacts, Failed> {
    let channel = &mut session.channel;
    let replies = &session.replies;
    match (&session.facts, context.parameters.program.commands()) {
        (Some(Facts::MySql(facts)), _) => Ok(ServerFacts {
            version: plain_version(&facts.greeting.version).to_owned(),
            connection: Some(facts.greeting.connection_id),
            status: query_status(
                context,
                socket,
                channel,
                replies,
                (STATUS_QUERY, STATUS_OPERATION),
            )?,
        }),
        (Some(Facts::Postgres(facts)), _) => {
            let query = (postgres::QUERY, postgres::OPERATION);
            let status = query_status(context, socket, channel, replies, query)?;
            Ok(ServerFacts {
                version: facts.version.clone(),
                connection: status.get("pid").and_then(|pid| pid.parse().ok()),
                status,
            })
        }
        (None, Some(commands)) => {
            let protocol = commands.protocol();
            let (version, connection) = store::query_store(context, socket, channel, protocol)?;
            Ok(ServerFacts {
                version,
                connection,
                status: BTreeMap::new(),
            })
        }
        (None, None) => Err(internal("a session without facts")),
    }
}

fn protocol_mode(context: ReceiptContext<'_>) -> &'static str {
    match (context.parameters.program.commands(), context.mode) {
        (Some(commands), _) => commands.protocol().name(),
        (None, PsMode::Auto) => "prepared",
        (None, PsMode::Disable) => "text",
        (None, PsMode::Multi) => "multi",
        (None, PsMode::Extended) => "extended",
    }
}

/// The authentication method of the session.
pub(crate) fn login_method(parameters: &LoginParameters<'_>, session: &Session) -> &'static str {
    match &session.facts {
        Some(Facts::MySql(facts)) => facts.auth_plugin,
        Some(Facts::Postgres(facts)) => facts.method,
        None if parameters.account.password.is_empty() => "none",
        None => "password",
    }
}

/// The version without the prefix "5.5.5-", which MariaDB adds for old replicas.
pub(crate) fn plain_version(version: &str) -> &str {
    version.strip_prefix("5.5.5-").unwrap_or(version)
}

/// The socket's path, or `host:port`; `None` for a Unix socket without a name.
pub(crate) fn socket_address(address: Option<SocketAddrAny>) -> Option<String> {
    let address = address?;
    if let Ok(unix) = net::SocketAddrUnix::try_from(address.clone()) {
        return unix
            .path_bytes()
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .filter(|path| !path.is_empty());
    }
    std::net::SocketAddr::try_from(address)
        .ok()
        .map(|address| address.to_string())
}

/// The address of the server as the job names it.
pub(crate) fn requested_address(target: &Target) -> String {
    match target {
        Target::Unix { path } => path.clone(),
        Target::Tcp { .. } => failure::target_name(target),
    }
}

/// Query status variables by name, over a connection on which nothing else is in flight.
fn query_status(
    context: ReceiptContext<'_>,
    socket: &OwnedFd,
    channel: &mut Channel,
    replies: &Replies,
    (sql, operation): (&str, &str),
) -> Result<BTreeMap<String, String>, Failed> {
    let (target, limit_ns) = (context.parameters.target, context.limit_ns);
    let mut packet = Vec::new();
    replies.query(&mut packet, sql.as_bytes());
    let (mut results, mut received_bytes, mut end) = (Results::for_replies(replies, true), 0, None);
    let mut exchange = Exchange {
        target,
        socket,
        channel,
        idle_timeout_ns: limit_ns,
        total_timeout_ns: limit_ns,
    };
    let outcome = exchange.request(&packet, operation, |bytes| {
        received_bytes += bytes.len();
        end = if received_bytes > MAX_STATUS_BYTES {
            let error = Malformed::Unexpected("more rows than were asked for");
            Err(ConnectionError::Malformed(error))
        } else {
            results.feed(bytes)
        }
        .map_err(|error| error.translate(target, None))?;
        Ok(end.is_some())
    });
    match (outcome, end) {
        (Err(failed), _) if failed.code == FailCode::Stalled => {
            let limit = TimeLimit::for_opening(limit_ns);
            let to_do = format!("answer {operation}");
            Err(failure::timed_out(target, &to_do, limit))
        }
        (Err(failed), _) => Err(failed),
        (Ok(()), Some(AnswerEnd::Failed(error))) => {
            Err(failure::statement_failed(target, operation, &error))
        }
        (Ok(()), _) => Ok(to_map(results.finish().1)),
    }
}

/// A map from rows of a name and a value; NULL becomes an empty text.
fn to_map(rows: Rows) -> BTreeMap<String, String> {
    let pairs = rows.into_iter().filter_map(|row| {
        let [name, value] = <[Option<String>; 2]>::try_from(row).ok()?;
        Some((name?, value.unwrap_or_default()))
    });
    pairs.collect()
}
