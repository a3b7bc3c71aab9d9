//! Reads files of captured packets in the formats pcap and pcapng.

use std::io::{self, Read};

/// Maximum bytes of a packet.
const MAX_PACKET_BYTES: usize = 1 << 20;

/// Link type of an interface, which determines the header of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The loopback interface of the BSDs and of macOS.
    Null,
    Ethernet,
    Raw,
    /// Linux's "any" interface with version 1 of the cooked header.
    Cooked,
    /// The same interface with version 2 of the cooked header.
    Cooked2,
    Ppp,
    /// The number of an unknown link type.
    Other(u16),
    /// The packet has no timestamp (pcapng's simple packet block).
    Timeless,
}

impl Link {
    const fn from_number(number: u32) -> Self {
        match number as u16 {
            0 | 108 => Self::Null,
            1 => Self::Ethernet,
            9 | 50 => Self::Ppp,
            12 | 14 | 101 | 228 | 229 => Self::Raw,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            other => Self::Other(other),
        }
    }
}

/// A packet, perhaps truncated.
#[derive(Debug)]
pub struct Packet {
    pub at_ns: u64,
    pub link: Link,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: Link,
    ticks_per_s: u64,
}

/// A file of captured packets.
#[derive(Debug)]
pub struct Capture<R> {
    input: R,
    is_big_endian: bool,
    /// The single interface of a pcap file, or the interfaces so far of a section of a pcapng file.
    interfaces: Vec<Interface>,
    is_pcapng: bool,
    /// Bytes of the current record that have been read.
    record_bytes: usize,
    is_cut: bool,
}

