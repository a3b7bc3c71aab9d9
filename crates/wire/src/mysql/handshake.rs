//! The server's greeting and the client's login. TLS and compression are requested only if the caller requests them; a server that
//! lacks them is then refused before anything is sent.

use super::Malformed;
use super::compress::Algorithm;
use super::frame::write_packet;
use super::read::Fields;

pub(super) const LONG_PASSWORD: u32 = 1;
pub(super) const LONG_FLAG: u32 = 1 << 2;
pub(super) const CONNECT_WITH_DB: u32 = 1 << 3;
const COMPRESS: u32 = 1 << 5;
pub(super) const PROTOCOL_41: u32 = 1 << 9;
const SSL: u32 = 1 << 11;
pub(super) const TRANSACTIONS: u32 = 1 << 13;
pub(super) const SECURE_CONNECTION: u32 = 1 << 15;
const MULTI_STATEMENTS: u32 = 1 << 16;
pub(super) const MULTI_RESULTS: u32 = 1 << 17;
pub(super) const PS_MULTI_RESULTS: u32 = 1 << 18;
pub(super) const PLUGIN_AUTH: u32 = 1 << 19;
const COMPRESS_ZSTD: u32 = 1 << 26;
/// MariaDB's extended capability: definitions of a prepared statement's columns are sent again only if they have changed.
pub(super) const CACHE_METADATA: u32 = 1 << 4;

/// Capabilities that every session uses if the server offers them.
const BASE_CAPABILITIES: u32 = LONG_PASSWORD
    | LONG_FLAG
    | CONNECT_WITH_DB
    | PROTOCOL_41
    | TRANSACTIONS
    | SECURE_CONNECTION
    | MULTI_RESULTS
    | PS_MULTI_RESULTS
    | PLUGIN_AUTH;

/// The largest packet that the client announces to accept.
const MAX_PACKET_BYTES: u32 = 1 << 24;
pub(super) const UTF8MB4_GENERAL_CI: u8 = 45;
pub(super) const SCRAMBLE_BYTES: usize = 20;

/// The server's first packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    pub version: String,
    pub connection_id: u32,
    pub capabilities: u32,
    /// MariaDB's further capabilities; 0 for MySQL.
    pub extended_capabilities: u32,
    pub scramble: [u8; SCRAMBLE_BYTES],
    pub plugin: String,
}

