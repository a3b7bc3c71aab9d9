//! Translates errors of connections into the contract's failures.

use std::io;

use howfar_contract::jobs::{Protocol, Target};
use howfar_contract::{FailCode, Failed};
use howfar_wire::keyvalue::{self, ErrorReply};
use howfar_wire::mysql::auth::AuthError;
use howfar_wire::mysql::{Malformed, ServerError};
use howfar_wire::postgres;
use howfar_wire::recognise::{FirstBytes, PeerProtocol};

/// Codes of server errors that end the session: shutdown, killed connection, idle timeout.
const SESSION_END_CODES: [&str; 9] = [
    "1053", "1077", "1079", "1927", "4031", "57P01", "57P02", "57P05", "25P03",
];

const SESSION_ENDED_ADVICE: &str =
    "The server shuts down, or ends sessions: look into its error log.";

/// A target's name in messages.
pub(crate) fn target_name(target: &Target) -> String {
    match target {
        Target::Unix { path } => format!("the socket {path}"),
        Target::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        Target::Tcp { host, port } => format!("{host}:{port}"),
    }
}

pub(crate) fn connect_failed(target: &Target, error: &io::Error) -> Failed {
    let advice = match (error.kind(), target) {
        (io::ErrorKind::NotFound, Target::Unix { .. }) => {
            "Start the server, or name the socket that it listens on (MySQL: SELECT @@socket; PostgreSQL: SHOW unix_socket_directories)."
        }
        (io::ErrorKind::PermissionDenied, _) => {
            "Run as a user who may write to the socket and enter every directory above it."
        }
        (io::ErrorKind::ConnectionRefused, _) => {
            "Nothing listens there: start the server, or correct the address."
        }
        (io::ErrorKind::AddrNotAvailable, Target::Tcp { .. }) => {
            "All local ports to that address are in use, most of them by connections that were closed in the last minute: use the Unix \
             socket, keep connections, or widen net.ipv4.ip_local_port_range."
        }
        _ => "Check that the server runs and can be reached from here.",
    };
    Failed::new(
        FailCode::Connect,
        format!("connecting to {} failed: {error}", target_name(target)),
        advice,
    )
}

/// A time limit for connecting, and the option that sets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimit {
    pub(crate) ns: u64,
    option: &'static str,
}

impl TimeLimit {
    /// The limit for all steps of opening a load's connection together.
    pub(crate) fn for_opening(ns: u64) -> Self {
        let option = "--thread-init-timeout";
        Self { ns, option }
    }

    /// The limit for each step of opening a timed connection.
    pub(crate) fn for_step(ns: u64) -> Self {
        let option = "--timeout";
        Self { ns, option }
    }
}

pub(crate) fn timed_out(target: &Target, to_do: &str, limit: TimeLimit) -> Failed {
    Failed::new(
        FailCode::Connect,
        format!(
            "{} did not {to_do} within {:.1} s",
            target_name(target),
            limit.ns as f64 / 1e9
        ),
        format!(
            "Check that the server runs, accepts logins, and is of the kind that was named: one of another kind may wait in silence. Or \
             allow more time to connect ({}).",
            limit.option
        ),
    )
}

/// The protocol that a client expects in the first bytes of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedProtocol {
    pub(crate) protocol: PeerProtocol,
    /// Whether TLS begins with the first byte.
    pub(crate) begins_with_tls: bool,
}

/// The failure of a server whose first bytes show that it speaks another protocol than expected; `None` if they do not show this.
pub(crate) fn other_protocol(
    target: &Target,
    expected: ExpectedProtocol,
    first_bytes: &FirstBytes,
) -> Option<Failed> {
    let recognised = first_bytes.recognise()?;
    let is_expected = match recognised {
        PeerProtocol::Tls => expected.begins_with_tls,
        PeerProtocol::Redis | PeerProtocol::Memcached => {
            recognised == expected.protocol && !expected.begins_with_tls
        }
        _ => recognised == expected.protocol,
    };
    if is_expected {
        return None;
    }
    let (description, advice) = match recognised {
        PeerProtocol::MySql => (
            "speaks the protocol of MySQL and MariaDB",
            "Begin the address with mysql://.",
        ),
        PeerProtocol::Postgres => (
            "speaks the protocol of PostgreSQL",
            "Begin the address with postgresql://.",
        ),
        PeerProtocol::Redis => (
            "speaks the protocol of Redis",
            "Begin the address with redis://.",
        ),
        PeerProtocol::Memcached => (
            "speaks the protocol of Memcached",
            "Begin the address with memcached://.",
        ),
        PeerProtocol::Tls => (
            "expects TLS from the first byte",
            tls_first_advice(expected.protocol),
        ),
        PeerProtocol::Ssh => ("is an SSH server", CORRECT_PORT),
        PeerProtocol::Http => ("is a web server (HTTP)", CORRECT_PORT),
        PeerProtocol::Mail => ("is a mail or FTP server", CORRECT_PORT),
    };
    let tls_note = if recognised == expected.protocol {
        ", without TLS"
    } else {
        ""
    };
    Some(Failed::new(
        FailCode::OtherProtocol,
        format!("{} {description}{tls_note}", target_name(target)),
        advice,
    ))
}

