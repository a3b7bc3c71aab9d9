//! The server's greeting and our answer to it. We ask for nothing that was not asked of us: no TLS, no compression.

use super::Malformed;
use super::frame::write_packet;
use super::read::Fields;

pub(super) const LONG_PASSWORD: u32 = 1;
pub(super) const LONG_FLAG: u32 = 1 << 2;
pub(super) const CONNECT_WITH_DB: u32 = 1 << 3;
pub(super) const PROTOCOL_41: u32 = 1 << 9;
pub(super) const TRANSACTIONS: u32 = 1 << 13;
pub(super) const SECURE_CONNECTION: u32 = 1 << 15;
pub(super) const MULTI_RESULTS: u32 = 1 << 17;
pub(super) const PS_MULTI_RESULTS: u32 = 1 << 18;
pub(super) const PLUGIN_AUTH: u32 = 1 << 19;
/// MariaDB's extended capability: definitions of a prepared statement's columns are not repeated when they are unchanged.
pub(super) const CACHE_METADATA: u32 = 1 << 4;

/// The largest packet that we announce to accept.
const MAX_PACKET: u32 = 1 << 24;
pub(super) const UTF8MB4_GENERAL_CI: u8 = 45;
pub(super) const SCRAMBLE: usize = 20;

/// What the server says first.
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
    /// `payload` is a whole packet that is not an ERR.
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
        let capabilities = low | (fields.integer(2, "upper capabilities")? as u32) << 16;
        fields.take(1 + 6, "scramble length")?;
        let further = fields.integer(4, "extended capabilities")? as u32;
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
                further
            } else {
                0
            },
            scramble,
            plugin: String::from_utf8_lossy(name).into_owned(),
        })
    }

    /// Capabilities that we use with this server.
    pub fn session(&self) -> Session {
        let wanted = LONG_PASSWORD
            | LONG_FLAG
            | CONNECT_WITH_DB
            | PROTOCOL_41
            | TRANSACTIONS
            | SECURE_CONNECTION
            | MULTI_RESULTS
            | PS_MULTI_RESULTS
            | PLUGIN_AUTH;
        Session {
            capabilities: wanted & self.capabilities,
            extended: CACHE_METADATA & self.extended,
        }
    }
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub capabilities: u32,
    pub extended: u32,
}

impl Session {
    /// Answers say whether column definitions follow, because known ones are left out.
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
        let mut body = Vec::with_capacity(128);
        body.extend_from_slice(&self.capabilities.to_le_bytes());
        body.extend_from_slice(&MAX_PACKET.to_le_bytes());
        body.push(UTF8MB4_GENERAL_CI);
        body.extend_from_slice(&[0; 19]);
        body.extend_from_slice(&self.extended.to_le_bytes());
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
        write_packet(out, sequence, &body)
    }
}

/// Who logs in, and to which database.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub database: &'a str,
}

/// Without the password.
impl std::fmt::Debug for Account<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Account")
            .field("user", &self.user)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

/// A server that asks for another way to log in than the one we began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSwitch {
    pub plugin: String,
    pub scramble: Vec<u8>,
}

impl AuthSwitch {
    /// `payload` is a whole packet that begins with 0xFE.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        fields.byte("switch marker")?;
        let plugin = fields.until_zero("plugin name")?;
        let scramble = fields.0.strip_suffix(&[0]).unwrap_or(fields.0);
        Ok(Self {
            plugin: String::from_utf8_lossy(plugin).into_owned(),
            scramble: scramble.to_vec(),
        })
    }
}
