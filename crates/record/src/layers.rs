//! Finds the TCP segment in a packet, below any encapsulation.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::capture::{Link, Packet};

/// Maximum number of nested layers.
const MAX_LAYERS: usize = 32;
const IP_4: u16 = 0x0800;
const IP_6: u16 = 0x86DD;
const ETHERNET: u16 = 0x6558;
const TCP: u8 = 6;
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;

/// An address and a port.
pub(crate) type Endpoint = (IpAddr, u16);

/// Why a packet is skipped, worded to follow "packets are".
pub(crate) type Reason = Cow<'static, str>;

const CUT: Reason = Cow::Borrowed("cut before the end of their headers");
const FRAGMENT: Reason = Cow::Borrowed("fragments of IP");
const TOO_DEEP: Reason = Cow::Borrowed("wrapped too many times");

/// Reasons of packets that cannot be TCP of the server.
const UNRELATED: [&str; 4] = [OTHER_ENDPOINT, "ARP", "ICMP", "UDP"];
pub(crate) const OTHER_ENDPOINT: &str = "TCP of another port or address";

/// Whether packets skipped for this reason were understood.
pub(crate) fn is_understood(reason: &str) -> bool {
    UNRELATED.contains(&reason)
}

/// A TCP segment.
pub(crate) struct Segment<'a> {
    pub(crate) at_ns: u64,
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    pub(crate) payload: &'a [u8],
    /// Bytes of the payload that the capture cut off.
    pub(crate) cut_bytes: usize,
}

/// The next layer of a packet.
enum Layer<'a> {
    /// A payload and its Ethernet type.
    Typed(u16, &'a [u8]),
    Ethernet(&'a [u8]),
    /// IP of the version that its first byte gives.
    Ip(&'a [u8]),
    Ppp(&'a [u8]),
    Tcp(Tcp<'a>),
}

/// A TCP segment in an IP packet.
struct Tcp<'a> {
    source: IpAddr,
    destination: IpAddr,
    length: usize,
    /// The captured bytes of the segment.
    bytes: &'a [u8],
}

/// Find the TCP segment in a packet. Fails with the reason why there is none.
pub(crate) fn find_segment(packet: &Packet) -> Result<Segment<'_>, Reason> {
    let bytes = packet.bytes.as_slice();
    let mut layer = match packet.link {
        Link::Raw => Layer::Ip(bytes),
        Link::Null => Layer::Ip(skip_bytes(bytes, 4)?),
        Link::Cooked => Layer::Typed(read_u16(bytes, 14)?, skip_bytes(bytes, 16)?),
        Link::Cooked2 => Layer::Typed(read_u16(bytes, 0)?, skip_bytes(bytes, 20)?),
        Link::Ethernet => Layer::Ethernet(bytes),
        Link::Ppp => Layer::Ppp(bytes),
        Link::Timeless => return Err("without a time".into()),
        Link::Other(number) => return Err(format!("of link type {number}").into()),
    };
    for _ in 0..MAX_LAYERS {
        layer = match layer {
            Layer::Ethernet(bytes) => Layer::Typed(read_u16(bytes, 12)?, skip_bytes(bytes, 14)?),
            Layer::Typed(kind, bytes) => parse_ethertype(kind, bytes)?,
            Layer::Ppp(bytes) => parse_ppp(bytes)?,
            Layer::Ip(bytes) => parse_ip(bytes)?,
            Layer::Tcp(tcp) => return tcp.into_segment(packet.at_ns),
        };
    }
    Err(TOO_DEEP)
}

fn read_array<const COUNT: usize>(bytes: &[u8], offset: usize) -> Result<[u8; COUNT], Reason> {
    let array = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    array.copied().ok_or(CUT)
}

fn read_u16(bytes: &[u8], offset: usize) -> Result<u16, Reason> {
    Ok(u16::from_be_bytes(read_array(bytes, offset)?))
}

fn read_byte(bytes: &[u8], offset: usize) -> Result<u8, Reason> {
    bytes.get(offset).copied().ok_or(CUT)
}

fn skip_bytes(bytes: &[u8], count: usize) -> Result<&[u8], Reason> {
    bytes.get(count..).ok_or(CUT)
}

fn parse_ethertype(kind: u16, bytes: &[u8]) -> Result<Layer<'_>, Reason> {
    Ok(match kind {
        IP_4 | IP_6 => Layer::Ip(bytes),
        ETHERNET => Layer::Ethernet(bytes),
        // VLAN tags, which may be nested.
        0x8100 | 0x88A8 | 0x9100 | 0x9200 | 0x9300 => {
            Layer::Typed(read_u16(bytes, 2)?, skip_bytes(bytes, 4)?)
        }
        0x8864 => Layer::Ppp(skip_bytes(bytes, 6)?),
        0x8847 | 0x8848 => parse_mpls(bytes)?,
        0x0806 => return Err("ARP".into()),
        0..0x0600 => return Err("frames of Ethernet without a type".into()),
        _ => return Err(format!("of Ethernet's type {kind:#06x}").into()),
    })
}

/// Parse MPLS: skip the labels up to the last, which is marked.
fn parse_mpls(bytes: &[u8]) -> Result<Layer<'_>, Reason> {
    let mut offset = 0;
    while read_byte(bytes, offset + 2)? & 1 == 0 {
        offset += 4;
    }
    let inner = skip_bytes(bytes, offset + 4)?;
    match read_byte(inner, 0)? >> 4 {
        4 | 6 => Ok(Layer::Ip(inner)),
        // A pseudowire with a control word.
        0 => Ok(Layer::Ethernet(skip_bytes(inner, 4)?)),
        _ => Err("MPLS with neither IP nor Ethernet".into()),
    }
}

