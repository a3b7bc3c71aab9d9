//! The server's greeting and our answer to it. We request TLS and compression only if the caller wants them, and then refuse a
//! server that lacks them before anything is sent.

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
/// MariaDB's extended capability: definitions of a prepared statement's columns are not repeated when they are unchanged.
pub(super) const CACHE_METADATA: u32 = 1 << 4;

/// Capabilities that every session uses if they are offered.
const BASE_CAPABILITIES: u32 = LONG_PASSWORD
    | LONG_FLAG
    | CONNECT_WITH_DB
    | PROTOCOL_41
    | TRANSACTIONS
    | SECURE_CONNECTION
    | MULTI_RESULTS
    | PS_MULTI_RESULTS
    | PLUGIN_AUTH;

/// The largest packet that we announce to accept.
const MAX_PACKET: u32 = 1 << 24;
pub(super) const UTF8MB4_GENERAL_CI: u8 = 45;
pub(super) const SCRAMBLE: usize = 20;

/// The server's first packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    pub version: String,
    pub connection: u32,
    pub capabilities: u32,
    /// MariaDB's further capabilities; 0 for MySQL.
    pub extended: u32,
    pub scramble: [u8; SCRAMBLE],
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
        let version = fields.until_zero("server version")?;
        let connection = fields.integer(4, "connection id")? as u32;
        let mut scramble = [0; SCRAMBLE];
        scramble[..8].copy_from_slice(fields.take(8, "scramble")?);
        fields.byte("filler")?;
        let low = fields.integer(2, "capabilities")? as u32;
        fields.take(1 + 2, "character set and status")?;
        let capabilities = low | ((fields.integer(2, "upper capabilities")? as u32) << 16);
        fields.take(1 + 6, "scramble length")?;
        let extended = fields.integer(4, "extended capabilities")? as u32;
        if capabilities & (PROTOCOL_41 | SECURE_CONNECTION) != PROTOCOL_41 | SECURE_CONNECTION {
            return Err(Malformed::Unexpected("the server is older than MySQL 4.1"));
        }
        scramble[8..].copy_from_slice(fields.take(SCRAMBLE - 8, "scramble")?);
        // The scramble ends with a zero byte that is not part of it; the name may lack its own.
        fields.byte("end of scramble")?;
        let name = fields.0.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Self {
            version: String::from_utf8_lossy(version).into_owned(),
            connection,
            capabilities,
            // MySQL sets the lowest bit and leaves these bytes zero; MariaDB clears it to say that they count.
            extended: if capabilities & LONG_PASSWORD == 0 {
                extended
            } else {
                0
            },
            scramble,
            plugin: String::from_utf8_lossy(name).into_owned(),
        })
    }

    /// The session that we use with this server in the plain protocol.
    pub fn session(&self) -> Session {
        Session {
            capabilities: BASE_CAPABILITIES & self.capabilities,
            extended: CACHE_METADATA & self.extended,
            compression: None,
        }
    }

    /// Whether the server offers TLS to clients that request it.
    pub fn offers_tls(&self) -> bool {
        self.capabilities & SSL != 0
    }

    /// The session that we use with this server; refused if the server lacks a feature of `wish`.
    pub fn session_as(&self, wish: Wish) -> Result<Session, Lacking> {
        let mut capabilities = BASE_CAPABILITIES;
        let mut need = |bit: u32, lacking: Lacking| {
            capabilities |= bit;
            if self.capabilities & bit == 0 {
                Err(lacking)
            } else {
                Ok(())
            }
        };
        if wish.tls {
            need(SSL, Lacking::Tls)?;
        }
        match wish.compression {
            None => {}
            Some(algorithm @ Algorithm::Zlib { .. }) => {
                need(COMPRESS, Lacking::Compression(algorithm))?;
            }
            Some(algorithm @ Algorithm::Zstd { .. }) => {
                need(COMPRESS_ZSTD, Lacking::Compression(algorithm))?;
            }
        }
        if wish.multi_statements {
            capabilities |= MULTI_STATEMENTS;
        }
        Ok(Session {
            capabilities: capabilities & self.capabilities,
            compression: wish.compression,
            ..self.session()
        })
    }
}

