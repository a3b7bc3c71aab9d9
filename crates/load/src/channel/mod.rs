//! The layers between the socket and the packets: none, compression, TLS, or compression inside TLS. Without I/O.
//!
//! [`ChannelOptions`] holds what a job requests for all its sessions, parsed once; a [`Channel`] is the state of one connection.
//! Nothing here falls back: a requested feature that is not available is an error.

mod algorithms;
mod certificate;
mod failures;
mod options;
mod suites;
mod tickets;
mod tls;
mod verify;
#[cfg(test)]
mod verify_tests;

use std::cell::RefCell;
use std::fmt;
use std::io::{BufRead, Write};

use howfar_wire::mysql::Malformed;
use howfar_wire::mysql::compress::{Algorithm, Codec, Unpacker};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, HandshakeKind};

pub(crate) use failures::{missing_feature, translate_error, unproven_certificate};
pub(crate) use options::ChannelOptions;

/// The layers between the socket and the packets; `Plain` has none and costs nothing.
#[derive(Debug, Default)]
pub(crate) enum Channel {
    #[default]
    Plain,
    Layered(Box<Layers>),
}

/// The layers of a channel, outermost first.
#[derive(Default)]
pub(crate) struct Layers {
    tls: Option<Tls>,
    compression: Option<(Algorithm, Unpacker)>,
}

struct Tls {
    session: ClientConnection,
    /// The peer has ended the session: it neither sends nor receives anything more.
    has_ended: bool,
}

impl fmt::Debug for Layers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Layers")
            .field("tls", &self.tls.is_some())
            .field(
                "compression",
                &self.compression.as_ref().map(|(algorithm, _)| algorithm),
            )
            .finish()
    }
}

/// The reason why a channel cannot continue.
#[derive(Debug)]
pub(crate) enum ChannelError {
    Tls(rustls::Error),
    /// The peer has ended the TLS session.
    Ended,
    Malformed(Malformed),
    /// Memory for compression could not be allocated.
    Codec(std::io::Error),
}

impl From<rustls::Error> for ChannelError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl From<Malformed> for ChannelError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

/// Negotiated TLS parameters, named as in servers' status variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFacts {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) group: Option<String>,
    pub(crate) resumed: bool,
    /// The server did not accept the first key share: the handshake took an extra round trip.
    pub(crate) retried: bool,
}

impl TlsFacts {
    /// Round trips of the handshake: TLS 1.2 takes one to resume, else two; TLS 1.3 takes one, and another after a refused key share.
    pub(crate) fn round_trips(&self) -> u32 {
        let is_full_handshake = self.version == "TLSv1.2" && !self.resumed;
        1 + u32::from(is_full_handshake || self.retried)
    }
}

/// Buffers shared by the connections of a thread: they are large and hold no state between calls.
#[derive(Default)]
struct SharedBuffers {
    codec: Option<Box<Codec>>,
    frames: Vec<u8>,
}

/// Compressed bytes expanded at a time, which bounds the memory for even the longest frames.
const PIECE_BYTES: usize = 1024;

thread_local! {
    static SHARED: RefCell<SharedBuffers> = RefCell::default();
}

impl SharedBuffers {
    fn codec(&mut self, algorithm: Algorithm) -> Result<(&mut Codec, &mut Vec<u8>), ChannelError> {
        self.frames.clear();
        let codec = match self.codec.take() {
            Some(codec) if codec.algorithm() == algorithm => codec,
            _ => Box::new(Codec::new(algorithm).map_err(ChannelError::Codec)?),
        };
        Ok((self.codec.insert(codec), &mut self.frames))
    }
}

