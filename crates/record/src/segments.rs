//! Packets into the bytes of connections: in order, each once, and what was not captured counted.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Direction;
use crate::capture::{Link, Packet};

/// Bytes of a direction that may wait for a packet that is missing.
const MOST_BYTES: usize = 4 << 20;
const MOST_FLOWS: usize = 65_536;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

type End = (IpAddr, u16);

/// What packets came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// `is_new`: from its first packet on.
    Opened {
        id: u64,
        at_ns: u64,
        is_new: bool,
    },
    /// Bytes, and how many after them are missing.
    Bytes {
        id: u64,
        direction: Direction,
        at_ns: u64,
        bytes: Vec<u8>,
        skipped: usize,
    },
    Closed {
        id: u64,
        at_ns: u64,
    },
}

struct Segment<'a> {
    at_ns: u64,
    from: End,
    to: End,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    payload: &'a [u8],
    /// Bytes of the payload that were cut.
    cut: usize,
}

#[derive(Debug, Default)]
struct Half {
    next: Option<u32>,
    /// By distance from `next` at the time; sequence number, time, bytes, cut.
    waiting: BTreeMap<u64, (u64, Vec<u8>, usize)>,
    waiting_bytes: usize,
    /// Bytes so far: sequence numbers without their turning over.
    position: u64,
    ended: bool,
}

#[derive(Debug)]
struct Flow {
    id: u64,
    halves: [Half; 2],
}

/// The connections to a server's port.
#[derive(Debug)]
pub struct Segments {
    port: u16,
    address: Option<IpAddr>,
    flows: HashMap<(End, End), Flow>,
    next_id: u64,
    /// Bytes that were not captured.
    pub missing: u64,
    pub packets: u64,
}

impl Segments {
    /// The connections to this port, of this address if one is given.
    pub fn new(port: u16, address: Option<IpAddr>) -> Self {
        Self {
            port,
            address,
            flows: HashMap::new(),
            next_id: 1,
            missing: 0,
            packets: 0,
        }
    }

    fn is_server(&self, end: End) -> bool {
        end.1 == self.port && self.address.is_none_or(|address| address == end.0)
    }

    /// Take a packet.
    pub fn take(&mut self, packet: &Packet, out: &mut Vec<Event>) {
        let Some(segment) = parse(packet) else {
            return;
        };
        let (key, to_server) = if self.is_server(segment.to) {
            ((segment.from, segment.to), true)
        } else if self.is_server(segment.from) {
            ((segment.to, segment.from), false)
        } else {
            return;
        };
        self.packets += 1;
        let opens = to_server && segment.flags & (SYN | ACK) == SYN;
        let reopened = opens.then(|| self.flows.remove(&key)).flatten();
        if let Some(old) = reopened {
            out.push(Event::Closed {
                id: old.id,
                at_ns: segment.at_ns,
            });
        }
        if !self.flows.contains_key(&key) {
            // What follows the end of a connection opens none.
            if self.flows.len() >= MOST_FLOWS
                || segment.flags & (RST | FIN) != 0
                || (segment.payload.is_empty() && !opens)
            {
                return;
            }
            let id = self.next_id;
            self.next_id += 1;
            self.flows.insert(
                key,
                Flow {
                    id,
                    halves: Default::default(),
                },
            );
            out.push(Event::Opened {
                id,
                at_ns: segment.at_ns,
                is_new: opens,
            });
        }
        let flow = self.flows.get_mut(&key).expect("made above");
        self.missing += flow.segment(&segment, to_server, out);
        let [up, down] = &flow.halves;
        if segment.flags & RST != 0 || (up.ended && down.ended) {
            out.push(Event::Closed {
                id: flow.id,
                at_ns: segment.at_ns,
            });
            self.flows.remove(&key);
        }
    }
}

const fn direction(to_server: bool) -> Direction {
    if to_server {
        Direction::ToServer
    } else {
        Direction::ToClient
    }
}