/// Advice for a server that expects TLS from the first byte: how its address requests that.
fn tls_first_advice(protocol: PeerProtocol) -> &'static str {
    match protocol {
        PeerProtocol::Redis => "Begin the address with rediss://.",
        PeerProtocol::Memcached => "Begin the address with memcacheds://.",
        PeerProtocol::Postgres => "Add ?sslmode=require&sslnegotiation=direct to the address.",
        _ => CORRECT_PORT,
    }
}

const CORRECT_PORT: &str = "Correct the port: 3306 is usual for MySQL, 5432 for PostgreSQL, 6379 for Redis, 11211 for Memcached.";

pub(crate) fn malformed_mysql(target: &Target, error: Malformed) -> Failed {
    Failed::new(
        FailCode::Protocol,
        format!(
            "{} does not follow the MySQL protocol: {error}",
            target_name(target)
        ),
        "Check that the address is that of a MySQL or MariaDB server, and that nothing in between changes the bytes.",
    )
}

/// The server sent bytes that do not follow PostgreSQL's protocol.
pub(crate) fn malformed_postgres(target: &Target, error: postgres::Malformed) -> Failed {
    if error == postgres::Malformed::CopyIn {
        return Failed::new(
            FailCode::ServerError,
            format!(
                "{} asks for the rows of a COPY, and a workload has none to give",
                target_name(target)
            ),
            "Use INSERT in place of COPY FROM STDIN; COPY TO STDOUT works.",
        );
    }
    Failed::new(
        FailCode::Protocol,
        format!(
            "{} does not follow the PostgreSQL protocol: {error}",
            target_name(target)
        ),
        "Check that the address is that of a PostgreSQL server, and that nothing in between changes the bytes.",
    )
}

/// The server sent bytes that do not follow the protocol of a key-value store.
pub(crate) fn malformed_key_value(
    target: &Target,
    protocol: Option<Protocol>,
    error: &keyvalue::Malformed,
) -> Failed {
    let name = match protocol {
        Some(Protocol::Resp2 | Protocol::Resp3) => "the Redis protocol",
        Some(Protocol::MemcachedText | Protocol::MemcachedMeta) => "the Memcached protocol",
        None => "the expected protocol",
    };
    Failed::new(
        FailCode::Protocol,
        format!("{} does not follow {name}: {error}", target_name(target)),
        "Check that the address is that of such a server, that TLS is used if the server expects it, and that nothing in between changes the bytes.",
    )
}

/// The server closed a connection. `when` follows in the message, such as `in the middle of the load`.
pub(crate) fn connection_closed(target: &Target, when: &str) -> Failed {
    Failed::new(
        FailCode::ServerGone,
        format!("{} closed the connection {when}", target_name(target)),
        "Look into the server's error log: it may have crashed, run out of memory, or ended the session.",
    )
}

/// The server reports, without a request, that it ends a session.
pub(crate) fn session_ended(target: &Target, error: &ServerError) -> Failed {
    Failed::new(
        FailCode::ServerGone,
        format!("{} ended the session: {error}", target_name(target)),
        SESSION_ENDED_ADVICE,
    )
}

/// An I/O error on an open connection.
pub(crate) fn connection_broken(target: &Target, error: &io::Error) -> Failed {
    let mut failed = connection_closed(target, "");
    failed.message = format!("the connection to {} broke: {error}", target_name(target));
    failed
}

