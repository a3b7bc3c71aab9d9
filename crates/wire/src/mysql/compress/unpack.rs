//! Turns one connection's frames back into packets.

use super::{Codec, FRAME_HEADER_LEN};
use crate::mysql::Malformed;
use crate::mysql::frame::{self, HEADER_LEN};

/// Maximum bytes that one call may produce, since a few compressed bytes can expand to very many. Two of the longest frames fit.
const MAX_OUTPUT_BYTES: usize = 1 << 25;

/// Decodes the frames of one connection. It never holds more than one compressed payload.
#[derive(Debug, Default)]
pub struct Unpacker {
    header: [u8; FRAME_HEADER_LEN],
    header_len: usize,
    /// Payload bytes of the current frame still to come; valid once the header is complete.
    payload_bytes_left: usize,
    /// The frame's length before compression; valid once the header is complete.
    unpacked_len: usize,
    /// The part of a compressed payload that has come.
    body: Vec<u8>,
    /// The number of the next frame of the current answer.
    next_number: u8,
    /// Number of answers whose first frame has not come.
    due_answers: u32,
    renumberer: Renumberer,
}

impl Unpacker {
    /// Expect the answers to this many commands that were sent.
    pub fn expect_answers(&mut self, commands: u32) {
        self.due_answers = self.due_answers.saturating_add(commands);
    }

    /// Consume all bytes of `input`; append to `out` the packet bytes that they hold, at most 32 MiB. Callers pass input in pieces that
    /// are small enough for this limit.
    pub fn feed(
        &mut self,
        codec: &mut Codec,
        mut input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let max_out_len = out.len() + MAX_OUTPUT_BYTES;
        loop {
            if self.header_len < FRAME_HEADER_LEN && !self.take_header(&mut input)? {
                return Ok(());
            }
            let (part, rest) = input.split_at(self.payload_bytes_left.min(input.len()));
            input = rest;
            self.payload_bytes_left -= part.len();
            let start = out.len();
            if self.unpacked_len == 0 {
                out.extend_from_slice(part);
            } else if out.len() + self.unpacked_len > max_out_len {
                return Err(Malformed::Compressed(
                    "stands for more than is taken at once",
                ));
            } else if self.payload_bytes_left > 0 {
                self.body.extend_from_slice(part);
            } else if self.body.is_empty() {
                codec.decompress(part, self.unpacked_len, out)?;
            } else {
                self.body.extend_from_slice(part);
                codec.decompress(&self.body, self.unpacked_len, out)?;
                // Return the memory of a large frame; the usual frame has 16 KiB.
                self.body.clear();
                self.body.shrink_to(1 << 14);
            }
            self.renumberer.renumber(&mut out[start..]);
            if self.payload_bytes_left > 0 {
                return Ok(());
            }
            self.header_len = 0;
        }
    }

    /// Consume bytes of the header; true when it is complete and valid.
    fn take_header(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let (part, rest) = input.split_at((FRAME_HEADER_LEN - self.header_len).min(input.len()));
        self.header[self.header_len..self.header_len + part.len()].copy_from_slice(part);
        self.header_len += part.len();
        *input = rest;
        if self.header_len < FRAME_HEADER_LEN {
            return Ok(false);
        }
        let number = self.header[3];
        let read_length = |offset: usize| {
            let bytes = &self.header[offset..offset + 3];
            frame::parse_header([bytes[0], bytes[1], bytes[2], 0]).0
        };
        (self.payload_bytes_left, self.unpacked_len) = (read_length(0), read_length(4));
        if self.payload_bytes_left == 0 && self.unpacked_len > 0 {
            return Err(Malformed::Compressed("is empty"));
        }
        // The first frame of an answer has number 1, since the command's frame had 0.
        if number == 1 && self.due_answers > 0 {
            if !self.renumberer.is_between_packets() {
                return Err(Malformed::Compressed("begins an answer inside a packet"));
            }
            self.due_answers -= 1;
            self.renumberer.next_number = 1;
        } else if number != self.next_number {
            return Err(Malformed::Sequence {
                expected: self.next_number,
                received: number,
            });
        }
        self.next_number = number.wrapping_add(1);
        Ok(true)
    }
}

