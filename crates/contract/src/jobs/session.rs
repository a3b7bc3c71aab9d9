//! Addresses of servers, and settings of sessions.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Rule;
use crate::{FailCode, Failed};

/// Address of a server: a Unix socket, or a numeric IP address and a port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// A Unix socket, of a server or to listen on.
    #[schemars(title = "UnixTarget")]
    Unix { path: String },
    /// Numeric IP address and port. Python resolves host names before it creates a job.
    #[schemars(title = "TcpTarget")]
    Tcp {
        host: String,
        #[schemars(range(min = 1))]
        port: u16,
    },
}

/// Address to listen on: a Unix socket, or a numeric IP address and a port. For port 0 the kernel chooses a free port.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Listen {
    /// A Unix socket, of a server or to listen on.
    #[schemars(title = "UnixTarget")]
    Unix { path: String },
    /// Numeric IP address and port to listen on. For port 0 the kernel chooses a free port.
    #[schemars(title = "TcpListen")]
    Tcp {
        host: String,
        #[serde(default)]
        port: u16,
    },
}

impl From<Listen> for Target {
    fn from(listen: Listen) -> Self {
        match listen {
            Listen::Unix { path } => Self::Unix { path },
            Listen::Tcp { host, port } => Self::Tcp { host, port },
        }
    }
}

/// Parse `host` as a numeric IP address.
pub fn parse_numeric_address(host: &str) -> Result<IpAddr, Failed> {
    host.parse().map_err(|_| {
        Failed::new(
            FailCode::BadJob,
            format!("`{host}` is not a numeric IP address"),
            "Correct the address.",
        )
    })
}

/// Combine address and port. The zone of a link-local address is the index of a network interface, as in `fe80::1%2`.
pub fn socket_address(host: &str, port: u16) -> Option<SocketAddr> {
    let zoned = || format!("[{host}]:{port}").parse::<SocketAddrV6>();
    match host.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, port)),
        Err(_) => zoned().ok().map(SocketAddr::V6),
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TlsVersions {
    #[default]
    #[serde(rename = "any")]
    Any,
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TlsVerify {
    #[default]
    None,
    /// The certificate must be signed by an authority in `ca_file`.
    Ca,
    /// As `ca`, and the certificate must also be valid for `server_name`.
    Full,
    /// As `full`, or the server must prove that it knows the account's password, as MariaDB does since version 11.4. `ca_file` is then
    /// optional.
    Password,
}

/// Use of SCRAM channel binding, which ties the login to the server's certificate (PostgreSQL's SCRAM-SHA-256-PLUS). The values are
/// those of libpq's `channel_binding`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChannelBinding {
    Disable,
    /// Use channel binding if the server offers it.
    #[default]
    Prefer,
    /// Fail any login without channel binding.
    Require,
}

/// TLS settings of a session. Unless TLS is `optional`, a session with a server that does not support it fails.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools)] // independent settings of one message
pub struct Tls {
    pub versions: TlsVersions,
    /// How the server is verified. `ca`: its certificate is signed by an authority in `ca_file`. `full`: the certificate is also valid
    /// for `server_name`. `password`: as `full`, or the server proves that it knows the password.
    pub verify: TlsVerify,
    pub ca_file: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    /// Cipher suite by its IANA or OpenSSL name. None: the preference of both sides decides.
    pub cipher: Option<String>,
    /// Whether later connections may resume the TLS session of an earlier one.
    pub resumption: bool,
    /// Host name or address of the server as the user specified it. With `full`, the certificate must be valid for it. A host name is
    /// also sent to the server if `sni` is set.
    pub server_name: Option<String>,
    /// Whether to send the host name to the server (SNI). Addresses are never sent.
    pub sni: bool,
    /// Whether to begin TLS without a preceding `SSLRequest` (`sslnegotiation=direct`), which PostgreSQL supports since version 17.
    pub direct: bool,
    /// Whether to continue without TLS if the server does not offer it, as the clients of MySQL and PostgreSQL do by default. For
    /// Redis and Memcached, whose protocols do not negotiate TLS, TLS remains required.
    pub optional: bool,
    pub channel_binding: ChannelBinding,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            versions: TlsVersions::Any,
            verify: TlsVerify::None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            cipher: None,
            resumption: true,
            server_name: None,
            sni: true,
            direct: false,
            optional: false,
            channel_binding: ChannelBinding::Prefer,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    #[default]
    Zlib,
    Zstd,
}