fn parse_ppp(bytes: &[u8]) -> Result<Layer<'_>, Reason> {
    let bytes = bytes.strip_prefix(&[0xFF, 0x03]).unwrap_or(bytes);
    // A leading zero byte may be omitted.
    let (kind, size) = match read_byte(bytes, 0)? {
        odd if odd & 1 == 1 => (u16::from(odd), 1),
        _ => (read_u16(bytes, 0)?, 2),
    };
    match kind {
        0x21 | 0x57 => Ok(Layer::Ip(skip_bytes(bytes, size)?)),
        _ => Err("PPP without IP".into()),
    }
}

fn parse_ip(bytes: &[u8]) -> Result<Layer<'_>, Reason> {
    match read_byte(bytes, 0)? >> 4 {
        4 => parse_ipv4(bytes),
        6 => parse_ipv6(bytes),
        _ => Err("neither IPv4 nor IPv6".into()),
    }
}

/// Parse IPv4. A total length of 0 marks a packet of segmentation offload whose length does not fit into the field.
fn parse_ipv4(ip: &[u8]) -> Result<Layer<'_>, Reason> {
    let header = usize::from(ip[0] & 15) * 4;
    if read_u16(ip, 6)? & 0x3FFF != 0 {
        return Err(FRAGMENT);
    }
    let total = usize::from(read_u16(ip, 2)?);
    let total = if total == 0 { ip.len() } else { total };
    let tcp = Tcp {
        source: IpAddr::V4(Ipv4Addr::from(read_array::<4>(ip, 12)?)),
        destination: IpAddr::V4(Ipv4Addr::from(read_array::<4>(ip, 16)?)),
        length: total.checked_sub(header).ok_or(CUT)?,
        bytes: skip_bytes(ip, header)?,
    };
    parse_ip_payload(read_byte(ip, 9)?, tcp)
}

