//! Turns one connection's frames back into packets.

use super::{Codec, HEAD};
use crate::mysql::Malformed;
use crate::mysql::frame::{self, HEADER};

/// Maximum bytes that one call may produce: a few compressed bytes can expand to very many. Two of the longest frames fit.
const MAX_AT_ONCE: usize = 1 << 25;

/// The frames of one connection on their way to packets. It never holds more than one compressed payload.
#[derive(Debug, Default)]
pub struct Unpacker {
    head: [u8; HEAD],
    head_len: usize,
    /// Payload bytes of the current frame still to come; valid once the head is complete.
    missing: usize,
    /// The frame's length before compression; valid once the head is complete.
    unpacked_len: usize,
    /// A compressed payload that came in parts.
    body: Vec<u8>,
    /// The number of the next frame of the current answer.
    next: u8,
    /// The number of answers whose first frame has not come.
    due_answers: u32,
    renumberer: Renumberer,
}

impl Unpacker {
    /// Record that this many commands were sent, whose answers are due.
    pub fn sent(&mut self, commands: u32) {
        self.due_answers = self.due_answers.saturating_add(commands);
    }

    /// Take all bytes of `input`; append to `out` the packet bytes that they hold, at most 32 MiB: callers pass input in pieces
    /// small enough for what they expect.
    pub fn feed(
        &mut self,
        codec: &mut Codec,
        mut input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let max_out_len = out.len() + MAX_AT_ONCE;
        loop {
            if self.head_len < HEAD && !self.take_head(&mut input)? {
                return Ok(());
            }
            let (part, rest) = input.split_at(self.missing.min(input.len()));
            input = rest;
            self.missing -= part.len();
            let start = out.len();
            if self.unpacked_len == 0 {
                out.extend_from_slice(part);
            } else if out.len() + self.unpacked_len > max_out_len {
                return Err(Malformed::Compressed(
                    "stands for more than is taken at once",
                ));
            } else if self.missing > 0 {
                self.body.extend_from_slice(part);
            } else if self.body.is_empty() {
                codec.decompress_onto(part, self.unpacked_len, out)?;
            } else {
                self.body.extend_from_slice(part);
                codec.decompress_onto(&self.body, self.unpacked_len, out)?;
                // Return the memory of a large frame; the usual frame has 16 KiB.
                self.body.clear();
                self.body.shrink_to(1 << 14);
            }
            self.renumberer.renumber(&mut out[start..]);
            if self.missing > 0 {
                return Ok(());
            }
            self.head_len = 0;
        }
    }

    /// True when the head is complete and was accepted.
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
            let bytes = &self.head[at..at + 3];
            frame::header([bytes[0], bytes[1], bytes[2], 0]).0
        };
        (self.missing, self.unpacked_len) = (length(0), length(4));
        if self.missing == 0 && self.unpacked_len > 0 {
            return Err(Malformed::Compressed("is empty"));
        }
        // The first frame of an answer has number 1: the command's frame had 0.
        if number == 1 && self.due_answers > 0 {
            if !self.renumberer.is_between_packets() {
                return Err(Malformed::Compressed("begins an answer inside a packet"));
            }
            self.due_answers -= 1;
            self.renumberer.next = 1;
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

/// Corrects the sequence numbers of the packets inside frames. Servers number packets and frames with one counter, which they set
/// to the frame's number after each flush. Other clients ignore these numbers; the decoders above check them.
#[derive(Debug, Default)]
struct Renumberer {
    head: [u8; HEADER],
    head_len: usize,
    missing: usize,
    next: u8,
}

impl Renumberer {
    fn is_between_packets(&self) -> bool {
        self.head_len == 0 && self.missing == 0
    }

    fn renumber(&mut self, mut bytes: &mut [u8]) {
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
    use super::super::tests::{ALGORITHMS, codec, framed, packet};
    use super::*;

    #[test]
    fn a_command_beyond_16_mib_goes_in_numbered_frames() {
        let mut codec = codec(ALGORITHMS[1]);
        let long = packet(0, &vec![b'a'; frame::MAX_PAYLOAD + 10]);
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
        for algorithm in ALGORITHMS {
            let mut codec = codec(algorithm);
            let good = framed(&mut codec, 1, &packet(1, &[b'a'; 500]));
            for (at, added) in [(4, 1_u8), (4, 255), (6, 1)] {
                let mut bad = good.clone();
                bad[at] = bad[at].wrapping_add(added);
                let mut unpacker = Unpacker::default();
                unpacker.sent(1);
                let mut out = Vec::new();
                let refused = unpacker.feed(&mut codec, &bad, &mut out);
                assert!(
                    matches!(refused, Err(Malformed::Compressed(_))),
                    "{algorithm:?}: byte {at} by {added}"
                );
                assert!(out.is_empty());
            }
        }
    }

    #[test]
    fn a_frame_out_of_turn_is_refused() {
        let mut codec = codec(ALGORITHMS[0]);
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

    /// The counters of a server that flushed after its first frame, and those of a second answer that was requested in advance.
    #[test]
    fn packets_are_numbered_anew() {
        let mut codec = codec(ALGORITHMS[0]);
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
