//! What lies between the socket and the packets: nothing, or compression, or TLS, or compression inside TLS. Without I/O.
//!
//! [`Wanted`] is what a job asks of all its sessions, made once; a [`Channel`] is what one connection has. Nothing here falls
//! back: what was requested and cannot be had is an error.

mod algorithms;
mod certificate;
mod failures;
mod suites;
mod tickets;
mod tls;
mod verify;
#[cfg(test)]
mod verify_tests;
mod wanted;

use std::cell::RefCell;
use std::fmt;
use std::io::{BufRead, Write};

use howfar_wire::mysql::Malformed;
use howfar_wire::mysql::compress::{Algorithm, Codec, Unpacker};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, HandshakeKind};

pub(crate) use failures::{broken, lacking, unproven};
pub(crate) use wanted::Wanted;

/// What lies between the socket and the packets. Plain costs nothing.
#[derive(Debug, Default)]
pub(crate) enum Channel {
    #[default]
    Plain,
    Layered(Box<Layers>),
}

/// Outermost first.
#[derive(Default)]
pub(crate) struct Layers {
    tls: Option<Tls>,
    packing: Option<(Algorithm, Unpacker)>,
}

struct Tls {
    session: ClientConnection,
    /// The peer has ended it: it sends nothing more, and hears nothing more.
    ended: bool,
}

impl fmt::Debug for Layers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Layers")
            .field("tls", &self.tls.is_some())
            .field("packing", &self.packing.as_ref().map(|(what, _)| what))
            .finish()
    }
}

/// Why a channel cannot go on.
#[derive(Debug)]
pub(crate) enum ChannelError {
    Tls(rustls::Error),
    /// The peer has ended the TLS session.
    Ended,
    Malformed(Malformed),
    /// Memory for compression could not be had.
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

/// What TLS agreed on, in the words of servers' status variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFacts {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) group: Option<String>,
    pub(crate) resumed: bool,
    /// The server did not take the first key share: the handshake took a round trip more.
    pub(crate) retried: bool,
}

impl TlsFacts {
    /// Round trips of its handshake: TLS 1.2 resumes in one and begins in two; TLS 1.3 takes one, and another after a refused key share.
    pub(crate) fn turns(&self) -> u32 {
        let full = self.version == "TLSv1.2" && !self.resumed;
        1 + u32::from(full || self.retried)
    }
}

/// What connections of a thread share, because it is big and keeps nothing between calls.
#[derive(Default)]
struct Lent {
    codec: Option<Box<Codec>>,
    frames: Vec<u8>,
}

/// Compressed bytes that are expanded at a time: what even the longest frames come to is then bounded.
const PIECE: usize = 1024;

thread_local! {
    static LENT: RefCell<Lent> = RefCell::default();
}

