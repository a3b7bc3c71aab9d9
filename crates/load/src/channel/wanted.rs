//! What a job asks of all its sessions, understood once.

use howfar_contract::jobs::{self, ChannelBinding, SessionJob, Target, TlsVerify};
use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::auth;
use howfar_wire::mysql::compress::Algorithm;
use howfar_wire::mysql::handshake::Wish;
use howfar_wire::postgres::auth::Binding;
use ring::digest;

use super::certificate::Certificate;
use super::tls::Setup;
use super::{Channel, ChannelError};

/// The highest level of zlib; zstd has more.
const MOST_ZLIB: u8 = 9;
/// A public key is a few hundred bytes.
const LONGEST_KEY: usize = 1 << 16;

/// What all sessions of a job are to have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    wish: Wish,
    tls: Option<Setup>,
    /// The server's public key in PEM, if a file was named.
    server_key: Option<String>,
    fetch_server_key: bool,
    cleartext_password: bool,
    verify: TlsVerify,
    channel_binding: ChannelBinding,
    /// Settings that PostgreSQL gets with the login.
    options: String,
}

/// The server's end of a channel, as a login may be bound to it.
pub(crate) struct EndPoint {
    digest: Option<digest::Digest>,
    required: bool,
}

impl EndPoint {
    pub(crate) fn binding(&self) -> Binding<'_> {
        Binding {
            end_point: self.digest.as_ref().map(AsRef::as_ref),
            required: self.required,
        }
    }
}

impl Wanted {
    /// Reads the files that the job names.
    pub(crate) fn new(session: &SessionJob, target: &Target) -> Result<Self, Failed> {
        let tls = session
            .tls
            .as_ref()
            .map(|tls| Setup::new(tls, target))
            .transpose()?;
        let compression = session.compression.map(algorithm).transpose()?;
        Ok(Self {
            wish: Wish {
                tls: tls.is_some(),
                compression,
                multi_statements: session.multi_statements,
            },
            tls,
            server_key: session
                .server_key_file
                .as_deref()
                .map(server_key)
                .transpose()?,
            fetch_server_key: session.fetch_server_key,
            cleartext_password: session.allow_cleartext_password,
            verify: session
                .tls
                .as_ref()
                .map_or(TlsVerify::None, |tls| tls.verify),
            channel_binding: session
                .tls
                .as_ref()
                .map_or(ChannelBinding::Disable, |tls| tls.channel_binding),
            options: session.options.clone(),
        })
    }

    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// A server that offers no TLS is spoken to without it.
    pub(crate) fn tls_is_optional(&self) -> bool {
        self.tls.as_ref().is_some_and(Setup::is_optional)
    }

    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// TLS begins with the first byte, and names its protocol.
    pub(crate) fn begins_directly(&self) -> bool {
        self.tls.as_ref().is_some_and(Setup::begins_directly)
    }

    /// Begin TLS on `channel` if it is wanted; what must be sent first is appended to `out`.
    pub(crate) fn encrypt(
        &self,
        channel: &mut Channel,
        out: &mut Vec<u8>,
    ) -> Result<(), ChannelError> {
        match &self.tls {
            None => Ok(()),
            Some(setup) => channel.begin_tls(setup.connection()?, out),
        }
    }

    /// Who may read what a login sends: nobody listens on a Unix socket.
    pub(crate) fn secrecy(&self, channel: &Channel, target: &Target) -> auth::Secrecy<'_> {
        auth::Secrecy {
            channel: self.privacy(channel, target),
            cleartext: self.cleartext_password,
        }
    }

    /// What a login through `channel` may or must be bound to.
    pub(crate) fn end_point(&self, channel: &Channel) -> EndPoint {
        let certificate = channel.certificates().first();
        EndPoint {
            digest: certificate
                .filter(|_| self.channel_binding != ChannelBinding::Disable)
                .and_then(|der| Certificate::parse(der)?.end_point()),
            required: self.channel_binding == ChannelBinding::Require,
        }
    }

    /// The digest of the certificate that the server has to prove by the password, if it has to.
    pub(crate) fn unproven(&self, channel: &Channel) -> Option<digest::Digest> {
        let setup = self.tls.as_ref()?;
        let certificates = channel.certificates();
        if self.verify != TlsVerify::Password || setup.is_vouched(certificates) {
            return None;
        }
        Some(digest::digest(&digest::SHA256, certificates.first()?))
    }

    fn privacy(&self, channel: &Channel, target: &Target) -> auth::Channel<'_> {
        if matches!(target, Target::Unix { .. }) {
            return auth::Channel::Private;
        }
        if channel.is_encrypted() {
            // What the password is to prove is not believed before it has.
            return match self.verify {
                TlsVerify::Ca | TlsVerify::Full => auth::Channel::Private,
                TlsVerify::None | TlsVerify::Password => auth::Channel::Unverified,
            };
        }
        let key = match &self.server_key {
            Some(text) => auth::KeySource::Known(text),
            None if self.fetch_server_key => auth::KeySource::Fetch,
            None => auth::KeySource::None,
        };
        auth::Channel::Open { key }
    }
}

fn algorithm(requested: jobs::Compression) -> Result<Algorithm, Failed> {
    match (requested.algorithm, requested.level) {
        (jobs::Algorithm::Zlib, Some(level)) if level > MOST_ZLIB => Err(Failed::new(
            FailCode::BadJob,
            format!("zlib has no level {level}"),
            "Choose a level from 1 to 9, or zstd.",
        )),
        (jobs::Algorithm::Zlib, level) => Ok(Algorithm::Zlib {
            level: level.unwrap_or(6),
        }),
        (jobs::Algorithm::Zstd, level) => Ok(Algorithm::Zstd {
            level: level.unwrap_or(3),
        }),
    }
}

fn server_key(file: &str) -> Result<String, Failed> {
    let unread = |error: &dyn std::fmt::Display| {
        Failed::new(
            FailCode::BadJob,
            format!("reading the server's public key from {file} failed: {error}"),
            "Name a readable file with the server's RSA public key in PEM (SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key' shows it).",
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| unread(&error))?;
    if text.len() > LONGEST_KEY {
        return Err(unread(&"it is too long for a key"));
    }
    Ok(text)
}
