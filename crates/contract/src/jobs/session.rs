//! The addresses of servers, and the settings of a session with one.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Rule;
use crate::{FailCode, Failed};

/// A server by Unix socket or by numeric address and port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// A server, or the near end of a forwarder, on a Unix socket.
    #[schemars(title = "UnixTarget")]
    Unix { path: String },
    /// A server by numeric address; names are resolved before a job is made.
    #[schemars(title = "TcpTarget")]
    Tcp {
        host: String,
        #[schemars(range(min = 1))]
        port: u16,
    },
}

/// Where to listen, by numeric address; port 0: the kernel chooses one.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Listen {
    /// A server, or the near end of a forwarder, on a Unix socket.
    #[schemars(title = "UnixTarget")]
    Unix { path: String },
    /// Where to listen, by numeric address; port 0: the kernel chooses one.
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

/// Parse a `host`, which must be a numeric address.
pub fn parse_numeric_address(host: &str) -> Result<IpAddr, Failed> {
    host.parse().map_err(|_| {
        Failed::new(
            FailCode::BadJob,
            format!("`{host}` is no numeric address"),
            "Correct the address.",
        )
    })
}

/// Address and port; the zone of a link-local address is the number of its interface, as in `fe80::1%2`.
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
    /// Signed by an authority of `ca_file`.
    Ca,
    /// And made out to `server_name`.
    Full,
    /// As under `full`, or proven by the account's password, as MariaDB does from version 11.4 on. `ca_file` may be missing.
    Password,
}

/// SCRAM bound to the server's certificate (PostgreSQL's SCRAM-SHA-256-PLUS), as libpq's `channel_binding`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChannelBinding {
    Disable,
    /// Where the server offers it.
    #[default]
    Prefer,
    /// Any other login is refused.
    Require,
}

/// Encryption that must be had, unless it is `optional`: a server that cannot is refused, never spoken to in plain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools)] // independent settings of one message
pub struct Tls {
    pub versions: TlsVersions,
    /// `ca`: signed by an authority of `ca_file`; `full`: and made out to `server_name`; `password`: or proven by the password.
    pub verify: TlsVerify,
    pub ca_file: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    /// A cipher suite by its IANA or OpenSSL name; None: what both sides prefer.
    pub cipher: Option<String>,
    /// Later connections may resume the session of an earlier one.
    pub resumption: bool,
    /// The server's name or address as the user gave it. The certificate must carry it under `full`; a name is sent to the server.
    pub server_name: Option<String>,
    /// Send the name (SNI); addresses are never sent.
    pub sni: bool,
    /// PostgreSQL from version 17 on: TLS begins with the first byte, and is not asked for (`sslnegotiation=direct`).
    pub direct: bool,
    /// A server that offers no TLS is spoken to without it, as the clients of MySQL and PostgreSQL do by default. For Redis and
    /// Memcached, which are not asked, it must be had.
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

/// Protocol compression that must be had. `level` None: zlib 6, zstd 3.
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
    /// The window ends there and is reported.
    End,
}

/// How each connection talks to the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Session")]
pub struct SessionJob {
    pub tls: Option<Tls>,
    pub compression: Option<Compression>,
    /// PEM of the server's RSA key, for a full `caching_sha2_password` login over plain TCP.
    pub server_key_file: Option<String>,
    /// Without that file, ask the server for its key: the key of whoever answers.
    pub fetch_server_key: bool,
    /// The password itself may leave when the server asks for it: by `mysql_clear_password` over TLS or a Unix socket, and over
    /// TLS whose certificate is not verified, to PostgreSQL too. Never in clear over plain TCP.
    pub allow_cleartext_password: bool,
    /// Ask for `CLIENT_MULTI_STATEMENTS`, as sysbench does.
    pub multi_statements: bool,
    /// PostgreSQL only: so many statements of a transaction leave at once, with one Sync at their end. A transaction of a single
    /// statement is repeated as often.
    #[schemars(range(min = 1, max = 1000))]
    pub pipeline: u16,
    pub connect: Connect,
    /// Transactions after which a connection is closed and opened anew, outside every latency; 0: never.
    pub reconnect_after: u64,
    /// A connection lost under load fails the job (`stop`), is opened again until `connect_timeout_ns` has passed
    /// (`reconnect`), or ends the measured window there, which is reported with its reason (`end`, for a stalled one
    /// too; in the warm-up the job fails).
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
                "verify needs ca_file",
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
                "cert_file and key_file come together",
            ),
            (
                tls.is_none_or(|tls| !tls.optional || tls.verify == TlsVerify::None && !tls.direct),
                "optional TLS is neither verified nor direct",
            ),
        ]
    }
}

/// Who serves the sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// `io_uring` where the kernel has it and it pays, else epoll.
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