impl<R: Read> Capture<R> {
    /// Reads the file header. Fails if it is too short, or neither pcap nor pcapng.
    pub fn open(mut input: R) -> io::Result<Self> {
        let mut magic = [0; 4];
        input
            .read_exact(&mut magic)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other("it is shorter than a head"),
                _ => error,
            })?;
        let mut capture = Self {
            input,
            is_big_endian: magic[0] == 0xA1,
            interfaces: Vec::new(),
            is_pcapng: magic == [0x0A, 0x0D, 0x0D, 0x0A],
            record_bytes: 0,
            is_cut: false,
        };
        let ticks_per_s = match u32::from_le_bytes(magic) {
            0xA1B2_C3D4 | 0xD4C3_B2A1 => 1_000_000,
            0xA1B2_3C4D | 0x4D3C_B2A1 => 1_000_000_000,
            _ if capture.is_pcapng => {
                capture.read_section()?;
                return Ok(capture);
            }
            _ => return Err(io::Error::other("it is neither pcap nor pcapng")),
        };
        let header = capture.read_bytes(20).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it is shorter than a head"),
            _ => error,
        })?;
        let link = Link::from_number(capture.read_u32(&header, 16));
        capture.interfaces.push(Interface { link, ticks_per_s });
        Ok(capture)
    }

    /// Read the next packet; None at the end of the file, which may be inside a packet if the capture was killed.
    pub fn next_packet(&mut self) -> io::Result<Option<Packet>> {
        loop {
            self.record_bytes = 0;
            let packet = if self.is_pcapng {
                self.read_block()
            } else {
                self.read_record()
            };
            match packet {
                Ok(Some(packet)) => return Ok(Some(packet)),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.is_cut |= self.record_bytes > 0;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the file ended inside a packet, or inside compressed data.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Read a record of a pcap file.
    fn read_record(&mut self) -> io::Result<Option<Packet>> {
        let header = self.read_bytes(16)?;
        let (seconds, ticks) = (self.read_u32(&header, 0), self.read_u32(&header, 4));
        let bytes = self.read_bytes(self.read_u32(&header, 8) as usize)?;
        let Interface { link, ticks_per_s } = self.interfaces[0];
        let at_ns =
            u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * (1_000_000_000 / ticks_per_s);
        Ok(Some(Packet { at_ns, link, bytes }))
    }

    /// Read the header of a pcapng section, after its type.
    fn read_section(&mut self) -> io::Result<()> {
        let header = self.read_bytes(8)?;
        self.is_big_endian = header[4] == 0x1A;
        let length = self.read_u32(&header, 0) as usize;
        self.read_bytes(length.saturating_sub(12))?;
        self.interfaces.clear();
        Ok(())
    }

    /// Read a block of a pcapng file; None if it is not a packet.
    fn read_block(&mut self) -> io::Result<Option<Packet>> {
        const SECTION: u32 = 0x0A0D_0D0A;
        let kind = self.read_bytes(4)?;
        if self.read_u32(&kind, 0) == SECTION {
            self.read_section()?;
            return Ok(None);
        }
        let length = self.read_bytes(4)?;
        let body = self.read_bytes((self.read_u32(&length, 0) as usize).saturating_sub(8))?;
        match self.read_u32(&kind, 0) {
            1 if body.len() >= 8 => {
                let link = Link::from_number(u32::from(self.read_u16(&body, 0)));
                let ticks_per_s =
                    self.parse_resolution(&body[8..body.len().saturating_sub(4).max(8)]);
                self.interfaces.push(Interface { link, ticks_per_s });
                Ok(None)
            }
            6 if body.len() >= 20 => {
                Ok(self.parse_packet_block(&body, self.read_u32(&body, 0) as usize))
            }
            // The obsolete packet block has the same layout.
            2 if body.len() >= 20 => {
                Ok(self.parse_packet_block(&body, self.read_u16(&body, 0).into()))
            }
            3 => Ok(Some(Packet {
                at_ns: 0,
                link: Link::Timeless,
                bytes: Vec::new(),
            })),
            _ => Ok(None),
        }
    }

    fn parse_packet_block(&self, body: &[u8], interface: usize) -> Option<Packet> {
        let Interface { link, ticks_per_s } = *self.interfaces.get(interface)?;
        let ticks = (u64::from(self.read_u32(body, 4)) << 32) | u64::from(self.read_u32(body, 8));
        let bytes = body
            .get(20..20 + self.read_u32(body, 12) as usize)?
            .to_vec();
        let at_ns = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_s);
        Some(Packet {
            at_ns: at_ns as u64,
            link,
            bytes,
        })
    }

    /// Parse the timestamp resolution of an interface, in ticks per second.
    fn parse_resolution(&self, mut options: &[u8]) -> u64 {
        const IF_TSRESOL: u16 = 9;
        while options.len() >= 4 {
            let (code, length) = (
                self.read_u16(options, 0),
                usize::from(self.read_u16(options, 2)),
            );
            if code == IF_TSRESOL && options.len() > 4 {
                let exponent = u32::from(options[4] & 0x7F);
                let base: u64 = if options[4] & 0x80 == 0 { 10 } else { 2 };
                return base.checked_pow(exponent).unwrap_or(1_000_000_000).max(1);
            }
            options = options
                .get(4 + length.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        1_000_000
    }

    fn read_bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        if count > MAX_PACKET_BYTES {
            return Err(io::Error::other(
                "a packet longer than any: the file is damaged",
            ));
        }
        let mut bytes = Vec::with_capacity(count);
        let read = (&mut self.input).take(count as u64).read_to_end(&mut bytes);
        self.record_bytes += bytes.len();
        match read {
            Ok(read) if read < count => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) => {
                self.is_cut = error.kind() == io::ErrorKind::UnexpectedEof;
                return Err(error);
            }
        }
        Ok(bytes)
    }

    fn read_u32(&self, bytes: &[u8], offset: usize) -> u32 {
        let bytes = bytes[offset..offset + 4].try_into();
        let bytes: [u8; 4] = bytes.expect("the slice has four bytes");
        if self.is_big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }

    fn read_u16(&self, bytes: &[u8], offset: usize) -> u16 {
        let bytes = [bytes[offset], bytes[offset + 1]];
        if self.is_big_endian {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        }
    }
}
