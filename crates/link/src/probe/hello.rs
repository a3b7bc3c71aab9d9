//! The first bytes of a probe's connection, and the figures that come back at the end of a transfer.

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The echo sends back each byte.
    PingPong,
    /// The echo receives for the window, then sends its [`Figures`].
    Sink,
    /// The echo sends until the other end closes its sending side, then sends its [`Figures`] as the last bytes.
    Source,
}

/// Mode, warm-up and measured window: 1 + 8 + 8 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) mode: Mode,
    pub(super) warmup_ns: u64,
    pub(super) measure_ns: u64,
}

pub(super) const HELLO: usize = 17;

impl Hello {
    pub(super) fn encode(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0] = match self.mode {
            Mode::PingPong => b'P',
            Mode::Sink => b'K',
            Mode::Source => b'S',
        };
        bytes[1..9].copy_from_slice(&self.warmup_ns.to_le_bytes());
        bytes[9..].copy_from_slice(&self.measure_ns.to_le_bytes());
        bytes
    }

    /// None: not one of ours.
    pub(super) fn decode(bytes: [u8; HELLO]) -> Option<Self> {
        let mode = match bytes[0] {
            b'P' => Mode::PingPong,
            b'K' => Mode::Sink,
            b'S' => Mode::Source,
            _ => return None,
        };
        Some(Self {
            mode,
            warmup_ns: number(&bytes[1..9]),
            measure_ns: number(&bytes[9..]),
        })
    }
}

/// What the far end knows: a sink its bytes in the window and the window's true length, a source its retransmitted segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
    pub(super) retransmits: u64,
}

pub(super) const FIGURES: usize = 24;

impl Figures {
    pub(super) fn encode(self) -> [u8; FIGURES] {
        let mut bytes = [0; FIGURES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.elapsed_ns.to_le_bytes());
        bytes[16..].copy_from_slice(&self.retransmits.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; FIGURES]) -> Self {
        Self {
            bytes: number(&bytes[..8]),
            elapsed_ns: number(&bytes[8..16]),
            retransmits: number(&bytes[16..]),
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(mode in 0_u8..3, a: u64, b: u64, c: u64) {
            let mode = [Mode::PingPong, Mode::Sink, Mode::Source][usize::from(mode)];
            let hello = Hello { mode, warmup_ns: a, measure_ns: b };
            prop_assert_eq!(Hello::decode(hello.encode()), Some(hello));
            let figures = Figures { bytes: a, elapsed_ns: b, retransmits: c };
            prop_assert_eq!(Figures::decode(figures.encode()), figures);
        }
    }

    #[test]
    fn a_stranger_is_not_understood() {
        assert_eq!(Hello::decode(*b"GET / HTTP/1.1\r\n\r"), None);
    }
}
