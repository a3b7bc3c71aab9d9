//! One connection's way back from frames to packets.

use super::{Codec, HEAD};
use crate::mysql::Malformed;
use crate::mysql::frame::{self, HEADER};

/// Bytes that one call may give: a few bytes can stand for very many. Two of the longest frames fit.
const MOST_AT_ONCE: usize = 1 << 25;

/// One connection's frames on their way to packets. Never holds more than one compressed payload.
#[derive(Debug, Default)]
pub struct Unpacker {
    head: [u8; HEAD],
    head_len: usize,
    /// Payload bytes of the present frame still to come, and its length before compression; count once the head is whole.
    missing: usize,
    before: usize,
    /// A compressed payload that came in parts.
    body: Vec<u8>,
    /// The number of the next frame of the present answer, and the answers whose first frame has not come.
    next: u8,
    owed: u32,
    packets: Renumbering,
}

impl Unpacker {
    /// Commands were sent: so many answers are due.
    pub fn sent(&mut self, commands: u32) {
        self.owed = self.owed.saturating_add(commands);
    }

    /// Take all bytes of `input`; append to `out` the packet bytes that they hold, at most 32 MiB: callers cut the input small
    /// enough for what they expect.
    pub fn feed(
        &mut self,
        codec: &mut Codec,
        mut input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let most = out.len() + MOST_AT_ONCE;
        loop {
            if self.head_len < HEAD && !self.take_head(&mut input)? {
                return Ok(());
            }
            let (part, rest) = input.split_at(self.missing.min(input.len()));
            input = rest;
            self.missing -= part.len();
            let start = out.len();
            if self.before == 0 {
                out.extend_from_slice(part);
            } else if out.len() + self.before > most {
                return Err(Malformed::Compressed(
                    "stands for more than is taken at once",
                ));
            } else if self.missing > 0 {
                self.body.extend_from_slice(part);
            } else if self.body.is_empty() {
                codec.expand(part, self.before, out)?;
            } else {
                self.body.extend_from_slice(part);
                codec.expand(&self.body, self.before, out)?;
                // What was big is given back; the usual frame is one of 16 KiB.
                self.body.clear();
                self.body.shrink_to(1 << 14);
            }
            self.packets.pass(&mut out[start..]);
            if self.missing > 0 {
                return Ok(());
            }
            self.head_len = 0;
        }
    }

    /// True when the head is whole and was accepted.
    fn take_head(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let (part, rest) = input.split_at((HEAD - self.head_len).min(input.len()));
        self.head[self.head_len..self.head_len + part.len()].copy_from_slice(part);
        self.head_len += part.len();
        *input = rest;
        if self.head_len < HEAD {
            return Ok(false);
        }
        let number = self.head[3];
        let length = |at: usize| {
            let three = &self.head[at..at + 3];
            frame::header([three[0], three[1], three[2], 0]).0
        };
        (self.missing, self.before) = (length(0), length(4));
        if self.missing == 0 && self.before > 0 {
            return Err(Malformed::Compressed("is empty"));
        }
        // The first frame of an answer is 1: the command's frame was 0.
        if number == 1 && self.owed > 0 {
            if !self.packets.is_between() {
                return Err(Malformed::Compressed("begins an answer inside a packet"));
            }
            self.owed -= 1;
            self.packets.next = 1;
        } else if number != self.next {
            return Err(Malformed::Sequence {
                expected: self.next,
                got: number,
            });
        }
        self.next = number.wrapping_add(1);
        Ok(true)
    }
}

/// Puts right the sequence numbers of the packets inside frames. Servers number packets and frames by one counter, which they
/// set to the frames' after each flush, and no client looks; the decoders above do.
#[derive(Debug, Default)]
struct Renumbering {
    head: [u8; HEADER],
    head_len: usize,
    missing: usize,
    next: u8,
}

impl Renumbering {
    fn is_between(&self) -> bool {
        self.head_len == 0 && self.missing == 0
    }

    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.missing > 0 {
                let part = self.missing.min(bytes.len());
                self.missing -= part;
                bytes = &mut bytes[part..];
                continue;
            }
            self.head[self.head_len] = bytes[0];
            self.head_len += 1;
            if self.head_len == HEADER {
                bytes[0] = self.next;
                self.next = self.next.wrapping_add(1);
                self.missing = frame::header(self.head).0;
                self.head_len = 0;
            }
            bytes = &mut bytes[1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ALL, codec, framed, packet};
    use super::*;

    #[test]
    fn a_command_beyond_16_mib_goes_in_numbered_frames() {
        let mut codec = codec(ALL[1]);
        let long = packet(0, &vec![b'a'; frame::FULL + 10]);
        let mut out = Vec::new();
        assert_eq!(codec.pack(&long, &mut out), 1);
        let mut unpacker = Unpacker::default();
        let mut plain = Vec::new();
        unpacker
            .feed(&mut codec, &out, &mut plain)
            .expect("numbered from 0");
        assert_eq!(plain.len(), long.len());
        assert_eq!(unpacker.next, 2);
    }

    #[test]
    fn lies_in_a_head_are_refused() {
        for algorithm in ALL {
            let mut codec = codec(algorithm);
            let good = framed(&mut codec, 1, &packet(1, &[b'a'; 500]));
            for (at, by) in [(4, 1_u8), (4, 255), (6, 1)] {
                let mut bad = good.clone();
                bad[at] = bad[at].wrapping_add(by);
                let mut unpacker = Unpacker::default();
                unpacker.sent(1);
                let mut out = Vec::new();
                let refused = unpacker.feed(&mut codec, &bad, &mut out);
                assert!(
                    matches!(refused, Err(Malformed::Compressed(_))),
                    "{algorithm:?}: byte {at} by {by}"
                );
                assert!(out.is_empty());
            }
        }
    }

    #[test]
    fn a_frame_out_of_turn_is_refused() {
        let mut codec = codec(ALL[0]);
        let mut unpacker = Unpacker::default();
        unpacker.sent(1);
        let mut out = Vec::new();
        let early = framed(&mut codec, 2, &packet(1, b"x"));
        assert_eq!(
            unpacker.feed(&mut codec, &early, &mut out),
            Err(Malformed::Sequence {
                expected: 0,
                got: 2
            })
        );
    }

    /// The counters of a server that flushed after its first packet, and those of a second answer that was requested in advance.
    #[test]
    fn packets_are_numbered_anew() {
        let mut codec = codec(ALL[0]);
        let mut unpacker = Unpacker::default();
        unpacker.sent(2);
        let stream = [
            framed(
                &mut codec,
                1,
                &[packet(1, b"a"), packet(2, b"b"), packet(3, b"c")].concat(),
            ),
            framed(&mut codec, 2, &packet(2, b"d")),
            framed(&mut codec, 1, &packet(1, b"e")),
        ]
        .concat();
        let mut out = Vec::new();
        unpacker
            .feed(&mut codec, &stream, &mut out)
            .expect("well formed");
        let expected = [
            packet(1, b"a"),
            packet(2, b"b"),
            packet(3, b"c"),
            packet(4, b"d"),
            packet(1, b"e"),
        ];
        assert_eq!(out, expected.concat());
    }
}