impl Greeting {
    /// Parse a greeting; `payload` is a complete packet that is not an ERR.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        let protocol = fields.byte("protocol version")?;
        if protocol != 10 {
            return Err(Malformed::Version(protocol));
        }
        let version = fields.terminated_string("server version")?;
        let connection_id = fields.integer(4, "connection id")? as u32;
        let mut scramble = [0; SCRAMBLE_BYTES];
        scramble[..8].copy_from_slice(fields.take(8, "scramble")?);
        fields.byte("filler")?;
        let low = fields.integer(2, "capabilities")? as u32;
        fields.take(1 + 2, "character set and status")?;
        let capabilities = low | ((fields.integer(2, "upper capabilities")? as u32) << 16);
        fields.take(1 + 6, "scramble length")?;
        let extended_capabilities = fields.integer(4, "extended capabilities")? as u32;
        if capabilities & (PROTOCOL_41 | SECURE_CONNECTION) != PROTOCOL_41 | SECURE_CONNECTION {
            return Err(Malformed::Unexpected("the server is older than MySQL 4.1"));
        }
        scramble[8..].copy_from_slice(fields.take(SCRAMBLE_BYTES - 8, "scramble")?);
        // A zero byte that is not part of the scramble follows it; the name's own may be missing.
        fields.byte("end of scramble")?;
        let name = fields.0.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Self {
            version: String::from_utf8_lossy(version).into_owned(),
            connection_id,
            capabilities,
            // MySQL sets the lowest bit and leaves these bytes zero; MariaDB clears the bit to show that the bytes are valid.
            extended_capabilities: if capabilities & LONG_PASSWORD == 0 {
                extended_capabilities
            } else {
                0
            },
            scramble,
            plugin: String::from_utf8_lossy(name).into_owned(),
        })
    }

    /// The session with this server in the plain protocol.
    pub fn session(&self) -> Session {
        Session {
            capabilities: BASE_CAPABILITIES & self.capabilities,
            extended_capabilities: CACHE_METADATA & self.extended_capabilities,
            compression: None,
        }
    }

    /// Whether the server offers TLS to clients that request it.
    pub fn offers_tls(&self) -> bool {
        self.capabilities & SSL != 0
    }

    /// The session with this server that has the `requested` features. Fails if the server lacks one.
    pub fn session_with(&self, requested: RequestedFeatures) -> Result<Session, MissingFeature> {
        let mut capabilities = BASE_CAPABILITIES;
        let mut require = |bit: u32, missing: MissingFeature| {
            capabilities |= bit;
            if self.capabilities & bit == 0 {
                Err(missing)
            } else {
                Ok(())
            }
        };
        if requested.tls {
            require(SSL, MissingFeature::Tls)?;
        }
        match requested.compression {
            None => {}
            Some(algorithm @ Algorithm::Zlib { .. }) => {
                require(COMPRESS, MissingFeature::Compression(algorithm))?;
            }
            Some(algorithm @ Algorithm::Zstd { .. }) => {
                require(COMPRESS_ZSTD, MissingFeature::Compression(algorithm))?;
            }
        }
        if requested.multi_statements {
            capabilities |= MULTI_STATEMENTS;
        }
        Ok(Session {
            capabilities: capabilities & self.capabilities,
            compression: requested.compression,
            ..self.session()
        })
    }
}

/// Features requested beyond the plain protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedFeatures {
    pub tls: bool,
    pub compression: Option<Algorithm>,
    /// Used only if the server offers it; otherwise the statements themselves fail.
    pub multi_statements: bool,
}

/// A requested feature that a server does not offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingFeature {
    Tls,
    Compression(Algorithm),
}

/// The features that client and server agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub capabilities: u32,
    pub extended_capabilities: u32,
    compression: Option<Algorithm>,
}

impl Session {
    /// Append the packet that begins TLS: the header of the login packet, which is the only packet sent in clear text. Returns the next
    /// sequence number.
    pub fn tls_request(self, out: &mut Vec<u8>, sequence: u8) -> u8 {
        write_packet(out, sequence, &self.login_header())
    }

    fn login_header(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(128);
        body.extend_from_slice(&self.capabilities.to_le_bytes());
        body.extend_from_slice(&MAX_PACKET_BYTES.to_le_bytes());
        body.push(UTF8MB4_GENERAL_CI);
        body.extend_from_slice(&[0; 19]);
        body.extend_from_slice(&self.extended_capabilities.to_le_bytes());
        body
    }

    /// Whether known column definitions are omitted; answers then have a flag that tells whether definitions follow.
    pub fn caches_metadata(self) -> bool {
        self.extended_capabilities & CACHE_METADATA != 0
    }

    /// Append the login packet, numbered `sequence`; `proof` is the answer of `plugin` to the scramble. Returns the next sequence
    /// number.
    pub fn login(
        self,
        out: &mut Vec<u8>,
        sequence: u8,
        account: &Account<'_>,
        plugin: &str,
        proof: &[u8],
    ) -> u8 {
        assert!(proof.len() < 251, "a proof is shorter than 251 bytes");
        let mut body = self.login_header();
        body.extend_from_slice(account.user.as_bytes());
        body.push(0);
        body.push(proof.len() as u8);
        body.extend_from_slice(proof);
        if self.capabilities & CONNECT_WITH_DB != 0 {
            body.extend_from_slice(account.database.as_bytes());
            body.push(0);
        }
        if self.capabilities & PLUGIN_AUTH != 0 {
            body.extend_from_slice(plugin.as_bytes());
            body.push(0);
        }
        if let Some(Algorithm::Zstd { level }) = self.compression {
            body.push(level);
        }
        write_packet(out, sequence, &body)
    }
}