pub(crate) fn stalled(target: &Target, connection: u64, operation: &str, limit_ns: u64) -> Failed {
    Failed::new(
        FailCode::Stalled,
        format!(
            "connection {connection} to {} waited more than {:.1} s for the answer to a {operation}",
            target_name(target),
            limit_ns as f64 / 1e9
        ),
        "Check the server and the link between for a hang, or allow a longer wait (--stall-timeout).",
    )
}

/// The server answered a login with an error.
pub(crate) fn login_failed(target: &Target, user: &str, error: &ServerError) -> Failed {
    let (code, advice) = match error.code.to_string().as_str() {
        "1040" | "1203" | "1226" | "53300" => (
            FailCode::ServerError,
            "Raise the server's max_connections, or use fewer connections.",
        ),
        "1129" | "1130" => (
            FailCode::ServerError,
            "The server refuses this host: allow it, or run FLUSH HOSTS there.",
        ),
        "57P03" => (
            FailCode::ServerError,
            "The server starts up or recovers: try again when it accepts connections.",
        ),
        code if SESSION_END_CODES.contains(&code) => (FailCode::ServerGone, SESSION_ENDED_ADVICE),
        "1049" | "3D000" => (
            FailCode::ServerError,
            "Create the database, or name another.",
        ),
        "1044" | "42501" => (
            FailCode::Auth,
            "Give the account privileges on the database, or name another.",
        ),
        _ => (
            FailCode::Auth,
            "Check user and password, and that the account may log in from here.",
        ),
    };
    Failed::new(
        code,
        format!(
            "{} refused the login of `{user}`: {error}",
            target_name(target)
        ),
        advice,
    )
}

/// The client refuses to continue a login to MySQL.
pub(crate) fn login_abandoned(target: &Target, user: &str, reason: AuthError) -> Failed {
    let name = target_name(target);
    let (message, advice) = match reason {
        AuthError::Malformed(error) => return malformed_mysql(target, error),
        AuthError::Plugin(plugin) => (
            format!("{name} wants `{user}` to log in by {plugin}, which howfar does not support"),
            "Use an account with mysql_native_password, caching_sha2_password, ed25519 or parsec.",
        ),
        AuthError::Clear(plugin) => (
            format!(
                "{name} wants the password of `{user}` in clear ({plugin}), and the channel is not encrypted: it was not sent"
            ),
            "Ask for TLS that is verified (ssl-mode=VERIFY_CA) or connect by the Unix socket, and allow it (--allow-cleartext-password).",
        ),
        AuthError::NoConsent(plugin) => (
            format!(
                "{name} wants the password of `{user}` itself ({plugin}), which is not allowed: it was not sent"
            ),
            "If that server may have the password, allow it (--allow-cleartext-password).",
        ),
        AuthError::Unverified => (
            format!(
                "{name} wants the password of `{user}` itself, because its digest is not in the server's cache, and the certificate was not verified: it was not sent"
            ),
            "Verify the server (ssl-mode=VERIFY_CA with ssl-ca), or allow it to whoever answers (--allow-cleartext-password).",
        ),
        AuthError::NoKey => (
            format!(
                "{name} wants the password of `{user}` itself, because its digest is not in the server's cache, and the channel is not encrypted: it was not sent"
            ),
            "Ask for TLS that is verified (ssl-mode=VERIFY_CA), name the server's public key (server-public-key-path), or allow it to be fetched (--get-server-public-key).",
        ),
        AuthError::Key(why) => (
            format!("the public key for the login of `{user}` at {name} cannot be used: {why}"),
            "Name the server's own RSA public key in PEM, or ask for TLS instead.",
        ),
        AuthError::NoRandomness => (
            format!("the system gave no random bytes for the login of `{user}` at {name}"),
            "Check that /dev/urandom or getrandom can be used here.",
        ),
    };
    Failed::new(FailCode::Auth, message, advice)
}