fn parse_ipv6(ip: &[u8]) -> Result<Layer<'_>, Reason> {
    let (mut next, mut rest) = (read_byte(ip, 6)?, skip_bytes(ip, 40)?);
    let total = usize::from(read_u16(ip, 4)?);
    let mut length = if total == 0 { rest.len() } else { total };
    // Skip extension headers; a fragment header only if it marks a complete packet.
    while matches!(next, 0 | 43 | 44 | 60) {
        if next == 44 && read_u16(rest, 2)? & 0xFFF9 != 0 {
            return Err(FRAGMENT);
        }
        let size = match next {
            44 => 8,
            _ => usize::from(read_byte(rest, 1)?) * 8 + 8,
        };
        next = read_byte(rest, 0)?;
        rest = skip_bytes(rest, size)?;
        length = length.checked_sub(size).ok_or(CUT)?;
    }
    let tcp = Tcp {
        source: IpAddr::V6(Ipv6Addr::from(read_array::<16>(ip, 8)?)),
        destination: IpAddr::V6(Ipv6Addr::from(read_array::<16>(ip, 24)?)),
        length,
        bytes: rest,
    };
    parse_ip_payload(next, tcp)
}

/// Parse the payload of an IP packet; `tcp` is the payload as a TCP segment.
fn parse_ip_payload(protocol: u8, tcp: Tcp<'_>) -> Result<Layer<'_>, Reason> {
    match protocol {
        TCP => Ok(Layer::Tcp(tcp)),
        4 | 41 => Ok(Layer::Ip(tcp.bytes)),
        47 => parse_gre(tcp.bytes),
        17 => {
            let inner = || skip_bytes(tcp.bytes, 8);
            match read_u16(tcp.bytes, 2)? {
                port if VXLAN.contains(&port) => Ok(Layer::Ethernet(skip_bytes(inner()?, 8)?)),
                GENEVE => {
                    let options = usize::from(read_byte(inner()?, 0)? & 0x3F) * 4;
                    Ok(Layer::Typed(
                        read_u16(inner()?, 2)?,
                        skip_bytes(inner()?, 8 + options)?,
                    ))
                }
                _ => Err("UDP".into()),
            }
        }
        1 | 58 => Err("ICMP".into()),
        50 => Err("encrypted by IPsec".into()),
        _ => Err(format!("of IP's protocol {protocol}").into()),
    }
}

/// Parse GRE, which may contain mirrored frames (ERSPAN) or PPP.
fn parse_gre(bytes: &[u8]) -> Result<Layer<'_>, Reason> {
    let (flags, kind) = (read_u16(bytes, 0)?, read_u16(bytes, 2)?);
    let is_set = |bit: u16| usize::from(flags & bit != 0);
    let size = 4 + 4 * (is_set(0xC000) + is_set(0x2000) + is_set(0x1000) + is_set(0x0080));
    let inner = skip_bytes(bytes, size)?;
    match kind {
        0x880B => Ok(Layer::Ppp(inner)),
        0x88BE => Ok(Layer::Ethernet(skip_bytes(inner, 8 * is_set(0x1000))?)),
        0x22EB => {
            let subheader = if read_byte(inner, 11)? & 1 == 1 { 8 } else { 0 };
            Ok(Layer::Ethernet(skip_bytes(inner, 12 + subheader)?))
        }
        _ => Ok(Layer::Typed(kind, inner)),
    }
}

impl<'a> Tcp<'a> {
    fn into_segment(self, at_ns: u64) -> Result<Segment<'a>, Reason> {
        let bytes = self.bytes;
        let header = usize::from(read_byte(bytes, 12)? >> 4) * 4;
        let payload_length = self.length.checked_sub(header).ok_or(CUT)?;
        let captured = skip_bytes(bytes, header)?;
        // Short frames have padding after the payload.
        let payload = &captured[..captured.len().min(payload_length)];
        Ok(Segment {
            at_ns,
            source: (self.source, read_u16(bytes, 0)?),
            destination: (self.destination, read_u16(bytes, 2)?),
            sequence: u32::from_be_bytes(read_array(bytes, 4)?),
            acknowledged: u32::from_be_bytes(read_array(bytes, 8)?),
            flags: read_byte(bytes, 13)?,
            payload,
            cut_bytes: payload_length - payload.len(),
        })
    }
}
