//! The channel that a job requests for all its sessions, parsed once.

use howfar_contract::jobs::{self, ChannelBinding, SessionJob, Target, TlsVerify};
use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::auth;
use howfar_wire::mysql::compress::Algorithm;
use howfar_wire::mysql::handshake::RequestedFeatures;
use howfar_wire::postgres::auth::Binding;
use ring::digest;

use super::certificate::Certificate;
use super::tls::TlsSettings;
use super::{Channel, ChannelError};

/// The highest level of zlib; zstd has more.
const MAX_ZLIB: u8 = 9;
/// Maximum size of a public key: real ones have a few hundred bytes.
const MAX_KEY_BYTES: usize = 1 << 16;

/// The channel requested for all sessions of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChannelOptions {
    features: RequestedFeatures,
    tls: Option<TlsSettings>,
    /// The server's public key in PEM, if a file was named.
    server_key: Option<String>,
    fetch_server_key: bool,
    cleartext_password: bool,
    verify: TlsVerify,
    channel_binding: ChannelBinding,
    /// Settings sent to PostgreSQL with the login.
    options: String,
}

/// The server's end of a channel, to which a login may be bound (channel binding).
pub(crate) struct ChannelEndPoint {
    digest: Option<digest::Digest>,
    required: bool,
}

impl ChannelEndPoint {
    pub(crate) fn binding(&self) -> Binding<'_> {
        Binding {
            end_point: self.digest.as_ref().map(AsRef::as_ref),
            required: self.required,
        }
    }
}

impl ChannelOptions {
    /// Parse a job's options and read the files that they name.
    pub(crate) fn new(session: &SessionJob, target: &Target) -> Result<Self, Failed> {
        let requested = session.tls.as_ref();
        let tls = requested
            .map(|tls| TlsSettings::new(tls, target))
            .transpose()?;
        let compression = session.compression.map(parse_compression).transpose()?;
        Ok(Self {
            features: RequestedFeatures {
                tls: tls.is_some(),
                compression,
                multi_statements: session.multi_statements,
            },
            tls,
            server_key: session
                .server_key_file
                .as_deref()
                .map(read_server_key)
                .transpose()?,
            fetch_server_key: session.fetch_server_key,
            cleartext_password: session.allow_cleartext_password,
            verify: requested.map_or(TlsVerify::None, |tls| tls.verify),
            channel_binding: requested.map_or(ChannelBinding::Disable, |tls| tls.channel_binding),
            options: session.options.clone(),
        })
    }

    pub(crate) fn requested_features(&self) -> RequestedFeatures {
        self.features
    }

    /// Whether to continue without TLS if the server does not offer it.
    pub(crate) fn tls_is_optional(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsSettings::is_optional)
    }

    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Whether TLS begins with the first byte and names its protocol (ALPN).
    pub(crate) fn begins_directly(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsSettings::begins_directly)
    }

    /// Begin TLS on `channel` if the job requests it; its first bytes are appended to `out`.
    pub(crate) fn encrypt(
        &self,
        channel: &mut Channel,
        out: &mut Vec<u8>,
    ) -> Result<(), ChannelError> {
        match &self.tls {
            None => Ok(()),
            Some(settings) => channel.begin_tls(settings.make_connection()?, out),
        }
    }

    /// The secrecy of a login over `channel`: who could read its password.
    pub(crate) fn secrecy(&self, channel: &Channel, target: &Target) -> auth::Secrecy<'_> {
        auth::Secrecy {
            channel: self.privacy(channel, target),
            cleartext: self.cleartext_password,
        }
    }

    /// The end point to which a login through `channel` may or must be bound.
    pub(crate) fn end_point(&self, channel: &Channel) -> ChannelEndPoint {
        let certificate = channel.certificates().first();
        ChannelEndPoint {
            digest: certificate
                .filter(|_| self.channel_binding != ChannelBinding::Disable)
                .and_then(|der| Certificate::parse(der)?.end_point_digest()),
            required: self.channel_binding == ChannelBinding::Require,
        }
    }

    /// Digest of the certificate that the server must prove by the password; `None` if it need not.
    pub(crate) fn unproven_digest(&self, channel: &Channel) -> Option<digest::Digest> {
        let settings = self.tls.as_ref()?;
        let certificates = channel.certificates();
        if self.verify != TlsVerify::Password || settings.is_trusted(certificates) {
            return None;
        }
        Some(digest::digest(&digest::SHA256, certificates.first()?))
    }

    fn privacy(&self, channel: &Channel, target: &Target) -> auth::Channel<'_> {
        if matches!(target, Target::Unix { .. }) {
            return auth::Channel::Private;
        }
        if channel.is_encrypted() {
            // A certificate to be proved by the password counts as unverified until then.
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

fn parse_compression(requested: jobs::Compression) -> Result<Algorithm, Failed> {
    match (requested.algorithm, requested.level) {
        (jobs::Algorithm::Zlib, Some(level)) if level > MAX_ZLIB => Err(Failed::new(
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

fn read_server_key(file: &str) -> Result<String, Failed> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Failed::new(
            FailCode::BadJob,
            format!("reading the server's public key from {file} failed: {error}"),
            "Name a readable file with the server's RSA public key in PEM (SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key' shows it).",
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    if text.len() > MAX_KEY_BYTES {
        return Err(unreadable(&"it is too long for a key"));
    }
    Ok(text)
}