/// The client refuses to continue a login to PostgreSQL.
pub(crate) fn postgres_login_abandoned(
    target: &Target,
    user: &str,
    reason: postgres::auth::AuthError,
) -> Failed {
    use postgres::auth::AuthError;
    let name = target_name(target);
    let (message, advice) = match reason {
        AuthError::Malformed(error) => return malformed_postgres(target, error),
        AuthError::Method(method) => (
            format!("{name} wants `{user}` to log in by {method}, which howfar does not support"),
            "Let the account log in by scram-sha-256, md5, password, peer or trust (pg_hba.conf).",
        ),
        AuthError::Clear => (
            format!(
                "{name} wants the password of `{user}` in clear, and the channel is not encrypted: it was not sent"
            ),
            "Let the account log in by scram-sha-256 (pg_hba.conf), or ask for TLS that is verified (sslmode=verify-ca).",
        ),
        AuthError::Unverified => (
            format!(
                "{name} wants the password of `{user}` itself, and the certificate was not verified: it was not sent"
            ),
            "Verify the server (sslmode=verify-ca with sslrootcert), or allow it to whoever answers (--allow-cleartext-password).",
        ),
        AuthError::Unbound => (
            format!(
                "{name} does not bind the login of `{user}` to its certificate, which is required"
            ),
            "Let the account log in by scram-sha-256 over TLS that ends at the server, or use channel_binding=prefer.",
        ),
        AuthError::NoBinding => (
            format!(
                "the login of `{user}` at {name} cannot be bound to a certificate, which is required"
            ),
            "Ask for TLS (sslmode=require or higher); certificates signed by Ed25519 or RSA-PSS cannot be bound to. Or use channel_binding=prefer.",
        ),
        AuthError::NoPassword => (
            format!("{name} wants a password of `{user}`, and none was given"),
            "Use --password-file, HOWFAR_PASSWORD, PGPASSWORD or ~/.pgpass.",
        ),
        AuthError::Iterations(count) => (
            format!("{name} asks for {count} rounds to prove the password of `{user}`"),
            "Lower the server's scram_iterations and set the password again.",
        ),
        AuthError::Impostor => (
            format!("{name} did not prove that it knows the password of `{user}`"),
            "Check that the address is that of your server: somebody may intercept the connection.",
        ),
    };
    Failed::new(FailCode::Auth, message, advice)
}

/// The server answered a statement with an error.
pub(crate) fn statement_failed(target: &Target, operation: &str, error: &ServerError) -> Failed {
    let code_text = error.code.to_string();
    let advice = match code_text.as_str() {
        "1146" | "42P01" => {
            "Load the tables first (`howfar load … prepare`, sysbench's, or `pgbench -i`), at least as many, or of the scale, as asked for."
        }
        "26000" | "42P05" => {
            "A pooler between gives statements to other sessions than the one that prepared them: use --db-ps-mode=extended, or session pooling."
        }
        "1461" => {
            "Raise the server's max_prepared_stmt_count: connections times statements are needed."
        }
        "1142" | "1044" | "42501" => "Give the account the SELECT privilege on the tables.",
        code if SESSION_END_CODES.contains(&code) => SESSION_ENDED_ADVICE,
        _ => "Look the error up in the server's documentation; its error log may say more.",
    };
    let code = if SESSION_END_CODES.contains(&code_text.as_str()) {
        FailCode::ServerGone
    } else {
        FailCode::ServerError
    };
    Failed::new(
        code,
        format!("{} answered {operation} with {error}", target_name(target)),
        advice,
    )
}

/// The server answered a command with an error.
pub(crate) fn command_failed(target: &Target, operation: &str, error_reply: &ErrorReply) -> Failed {
    let (code, advice) = match error_reply.word.name() {
        "NOAUTH" | "WRONGPASS" => (FailCode::Auth, "Check user and password."),
        "NOPERM" => (
            FailCode::Auth,
            "Give the user the right to these commands and keys (ACL SETUSER).",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => (
            FailCode::ServerError,
            "This is a cluster, whose slots are not followed here: use a server that holds all keys, or count errors (on_error).",
        ),
        "OOM" | "SERVER_ERROR" => (
            FailCode::ServerError,
            "Give the server more memory, let it evict, or use fewer or shorter values; on_error=count goes on.",
        ),
        "LOADING" => (
            FailCode::ServerError,
            "The server still reads its data: begin when it has.",
        ),
        _ => (
            FailCode::ServerError,
            "Look the error up in the server's documentation; on_error=count goes on.",
        ),
    };
    let kind = operation.strip_prefix("command.").unwrap_or(operation);
    Failed::new(
        code,
        format!(
            "{} answered a {kind} with {error_reply}",
            target_name(target)
        ),
        advice,
    )
}