/// The account that logs in, and the database that it uses.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub database: &'a str,
}

/// Omits the password.
impl std::fmt::Debug for Account<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Account")
            .field("user", &self.user)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

/// The server's request to log in by another plugin than the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSwitch {
    pub plugin: String,
    /// The scramble as received: each plugin uses the part that it needs.
    pub scramble: Vec<u8>,
}

impl AuthSwitch {
    /// Parse a request to switch; `payload` is a complete packet that begins with 0xFE.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        fields.byte("switch marker")?;
        if fields.0.is_empty() {
            // Before plugins had names, this was the only one to switch to.
            return Ok(Self {
                plugin: "mysql_old_password".to_owned(),
                scramble: Vec::new(),
            });
        }
        let plugin = fields.terminated_string("plugin name")?;
        Ok(Self {
            plugin: String::from_utf8_lossy(plugin).into_owned(),
            scramble: fields.0.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(capabilities: u32) -> Greeting {
        Greeting {
            version: String::new(),
            connection_id: 1,
            capabilities,
            extended_capabilities: 0,
            scramble: [7; SCRAMBLE_BYTES],
            plugin: String::new(),
        }
    }

    #[test]
    fn a_server_without_a_requested_feature_is_refused() {
        let zlib = Algorithm::Zlib { level: 6 };
        let zstd = Algorithm::Zstd { level: 3 };
        let request = |tls, compression| RequestedFeatures {
            tls,
            compression,
            multi_statements: false,
        };
        let old = greeting(PROTOCOL_41 | SECURE_CONNECTION | COMPRESS);
        assert_eq!(
            old.session_with(request(true, None)),
            Err(MissingFeature::Tls)
        );
        assert_eq!(
            old.session_with(request(false, Some(zstd))),
            Err(MissingFeature::Compression(zstd))
        );
        let session = old
            .session_with(request(false, Some(zlib)))
            .expect("the server offers zlib");
        assert_ne!(session.capabilities & COMPRESS, 0);
    }

    #[test]
    fn only_requested_features_are_used() {
        let session = greeting(u32::MAX)
            .session_with(RequestedFeatures::default())
            .expect("no feature is requested");
        let optional = SSL | COMPRESS | COMPRESS_ZSTD | MULTI_STATEMENTS;
        assert_eq!(session.capabilities & optional, 0);
    }

    #[test]
    fn the_request_for_tls_is_the_login_without_its_account() {
        let requested = RequestedFeatures {
            tls: true,
            compression: Some(Algorithm::Zstd { level: 9 }),
            multi_statements: true,
        };
        let session = greeting(u32::MAX)
            .session_with(requested)
            .expect("the server offers all features");
        let (mut request, mut login) = (Vec::new(), Vec::new());
        assert_eq!(session.tls_request(&mut request, 1), 2);
        let account = Account {
            user: "somebody",
            password: "",
            database: "db",
        };
        session.login(&mut login, 2, &account, "p", b"proof");
        assert_eq!(request.len(), 4 + 32);
        assert_eq!(request[4..], login[4..36]);
        assert_eq!(
            login.last(),
            Some(&9),
            "the level of zstd is the packet's last byte"
        );
    }

    #[test]
    fn a_scramble_that_ends_with_zero_keeps_it() {
        let switch = AuthSwitch::parse(b"\xFEclient_ed25519\0abc\0").expect("the request is valid");
        assert_eq!(switch.scramble, b"abc\0");
        let old = AuthSwitch::parse(b"\xFE").expect("a request without a name is valid");
        assert_eq!(old.plugin, "mysql_old_password");
    }
}
