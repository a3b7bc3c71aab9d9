//! The compressed protocol: below the packets, a stream of frames, each stored or compressed independently.
//!
//! A frame's header is three bytes of length, one of sequence number, and three of the length before compression, which is zero if the
//! payload is stored. Frames do not follow packet boundaries: either may hold parts of the other. As no frame refers to another, a
//! [`Codec`] (hundreds of KiB) serves all connections of a thread, and an [`Unpacker`] (bytes) serves one connection.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk::{Compressor, Decompressor};

use super::Malformed;
use super::frame::{self, HEADER_LEN};

mod unpack;

pub use unpack::Unpacker;

/// Length of a frame's header.
pub const FRAME_HEADER_LEN: usize = 7;
/// The longest payload of a frame, before and after compression: its length is a number of three bytes.
const MAX_FRAME_PAYLOAD: usize = 0xFF_FFFF;
/// Shorter payloads are stored, as by all clients and servers: compression would not save bytes.
const MIN_COMPRESSED_BYTES: usize = 50;

/// How payloads are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Level 1 to 9.
    Zlib { level: u8 },
    /// Level 1 to 22.
    Zstd { level: u8 },
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Zlib { .. } => "zlib",
            Self::Zstd { .. } => "zstd",
        }
    }
}

#[allow(clippy::large_enum_variant)] // there is one per thread
enum Engine {
    Zlib(Compress, Decompress),
    Zstd(Compressor<'static>, Decompressor<'static>),
}

/// Compresses and decompresses single payloads; reuses its memory, but keeps no state between payloads.
pub struct Codec {
    algorithm: Algorithm,
    engine: Engine,
    scratch: Vec<u8>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Codec")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl Codec {
    /// Make a codec. Fails if memory runs out or a level is out of bounds.
    pub fn new(algorithm: Algorithm) -> std::io::Result<Self> {
        let engine = match algorithm {
            Algorithm::Zlib { level } => Engine::Zlib(
                Compress::new(Compression::new(u32::from(level)), true),
                Decompress::new(true),
            ),
            Algorithm::Zstd { level } => {
                Engine::Zstd(Compressor::new(i32::from(level))?, Decompressor::new()?)
            }
        };
        Ok(Self {
            algorithm,
            engine,
            scratch: Vec::new(),
        })
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Append `packets`, which are complete commands, to `out` as frames. Each command has its own frames, numbered from 0. Returns the
    /// number of commands.
    pub fn pack(&mut self, packets: &[u8], out: &mut Vec<u8>) -> u32 {
        let mut rest = packets;
        let mut commands = 0;
        while !rest.is_empty() {
            let (command, tail) = rest.split_at(first_command_len(rest));
            for (number, payload) in command.chunks(MAX_FRAME_PAYLOAD).enumerate() {
                self.write_frame(number as u8, payload, out);
            }
            commands += 1;
            rest = tail;
        }
        commands
    }

    /// Append one frame; `payload` is at most 16 MiB - 1 bytes.
    pub fn write_frame(&mut self, number: u8, payload: &[u8], out: &mut Vec<u8>) {
        assert!(
            payload.len() <= MAX_FRAME_PAYLOAD,
            "a frame's length fits into three bytes"
        );
        let compressed_size = if payload.len() < MIN_COMPRESSED_BYTES {
            None
        } else {
            self.compress_to_scratch(payload)
        };
        let (body, unpacked_len) = match compressed_size {
            Some(size) => (&self.scratch[..size], payload.len()),
            None => (payload, 0),
        };
        let (length, unpacked_len) = (body.len().to_le_bytes(), unpacked_len.to_le_bytes());
        out.extend_from_slice(&length[..3]);
        out.push(number);
        out.extend_from_slice(&unpacked_len[..3]);
        out.extend_from_slice(body);
    }

    /// Compress into the scratch memory; returns the compressed size, or `None` if that is not smaller.
    fn compress_to_scratch(&mut self, payload: &[u8]) -> Option<usize> {
        let capacity = match self.engine {
            Engine::Zlib(..) => payload.len(),
            Engine::Zstd(..) => zstd::zstd_safe::compress_bound(payload.len()),
        };
        if self.scratch.len() < capacity {
            self.scratch.resize(capacity, 0);
        }
        let size = match &mut self.engine {
            Engine::Zlib(deflate, _) => {
                deflate.reset();
                let buffer = &mut self.scratch[..capacity];
                match deflate.compress(payload, buffer, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => deflate.total_out() as usize,
                    _ => return None,
                }
            }
            Engine::Zstd(compressor, _) => compressor
                .compress_to_buffer(payload, &mut self.scratch[..])
                .ok()?,
        };
        (size < payload.len()).then_some(size)
    }

    /// Append to `out` the decompressed `body`, which must have exactly `unpacked_len` bytes.
    fn decompress(
        &mut self,
        body: &[u8],
        unpacked_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let start = out.len();
        out.resize(start + unpacked_len, 0);
        let buffer = &mut out[start..];
        let is_complete = match &mut self.engine {
            Engine::Zlib(_, inflate) => {
                inflate.reset(true);
                let status = inflate.decompress(body, buffer, FlushDecompress::Finish);
                matches!(status, Ok(Status::StreamEnd))
                    && inflate.total_out() as usize == unpacked_len
                    && inflate.total_in() as usize == body.len()
            }
            Engine::Zstd(_, decompressor) => {
                matches!(decompressor.decompress_to_buffer(body, buffer), Ok(size) if size == unpacked_len)
            }
        };
        if is_complete {
            Ok(())
        } else {
            out.truncate(start);
            Err(Malformed::Compressed("does not hold what its head says"))
        }
    }
}

/// Length of the first command: its packets up to the next packet numbered 0.
fn first_command_len(packets: &[u8]) -> usize {
    let mut end = 0;
    while let Some(&[a, b, c, number]) = packets.get(end..end + HEADER_LEN) {
        if end > 0 && number == 0 {
            return end;
        }
        end += HEADER_LEN + frame::parse_header([a, b, c, number]).0;
    }
    assert!(
        end == packets.len(),
        "packets are complete: {end} of {} bytes",
        packets.len()
    );
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const ALGORITHMS: [Algorithm; 2] =
        [Algorithm::Zlib { level: 6 }, Algorithm::Zstd { level: 3 }];

    pub(super) fn codec(algorithm: Algorithm) -> Codec {
        Codec::new(algorithm).expect("the level is valid")
    }

    pub(super) fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::write_packet(&mut out, number, payload);
        out
    }

    /// A single frame.
    pub(super) fn make_frame(codec: &mut Codec, number: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        codec.write_frame(number, payload, &mut out);
        out
    }

    #[test]
    fn a_short_command_is_stored_in_a_frame_of_its_own() {
        let mut codec = codec(ALGORITHMS[0]);
        let mut out = Vec::new();
        let commands = [packet(0, b"one"), packet(0, b"two")].concat();
        assert_eq!(codec.pack(&commands, &mut out), 2);
        let expected = [
            &[7, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0][..],
            b"one",
            &[7, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
            b"two",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn incompressible_payloads_are_stored() {
        for algorithm in ALGORITHMS {
            let noise: Vec<u8> = (0..200_u32)
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            let out = make_frame(&mut codec(algorithm), 0, &noise);
            assert_eq!(out[4..7], [0, 0, 0], "{algorithm:?}");
            assert_eq!(out[7..], noise);
        }
    }
}