/// Corrects the sequence numbers of the packets inside frames. Servers number packets and frames with one counter, which they set
/// to the frame's number after each flush. Other clients ignore these numbers; the decoders of the layer above check them.
#[derive(Debug, Default)]
struct Renumberer {
    header: [u8; HEADER_LEN],
    header_len: usize,
    payload_bytes_left: usize,
    next_number: u8,
}

impl Renumberer {
    fn is_between_packets(&self) -> bool {
        self.header_len == 0 && self.payload_bytes_left == 0
    }

    fn renumber(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.payload_bytes_left > 0 {
                let part = self.payload_bytes_left.min(bytes.len());
                self.payload_bytes_left -= part;
                bytes = &mut bytes[part..];
                continue;
            }
            self.header[self.header_len] = bytes[0];
            self.header_len += 1;
            if self.header_len == HEADER_LEN {
                bytes[0] = self.next_number;
                self.next_number = self.next_number.wrapping_add(1);
                self.payload_bytes_left = frame::parse_header(self.header).0;
                self.header_len = 0;
            }
            bytes = &mut bytes[1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ALGORITHMS, codec, make_frame, packet};
    use super::*;

    #[test]
    fn a_command_beyond_16_mib_is_sent_in_numbered_frames() {
        let mut codec = codec(ALGORITHMS[1]);
        let long = packet(0, &vec![b'a'; frame::MAX_PAYLOAD + 10]);
        let mut out = Vec::new();
        assert_eq!(codec.pack(&long, &mut out), 1);
        let mut unpacker = Unpacker::default();
        let mut plain = Vec::new();
        unpacker
            .feed(&mut codec, &out, &mut plain)
            .expect("the frames are numbered from 0");
        assert_eq!(plain.len(), long.len());
        assert_eq!(unpacker.next_number, 2);
    }

    #[test]
    fn wrong_lengths_in_a_header_are_refused() {
        for algorithm in ALGORITHMS {
            let mut codec = codec(algorithm);
            let valid = make_frame(&mut codec, 1, &packet(1, &[b'a'; 500]));
            for (offset, added) in [(4, 1_u8), (4, 255), (6, 1)] {
                let mut invalid = valid.clone();
                invalid[offset] = invalid[offset].wrapping_add(added);
                let mut unpacker = Unpacker::default();
                unpacker.expect_answers(1);
                let mut out = Vec::new();
                let refused = unpacker.feed(&mut codec, &invalid, &mut out);
                assert!(
                    matches!(refused, Err(Malformed::Compressed(_))),
                    "{algorithm:?}: byte {offset} by {added}"
                );
                assert!(out.is_empty());
            }
        }
    }

    #[test]
    fn a_frame_out_of_order_is_refused() {
        let mut codec = codec(ALGORITHMS[0]);
        let mut unpacker = Unpacker::default();
        unpacker.expect_answers(1);
        let mut out = Vec::new();
        let early = make_frame(&mut codec, 2, &packet(1, b"x"));
        assert_eq!(
            unpacker.feed(&mut codec, &early, &mut out),
            Err(Malformed::Sequence {
                expected: 0,
                received: 2
            })
        );
    }

    /// Uses the counters of a server that flushed after its first frame, and a second answer that was requested in advance.
    #[test]
    fn packets_are_renumbered() {
        let mut codec = codec(ALGORITHMS[0]);
        let mut unpacker = Unpacker::default();
        unpacker.expect_answers(2);
        let stream = [
            make_frame(
                &mut codec,
                1,
                &[packet(1, b"a"), packet(2, b"b"), packet(3, b"c")].concat(),
            ),
            make_frame(&mut codec, 2, &packet(2, b"d")),
            make_frame(&mut codec, 1, &packet(1, b"e")),
        ]
        .concat();
        let mut out = Vec::new();
        unpacker
            .feed(&mut codec, &stream, &mut out)
            .expect("the frames are valid");
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