/// Features that a session is to have beyond the plain protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    pub tls: bool,
    pub compression: Option<Algorithm>,
    /// Requested only if it is offered; if it is not, the statements themselves fail.
    pub multi_statements: bool,
}

/// A wanted feature that a server does not offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    Tls,
    Compression(Algorithm),
}

/// The features that both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub capabilities: u32,
    pub extended: u32,
    compression: Option<Algorithm>,
}

impl Session {
    /// Append the packet that begins TLS: only the head of the login packet, and the only packet sent in clear text.
    pub fn tls_request(self, out: &mut Vec<u8>, sequence: u8) -> u8 {
        write_packet(out, sequence, &self.login_head())
    }

    fn login_head(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(128);
        body.extend_from_slice(&self.capabilities.to_le_bytes());
        body.extend_from_slice(&MAX_PACKET.to_le_bytes());
        body.push(UTF8MB4_GENERAL_CI);
        body.extend_from_slice(&[0; 19]);
        body.extend_from_slice(&self.extended.to_le_bytes());
        body
    }

    /// Whether known column definitions are left out; answers then carry a flag for whether definitions follow.
    pub fn caches_metadata(self) -> bool {
        self.extended & CACHE_METADATA != 0
    }

    /// The login packet, numbered `sequence`; `proof` answers the scramble by the rules of `plugin`.
    pub fn login(
        self,
        out: &mut Vec<u8>,
        sequence: u8,
        account: &Account<'_>,
        plugin: &str,
        proof: &[u8],
    ) -> u8 {
        assert!(proof.len() < 251, "a proof is a digest or empty");
        let mut body = self.login_head();
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

/// The account that logs in, and its database.
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

/// The server's request to log in by another plugin than the one we began with.
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
            // Before plugins had names there was only one to switch to.
            return Ok(Self {
                plugin: "mysql_old_password".to_owned(),
                scramble: Vec::new(),
            });
        }
        let plugin = fields.until_zero("plugin name")?;
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
            connection: 1,
            capabilities,
            extended: 0,
            scramble: [7; SCRAMBLE],
            plugin: String::new(),
        }
    }

    #[test]
    fn what_a_server_lacks_is_never_left_out_silently() {
        let zlib = Algorithm::Zlib { level: 6 };
        let zstd = Algorithm::Zstd { level: 3 };
        let wish = |tls, compression| Wish {
            tls,
            compression,
            multi_statements: false,
        };
        let old = greeting(PROTOCOL_41 | SECURE_CONNECTION | COMPRESS);
        assert_eq!(old.session_as(wish(true, None)), Err(Lacking::Tls));
        assert_eq!(
            old.session_as(wish(false, Some(zstd))),
            Err(Lacking::Compression(zstd))
        );
        let session = old
            .session_as(wish(false, Some(zlib)))
            .expect("it has zlib");
        assert_ne!(session.capabilities & COMPRESS, 0);
    }

    #[test]
    fn nothing_is_asked_that_was_not_wished_for() {
        let session = greeting(u32::MAX)
            .session_as(Wish::default())
            .expect("a server with everything");
        let extras = SSL | COMPRESS | COMPRESS_ZSTD | MULTI_STATEMENTS;
        assert_eq!(session.capabilities & extras, 0);
    }

    #[test]
    fn the_request_for_tls_is_the_login_without_its_account() {
        let wish = Wish {
            tls: true,
            compression: Some(Algorithm::Zstd { level: 9 }),
            multi_statements: true,
        };
        let session = greeting(u32::MAX).session_as(wish).expect("offered");
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
        assert_eq!(login.last(), Some(&9), "zstd's level ends the packet");
    }

    #[test]
    fn a_scramble_that_ends_with_zero_keeps_it() {
        let switch = AuthSwitch::parse(b"\xFEclient_ed25519\0abc\0").expect("well formed");
        assert_eq!(switch.scramble, b"abc\0");
        let old = AuthSwitch::parse(b"\xFE").expect("a switch of old");
        assert_eq!(old.plugin, "mysql_old_password");
    }
}
