//! The first bytes of a probe's connection, and the figures that come back at the end of a transfer.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;

use crate::sys;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The echo sends back each byte.
    PingPong,
    /// The echo receives for the window, then sends its [`Figures`].
    Sink,
    /// The echo sends until the other end closes its sending side, then sends its [`Figures`] as the last bytes.
    Source,
}

/// The first bytes of a connection: mode, warm-up and measured window in 1 + 8 + 8 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handshake {
    pub(super) mode: Mode,
    pub(super) warmup_ns: u64,
    pub(super) measure_ns: u64,
}

pub(super) const HANDSHAKE_LEN: usize = 17;

impl Handshake {
    pub(super) fn encode(self) -> [u8; HANDSHAKE_LEN] {
        let mut bytes = [0; HANDSHAKE_LEN];
        bytes[0] = match self.mode {
            Mode::PingPong => b'P',
            Mode::Sink => b'K',
            Mode::Source => b'S',
        };
        bytes[1..9].copy_from_slice(&self.warmup_ns.to_le_bytes());
        bytes[9..].copy_from_slice(&self.measure_ns.to_le_bytes());
        bytes
    }

    /// Decode a handshake; None if the mode is unknown.
    pub(super) fn decode(bytes: [u8; HANDSHAKE_LEN]) -> Option<Self> {
        let mode = match bytes[0] {
            b'P' => Mode::PingPong,
            b'K' => Mode::Sink,
            b'S' => Mode::Source,
            _ => return None,
        };
        Some(Self {
            mode,
            warmup_ns: decode_u64(&bytes[1..9]),
            measure_ns: decode_u64(&bytes[9..]),
        })
    }
}

/// Figures from the far end. A sink fills in its bytes in the window and the window's true length; a source, which controls how
/// bytes are sent, fills in its retransmitted segments, its segment size and the name of its congestion control, padded with zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
    pub(super) retransmits: u64,
    pub(super) mss: u64,
    pub(super) congestion_control: [u8; 16],
}

pub(super) const FIGURES_LEN: usize = 48;

impl Figures {
    pub(super) fn encode(self) -> [u8; FIGURES_LEN] {
        let mut bytes = [0; FIGURES_LEN];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.elapsed_ns.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.retransmits.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.mss.to_le_bytes());
        bytes[32..].copy_from_slice(&self.congestion_control);
        bytes
    }

    pub(super) fn decode(bytes: [u8; FIGURES_LEN]) -> Self {
        let mut congestion_control = [0; 16];
        congestion_control.copy_from_slice(&bytes[32..]);
        Self {
            bytes: decode_u64(&bytes[..8]),
            elapsed_ns: decode_u64(&bytes[8..16]),
            retransmits: decode_u64(&bytes[16..24]),
            mss: decode_u64(&bytes[24..32]),
            congestion_control,
        }
    }

    /// The figures that this end of a connection knows as the sender; bytes and time of the window stay 0.
    pub(super) fn from_sender(stream: &TcpStream) -> io::Result<Self> {
        let info = sys::tcp_info(stream.as_fd())?;
        Ok(Self {
            retransmits: u64::from(info.tcpi_total_retrans),
            mss: u64::from(info.tcpi_snd_mss),
            congestion_control: sys::congestion_control(stream.as_fd())?,
            ..Self::default()
        })
    }

    /// The name of the congestion control.
    pub(super) fn congestion_control(&self) -> String {
        let padded = String::from_utf8_lossy(&self.congestion_control);
        padded.split('\0').next().unwrap_or_default().to_owned()
    }
}

fn decode_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the slice has eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_reverses_encoding(mode in 0_u8..3, a: u64, b: u64, c: u64) {
            let mode = [Mode::PingPong, Mode::Sink, Mode::Source][usize::from(mode)];
            let handshake = Handshake { mode, warmup_ns: a, measure_ns: b };
            prop_assert_eq!(Handshake::decode(handshake.encode()), Some(handshake));
            let figures = Figures { bytes: a, elapsed_ns: b, retransmits: c, mss: a ^ c, congestion_control: *b"cubic\0\0\0\0\0\0\0\0\0\0\0" };
            prop_assert_eq!(Figures::decode(figures.encode()), figures);
            prop_assert_eq!(figures.congestion_control(), "cubic");
        }
    }

    #[test]
    fn another_protocol_is_not_a_handshake() {
        assert_eq!(Handshake::decode(*b"GET / HTTP/1.1\r\n\r"), None);
    }
}