/// Required compression of the protocol. If `level` is None, it is 6 for zlib and 3 for zstd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Compression {
    pub algorithm: Algorithm,
    #[schemars(range(min = 1, max = 22))]
    pub level: Option<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Connect {
    #[default]
    Persistent,
    PerTransaction,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    #[default]
    Stop,
    Reconnect,
    /// End the measured window and report it.
    End,
}

/// Settings of a session with the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Session")]
pub struct SessionJob {
    pub tls: Option<Tls>,
    pub compression: Option<Compression>,
    /// PEM file with the server's RSA public key, for full `caching_sha2_password` authentication over TCP without TLS.
    pub server_key_file: Option<String>,
    /// Whether to request the RSA key from the server if there is no such file. The key is not verified.
    pub fetch_server_key: bool,
    /// Whether the password may be sent in clear text inside the protocol when the server requests it: as `mysql_clear_password` over
    /// TLS or a Unix socket, and, to PostgreSQL too, over TLS without verification of the certificate. It is never sent over TCP
    /// without TLS.
    pub allow_cleartext_password: bool,
    /// Whether to request `CLIENT_MULTI_STATEMENTS`, as sysbench does.
    pub multi_statements: bool,
    /// PostgreSQL only: number of statements of a transaction that are sent together, followed by one Sync message. A transaction that
    /// consists of one statement is sent this many times.
    #[schemars(range(min = 1, max = 1000))]
    pub pipeline: u16,
    pub connect: Connect,
    /// Number of transactions after which a connection is closed and reopened. No latency includes this. 0: never.
    pub reconnect_after: u64,
    /// Reaction to a connection that is lost under load. `stop`: the job fails. `reconnect`: the connection is reopened, for at most
    /// `connect_timeout_ns`. `end`: the measured window ends and is reported with the reason, also for a stalled connection; during
    /// the warm-up the job fails.
    pub on_disconnect: OnDisconnect,
    /// PostgreSQL only: settings of the session that are sent with the login, as libpq's `options`.
    pub options: String,
}

impl Default for SessionJob {
    fn default() -> Self {
        Self {
            tls: None,
            compression: None,
            server_key_file: None,
            fetch_server_key: false,
            allow_cleartext_password: false,
            multi_statements: true,
            pipeline: 1,
            connect: Connect::Persistent,
            reconnect_after: 0,
            on_disconnect: OnDisconnect::Stop,
            options: String::new(),
        }
    }
}

impl SessionJob {
    pub(super) fn rules(&self) -> Vec<Rule> {
        let tls = self.tls.as_ref();
        vec![
            (
                tls.is_none_or(|tls| {
                    matches!(tls.verify, TlsVerify::None | TlsVerify::Password)
                        || tls.ca_file.is_some()
                }),
                "verify=ca and verify=full need ca_file",
            ),
            (
                tls.is_none_or(|tls| {
                    matches!(tls.verify, TlsVerify::None | TlsVerify::Ca)
                        || tls.server_name.is_some()
                }),
                "verify=full and verify=password need server_name",
            ),
            (
                tls.is_none_or(|tls| tls.cert_file.is_some() == tls.key_file.is_some()),
                "cert_file and key_file are only valid together",
            ),
            (
                tls.is_none_or(|tls| !tls.optional || tls.verify == TlsVerify::None && !tls.direct),
                "optional TLS is neither verified nor direct",
            ),
        ]
    }
}

/// System interface that serves the sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// Use `io_uring` if the kernel supports it and it pays off, otherwise epoll.
    #[default]
    Auto,
    Epoll,
    IoUring,
}

#[cfg(test)]
mod tests {
    use super::socket_address;

    #[test]
    fn a_zone_is_the_number_of_an_interface() {
        let address = socket_address("fe80::1%2", 5).map(|address| address.to_string());
        assert_eq!(address.as_deref(), Some("[fe80::1%2]:5"));
        assert!(socket_address("::1", 5).is_some() && socket_address("127.0.0.1", 5).is_some());
        assert!(socket_address("fe80::1%eth0", 5).is_none() && socket_address("db", 5).is_none());
    }
}