impl Channel {
    /// Whether bytes pass unchanged. The hot path then uses the socket's bytes directly.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    fn layers_mut(&mut self) -> &mut Layers {
        if self.is_plain() {
            *self = Self::Layered(Box::default());
        }
        match self {
            Self::Layered(layers) => layers,
            Self::Plain => unreachable!("the layers were just made"),
        }
    }

    /// Begin TLS: all further bytes are encrypted; its first bytes are appended to `out`. Packets sealed before the handshake has
    /// ended are sent with its last message, never before.
    pub(crate) fn begin_tls(
        &mut self,
        mut tls: ClientConnection,
        out: &mut Vec<u8>,
    ) -> Result<(), ChannelError> {
        assert!(
            self.is_plain(),
            "TLS is the outermost layer and begins once"
        );
        tls.set_buffer_limit(None);
        flush(&mut tls, out)?;
        self.layers_mut().tls = Some(Tls {
            session: tls,
            has_ended: false,
        });
        Ok(())
    }

    /// Begin compression: all further packets travel in compressed frames.
    pub(crate) fn begin_compression(&mut self, algorithm: Algorithm) {
        self.layers_mut().compression = Some((algorithm, Unpacker::default()));
    }

    /// Convert the complete packets of complete commands to bytes for the socket, appended to `out`.
    pub(crate) fn seal(&mut self, packets: &[u8], out: &mut Vec<u8>) -> Result<(), ChannelError> {
        let layers = match self {
            Self::Plain => {
                out.extend_from_slice(packets);
                return Ok(());
            }
            Self::Layered(layers) => layers,
        };
        if packets.is_empty() {
            return Ok(());
        }
        let Some((algorithm, unpacker)) = &mut layers.compression else {
            return encrypt(&mut layers.tls, packets, out);
        };
        SHARED.with_borrow_mut(|shared| {
            let (codec, frames) = shared.codec(*algorithm)?;
            if layers.tls.is_none() {
                unpacker.expect_answers(codec.pack(packets, out));
                return Ok(());
            }
            unpacker.expect_answers(codec.pack(packets, frames));
            encrypt(&mut layers.tls, frames, out)
        })
    }

    /// Process all bytes received from the socket; append the packet bytes that they hold to `plain`, and bytes that a layer itself
    /// must send to `out`.
    pub(crate) fn open(
        &mut self,
        raw: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), ChannelError> {
        let layers = match self {
            Self::Plain => {
                plain.extend_from_slice(raw);
                return Ok(());
            }
            Self::Layered(layers) => layers,
        };
        let Some((algorithm, unpacker)) = &mut layers.compression else {
            return decrypt(&mut layers.tls, raw, plain, out);
        };
        SHARED.with_borrow_mut(|shared| {
            let (codec, frames) = shared.codec(*algorithm)?;
            if layers.tls.is_none() {
                return Ok(unpacker.feed(codec, raw, plain)?);
            }
            decrypt(&mut layers.tls, raw, frames, out)?;
            Ok(unpacker.feed(codec, frames, plain)?)
        })
    }

    /// Open `raw` and pass its packet bytes to `take` piece by piece, for streams of unbounded length: highly compressed bytes are
    /// never fully expanded in memory. `plain` is a scratch buffer.
    pub(crate) fn open_in_pieces<E: From<ChannelError>>(
        &mut self,
        raw: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        plain.clear();
        let Self::Layered(layers) = self else {
            return take(raw);
        };
        let Some((algorithm, unpacker)) = &mut layers.compression else {
            decrypt(&mut layers.tls, raw, plain, out)?;
            return take(plain);
        };
        SHARED.with_borrow_mut(|shared| {
            let (codec, frames) = shared.codec(*algorithm)?;
            let frames = if layers.tls.is_none() {
                raw
            } else {
                decrypt(&mut layers.tls, raw, frames, out)?;
                frames
            };
            for piece in frames.chunks(PIECE_BYTES) {
                plain.clear();
                unpacker
                    .feed(codec, piece, plain)
                    .map_err(ChannelError::Malformed)?;
                take(plain)?;
            }
            Ok(())
        })
    }

    fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Plain => None,
            Self::Layered(layers) => layers.tls.as_ref(),
        }
    }

    /// Whether a TLS handshake is in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls().is_some_and(|tls| tls.session.is_handshaking())
    }

    /// Check that the peer may send more, while an answer is incomplete. It is an error if the peer has ended TLS with the socket open.
    pub(crate) fn check_not_ended(&self) -> Result<(), ChannelError> {
        match self.tls() {
            Some(Tls {
                has_ended: true, ..
            }) => Err(ChannelError::Ended),
            _ => Ok(()),
        }
    }

    /// Whether TLS encrypts the bytes: then only the peer, verified or not, can read them.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls().is_some()
    }

    /// Whether TLS negotiated PostgreSQL's protocol by name (ALPN).
    pub(crate) fn speaks_postgres(&self) -> bool {
        let name = self.tls().and_then(|tls| tls.session.alpn_protocol());
        name == Some(tls::POSTGRES)
    }

    /// The server's certificates, its own first; empty without TLS.
    fn certificates(&self) -> &[CertificateDer<'static>] {
        self.tls()
            .and_then(|tls| tls.session.peer_certificates())
            .unwrap_or_default()
    }

    /// The negotiated parameters; `None` without TLS and before its handshake has ended.
    pub(crate) fn tls_facts(&self) -> Option<TlsFacts> {
        let tls = &self.tls()?.session;
        if tls.is_handshaking() {
            return None;
        }
        let kind = tls.handshake_kind();
        Some(TlsFacts {
            version: suites::version(tls.protocol_version()?),
            cipher: suites::name(tls.negotiated_cipher_suite()?),
            group: tls
                .negotiated_key_exchange_group()
                .map(|group| format!("{:?}", group.name())),
            resumed: kind == Some(HandshakeKind::Resumed),
            retried: kind == Some(HandshakeKind::FullWithHelloRetryRequest),
        })
    }
}

