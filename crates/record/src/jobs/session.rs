//! Where and through which session, as `load_job.py` defines it.

use serde::Deserialize;

use super::Rule;

/// A server by Unix socket or by numeric address and port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    Unix { path: String },
    Tcp { host: String, port: u16 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum TlsVersions {
    #[default]
    #[serde(rename = "any")]
    Any,
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsVerify {
    #[default]
    None,
    /// Signed by an authority of `ca_file`.
    Ca,
    /// And made out to `server_name`.
    Full,
}

/// Encryption that must be had.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    pub versions: TlsVersions,
    pub verify: TlsVerify,
    pub ca_file: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub cipher: Option<String>,
    pub resumption: bool,
    pub server_name: Option<String>,
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
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    #[default]
    Zlib,
    Zstd,
}

/// Protocol compression that must be had. `level` none: zlib 6, zstd 3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Compression {
    pub algorithm: Algorithm,
    pub level: Option<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connect {
    #[default]
    Persistent,
    PerTransaction,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    #[default]
    Stop,
    Reconnect,
    /// The window ends there and is told.
    End,
}

/// How each connection talks to the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionJob {
    pub tls: Option<Tls>,
    pub compression: Option<Compression>,
    pub server_key_file: Option<String>,
    pub fetch_server_key: bool,
    pub multi_statements: bool,
    pub connect: Connect,
    pub reconnect_after: u64,
    pub on_disconnect: OnDisconnect,
}

impl Default for SessionJob {
    fn default() -> Self {
        Self {
            tls: None,
            compression: None,
            server_key_file: None,
            fetch_server_key: true,
            multi_statements: true,
            connect: Connect::Persistent,
            reconnect_after: 0,
            on_disconnect: OnDisconnect::Stop,
        }
    }
}

impl SessionJob {
    pub(super) fn rules(&self) -> Vec<Rule> {
        let tls = self.tls.as_ref();
        vec![
            (
                tls.is_none_or(|tls| tls.verify == TlsVerify::None || tls.ca_file.is_some()),
                "verify needs ca_file",
            ),
            (
                tls.is_none_or(|tls| tls.verify != TlsVerify::Full || tls.server_name.is_some()),
                "verify=full needs server_name",
            ),
            (
                tls.is_none_or(|tls| tls.cert_file.is_some() == tls.key_file.is_some()),
                "cert_file and key_file come together",
            ),
            (
                self.compression
                    .and_then(|compression| compression.level)
                    .is_none_or(|level| (1..=22).contains(&level)),
                "a compression level is 1..22",
            ),
        ]
    }
}

/// Who serves the sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// `io_uring` where the kernel has it and it pays, else epoll.
    #[default]
    Auto,
    Epoll,
    IoUring,
}
