//! PostgreSQL's own view of the first connection.

use std::collections::BTreeMap;

/// Query for facts of the session as names and values, like MySQL's status variables.
pub(super) const QUERY: &str = "SELECT v.n, v.v FROM pg_stat_activity a LEFT JOIN pg_stat_ssl s ON s.pid = a.pid, \
     LATERAL (VALUES ('pid', a.pid::text), ('Ssl_version', s.version), ('Ssl_cipher', s.cipher), \
     ('host', host(inet_server_addr())), ('port', inet_server_port()::text)) AS v(n, v) WHERE a.pid = pg_backend_pid()";
/// The query's name in messages.
pub(super) const OPERATION: &str = "the question what the session is";

/// Address of the server's end of the connection; `None` on a Unix socket.
pub(super) fn server_address(status: &BTreeMap<String, String>) -> Option<String> {
    let value = |name| status.get(name).filter(|value| !value.is_empty());
    let (host, port) = (value("host")?, value("port")?);
    Some(if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    })
}