impl Flow {
    /// Gives how many bytes turned out to be missing.
    fn segment(&mut self, segment: &Segment, to_server: bool, out: &mut Vec<Event>) -> u64 {
        let id = self.id;
        let mut missing = 0;
        if segment.flags & ACK != 0 {
            // What the other side has acknowledged and we have not seen, nobody will send again.
            let other = &mut self.halves[usize::from(to_server)];
            missing += other.acknowledged(segment, id, direction(!to_server), out);
        }
        let half = &mut self.halves[usize::from(!to_server)];
        if segment.flags & SYN != 0 {
            half.next = Some(segment.sequence.wrapping_add(1));
            return missing;
        }
        let next = *half.next.get_or_insert(segment.sequence);
        let distance = segment.sequence.wrapping_sub(next) as i32;
        let length = segment.payload.len() + segment.cut;
        if length > 0 {
            missing += half.data(segment, distance, id, direction(to_server), out);
        }
        if segment.flags & FIN != 0
            && half.next == Some(segment.sequence.wrapping_add(length as u32))
        {
            half.ended = true;
            half.advance(1);
        }
        missing
    }
}

impl Half {
    fn advance(&mut self, count: usize) {
        self.position += count as u64;
        self.next = self.next.map(|next| next.wrapping_add(count as u32));
    }

    fn data(
        &mut self,
        segment: &Segment,
        distance: i32,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) -> u64 {
        let length = segment.payload.len() + segment.cut;
        if distance > 0 {
            let bytes = segment.payload.to_vec();
            if self.waiting_bytes + length <= MOST_BYTES {
                self.waiting_bytes += length;
                let at = self.position + distance as u64;
                self.waiting
                    .entry(at)
                    .or_insert((segment.at_ns, bytes, segment.cut));
                return 0;
            }
            let until = self.position + distance as u64;
            let missing = self.give_up_until(until, segment.at_ns, id, direction, out);
            self.push(
                segment.at_ns,
                segment.payload,
                segment.cut,
                0,
                id,
                direction,
                out,
            );
            return missing;
        }
        self.push(
            segment.at_ns,
            segment.payload,
            segment.cut,
            distance.unsigned_abs() as usize,
            id,
            direction,
            out,
        );
        self.drain(segment.at_ns, id, direction, out);
        0
    }

    /// Bytes of which the first `known` have been seen before.
    #[allow(clippy::too_many_arguments)] // one call site's values, not an object
    fn push(
        &mut self,
        at_ns: u64,
        payload: &[u8],
        cut: usize,
        known: usize,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) {
        if known >= payload.len() + cut {
            return;
        }
        let bytes = payload.get(known..).unwrap_or_default().to_vec();
        let skipped = (payload.len() + cut - known) - bytes.len();
        self.advance(bytes.len() + skipped);
        out.push(Event::Bytes {
            id,
            direction,
            at_ns,
            bytes,
            skipped,
        });
    }

    /// What waits and is next. Nobody could read it before `filled_ns`, when what was missing before it came.
    fn drain(&mut self, filled_ns: u64, id: u64, direction: Direction, out: &mut Vec<Event>) {
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.position {
                return;
            }
            let (at, (at_ns, bytes, cut)) = entry.remove_entry();
            self.waiting_bytes -= bytes.len() + cut;
            let known = (self.position - at) as usize;
            self.push(at_ns.max(filled_ns), &bytes, cut, known, id, direction, out);
        }
    }

    fn acknowledged(
        &mut self,
        segment: &Segment,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) -> u64 {
        let Some(next) = self.next else {
            return 0;
        };
        let beyond = segment.acknowledged.wrapping_sub(next) as i32;
        // The end of the stream counts as one.
        if beyond <= 1 && self.waiting.is_empty() {
            return 0;
        }
        let until = self.position + beyond.max(0) as u64;
        self.give_up_until(until, segment.at_ns, id, direction, out)
    }

    /// What is missing before `until` will not come.
    fn give_up_until(
        &mut self,
        until: u64,
        at_ns: u64,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) -> u64 {
        let mut missing = 0;
        while self.position < until {
            let to = self
                .waiting
                .first_key_value()
                .map_or(until, |(at, _)| (*at).min(until));
            let skipped = to.saturating_sub(self.position);
            if skipped > 0 {
                missing += skipped;
                self.advance(skipped as usize);
                out.push(Event::Bytes {
                    id,
                    direction,
                    at_ns,
                    bytes: Vec::new(),
                    skipped: skipped as usize,
                });
            }
            // Not captured, but the receiver had it in time.
            self.drain(0, id, direction, out);
        }
        missing
    }
}