/// Append the bytes that TLS has to send.
fn flush(tls: &mut ClientConnection, out: &mut Vec<u8>) -> Result<(), ChannelError> {
    while tls.wants_write() {
        tls.write_tls(out).map_err(memory_error)?;
    }
    Ok(())
}

fn encrypt(tls: &mut Option<Tls>, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ChannelError> {
    let Some(tls) = tls else {
        out.extend_from_slice(bytes);
        return Ok(());
    };
    if tls.has_ended {
        return Err(ChannelError::Ended);
    }
    tls.session
        .writer()
        .write_all(bytes)
        .map_err(memory_error)?;
    flush(&mut tls.session, out)
}

/// Decrypt record by record, so that less than two records are buffered, however many bytes arrived at once.
fn decrypt(
    tls: &mut Option<Tls>,
    mut raw: &[u8],
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), ChannelError> {
    let Some(tls) = tls else {
        plain.extend_from_slice(raw);
        return Ok(());
    };
    let Tls {
        session: tls,
        has_ended,
    } = tls;
    while !raw.is_empty() {
        if *has_ended || tls.read_tls(&mut raw).map_err(memory_error)? == 0 {
            // The peer has ended the session: further bytes are never consumed, so this loop would not end.
            return Err(rustls::Error::General(
                "the peer sent more after ending the session".to_owned(),
            )
            .into());
        }
        let state = tls.process_new_packets()?;
        *has_ended |= state.peer_has_closed();
        let mut unread_bytes = state.plaintext_bytes_to_read();
        let mut reader = tls.reader();
        while unread_bytes > 0 {
            let part = reader.fill_buf().map_err(memory_error)?;
            plain.extend_from_slice(part);
            let count = part.len();
            reader.consume(count);
            unread_bytes -= count.min(unread_bytes);
        }
        flush(tls, out)?;
    }
    Ok(())
}

/// An error of reading or writing in memory, which occurs only if the library's own limits are exceeded.
#[allow(clippy::needless_pass_by_value)] // as map_err gives it
fn memory_error(error: std::io::Error) -> ChannelError {
    ChannelError::Tls(rustls::Error::General(error.to_string()))
}