impl Lent {
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
    /// True when bytes pass unchanged: the hot path then uses the socket's bytes directly.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    fn layers(&mut self) -> &mut Layers {
        if self.is_plain() {
            *self = Self::Layered(Box::default());
        }
        match self {
            Self::Layered(layers) => layers,
            Self::Plain => unreachable!("it was just made"),
        }
    }

    /// From now on all bytes are encrypted; the first of them are appended to `out`. What is sealed before the handshake has
    /// ended leaves with its last message, and never before.
    pub(crate) fn begin_tls(
        &mut self,
        mut tls: ClientConnection,
        out: &mut Vec<u8>,
    ) -> Result<(), ChannelError> {
        assert!(self.is_plain(), "TLS lies outermost and begins once");
        tls.set_buffer_limit(None);
        flush(&mut tls, out)?;
        self.layers().tls = Some(Tls {
            session: tls,
            ended: false,
        });
        Ok(())
    }

    /// From now on packets travel in compressed frames.
    pub(crate) fn begin_compression(&mut self, algorithm: Algorithm) {
        self.layers().packing = Some((algorithm, Unpacker::default()));
    }

    /// Turn whole packets of whole commands into bytes for the socket, appended to `out`.
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
        let Some((algorithm, unpacker)) = &mut layers.packing else {
            return encrypt(&mut layers.tls, packets, out);
        };
        LENT.with_borrow_mut(|lent| {
            let (codec, frames) = lent.codec(*algorithm)?;
            if layers.tls.is_none() {
                unpacker.sent(codec.pack(packets, out));
                return Ok(());
            }
            unpacker.sent(codec.pack(packets, frames));
            encrypt(&mut layers.tls, frames, out)
        })
    }

    /// Take bytes from the socket, all of them; append the packet bytes that they hold to `plain`, and to `out` what the layer
    /// itself must send.
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
        let Some((algorithm, unpacker)) = &mut layers.packing else {
            return decrypt(&mut layers.tls, raw, plain, out);
        };
        LENT.with_borrow_mut(|lent| {
            let (codec, frames) = lent.codec(*algorithm)?;
            if layers.tls.is_none() {
                return Ok(unpacker.feed(codec, raw, plain)?);
            }
            decrypt(&mut layers.tls, raw, frames, out)?;
            Ok(unpacker.feed(codec, frames, plain)?)
        })
    }

    /// Open `raw` and give its packet bytes to `take` piece by piece, for streams without a bound: what a few bytes stand for is never
    /// held at once. `plain` is only lent.
    pub(crate) fn open_each<E: From<ChannelError>>(
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
        let Some((algorithm, unpacker)) = &mut layers.packing else {
            decrypt(&mut layers.tls, raw, plain, out)?;
            return take(plain);
        };
        LENT.with_borrow_mut(|lent| {
            let (codec, frames) = lent.codec(*algorithm)?;
            let frames = if layers.tls.is_none() {
                raw
            } else {
                decrypt(&mut layers.tls, raw, frames, out)?;
                frames
            };
            for piece in frames.chunks(PIECE) {
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

    /// True while TLS is being agreed on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls().is_some_and(|tls| tls.session.is_handshaking())
    }

    /// To ask when what came is not all that is waited for: an error if nothing more will come, although the socket is open.
    pub(crate) fn goes_on(&self) -> Result<(), ChannelError> {
        match self.tls() {
            Some(Tls { ended: true, .. }) => Err(ChannelError::Ended),
            _ => Ok(()),
        }
    }

    /// Only the other end can read what is sealed, whoever that is.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls().is_some()
    }

    /// TLS agreed on PostgreSQL's protocol by name.
    pub(crate) fn speaks_postgres(&self) -> bool {
        let name = self.tls().and_then(|tls| tls.session.alpn_protocol());
        name == Some(tls::POSTGRES)
    }

    /// The server's certificates, its own first; none without TLS.
    fn certificates(&self) -> &[CertificateDer<'static>] {
        self.tls()
            .and_then(|tls| tls.session.peer_certificates())
            .unwrap_or_default()
    }

    /// What TLS agreed on; `None` without TLS and before its handshake has ended.
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

/// Move what TLS has to send.
fn flush(tls: &mut ClientConnection, out: &mut Vec<u8>) -> Result<(), ChannelError> {
    while tls.wants_write() {
        tls.write_tls(out).map_err(in_memory)?;
    }
    Ok(())
}

fn encrypt(tls: &mut Option<Tls>, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ChannelError> {
    let Some(tls) = tls else {
        out.extend_from_slice(bytes);
        return Ok(());
    };
    if tls.ended {
        return Err(ChannelError::Ended);
    }
    tls.session.writer().write_all(bytes).map_err(in_memory)?;
    flush(&mut tls.session, out)
}

/// Bytes go in and come out a record at a time: what is held in between stays below two records, whatever came at once.
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
        ended,
    } = tls;
    while !raw.is_empty() {
        if *ended || tls.read_tls(&mut raw).map_err(in_memory)? == 0 {
            // The peer has ended the session: nothing of what follows will ever be taken, so to go on would be to loop for ever.
            return Err(rustls::Error::General(
                "the peer sent more after ending the session".to_owned(),
            )
            .into());
        }
        let state = tls.process_new_packets()?;
        *ended |= state.peer_has_closed();
        let mut left = state.plaintext_bytes_to_read();
        let mut reader = tls.reader();
        while left > 0 {
            let part = reader.fill_buf().map_err(in_memory)?;
            plain.extend_from_slice(part);
            let count = part.len();
            reader.consume(count);
            left -= count.min(left);
        }
        flush(tls, out)?;
    }
    Ok(())
}

/// Reading and writing in memory fails only where the library's own bounds are broken.
#[allow(clippy::needless_pass_by_value)] // as map_err gives it
fn in_memory(error: std::io::Error) -> ChannelError {
    ChannelError::Tls(rustls::Error::General(error.to_string()))
}