/// Where a packet goes, how long its TCP part is, and as much of that as was captured.
struct Ip<'a> {
    from: IpAddr,
    to: IpAddr,
    length: usize,
    tcp: &'a [u8],
}

const TCP: u8 = 6;

fn big(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn network(packet: &Packet) -> Option<Ip<'_>> {
    let bytes = packet.bytes.as_slice();
    let ip = match packet.link {
        Link::Raw => bytes,
        Link::Null => bytes.get(4..)?,
        Link::Cooked => bytes.get(16..)?,
        Link::Cooked2 => bytes.get(20..)?,
        Link::Ethernet => {
            let mut at = 12;
            while matches!(bytes.get(at..at + 2)?, [0x81, 0x00] | [0x88, 0xA8]) {
                at += 4;
            }
            bytes.get(at + 2..)?
        }
    };
    match ip.first()? >> 4 {
        4 => version_4(ip),
        6 => version_6(ip),
        _ => None,
    }
}

/// A length of 0: a super-packet, longer than the field can say.
fn version_4(ip: &[u8]) -> Option<Ip<'_>> {
    let header = usize::from(ip[0] & 15) * 4;
    let is_fragment = big(ip, 6)? & 0x3FFF != 0;
    if *ip.get(9)? != TCP || is_fragment {
        return None;
    }
    let address = |at: usize| {
        let four = <[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(four)))
    };
    let total = usize::from(big(ip, 2)?);
    let total = if total == 0 { ip.len() } else { total };
    Some(Ip {
        from: address(12)?,
        to: address(16)?,
        length: total.checked_sub(header)?,
        tcp: ip.get(header..)?,
    })
}

fn version_6(ip: &[u8]) -> Option<Ip<'_>> {
    if *ip.get(6)? != TCP {
        return None;
    }
    let address = |at: usize| {
        let sixteen = <[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(sixteen)))
    };
    let tcp = ip.get(40..)?;
    let total = usize::from(big(ip, 4)?);
    Some(Ip {
        from: address(8)?,
        to: address(24)?,
        length: if total == 0 { tcp.len() } else { total },
        tcp,
    })
}

/// The TCP segment in a packet. None: something else, a fragment, or cut before its payload.
fn parse(packet: &Packet) -> Option<Segment<'_>> {
    let Ip {
        from,
        to,
        length,
        tcp,
    } = network(packet)?;
    let number = |at: usize| {
        let four = <[u8; 4]>::try_from(tcp.get(at..at + 4)?).ok()?;
        Some(u32::from_be_bytes(four))
    };
    let header = usize::from(*tcp.get(12)? >> 4) * 4;
    let whole = length.checked_sub(header)?;
    let captured = tcp.get(header..)?;
    // Short frames are padded.
    let payload = &captured[..captured.len().min(whole)];
    Some(Segment {
        at_ns: packet.at_ns,
        from: (from, big(tcp, 0)?),
        to: (to, big(tcp, 2)?),
        sequence: number(4)?,
        acknowledged: number(8)?,
        flags: *tcp.get(13)?,
        payload,
        cut: whole - payload.len(),
    })
}
