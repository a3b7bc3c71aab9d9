//! Packets into the bytes of connections: in order, each once, and what was not captured counted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use crate::Direction;
use crate::capture::Packet;
use crate::layers::{self, End, Reason, Segment};

/// Bytes of a direction that may wait for a packet that is missing.
const MOST_BYTES: usize = 4 << 20;
const MOST_FLOWS: usize = 65_536;
/// Packets of a connection that has ended may come again for so long: TCP's own time for that.
const REMEMBERED_NS: u64 = 60_000_000_000;
/// TCP asks for a connection again after a second; no system that is known is quicker than this.
const SHORTEST_TIMEOUT_NS: u64 = 200_000_000;
/// An acknowledgement alone follows what it acknowledges at most so much later.
const LONGEST_ACK_NS: u64 = 200_000_000;
/// The same connection is captured on both sides of an address translation within so much.
const TRANSLATED_NS: u64 = 10_000_000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

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

#[derive(Debug, Default)]
struct Half {
    /// The number that it began with, if that was seen.
    first: Option<u32>,
    next: Option<u32>,
    /// By distance from `next` at the time; sequence number, time, bytes, cut.
    waiting: BTreeMap<u64, (u64, Vec<u8>, usize)>,
    waiting_bytes: usize,
    /// Bytes so far: sequence numbers without their turning over.
    position: u64,
    /// Where it ends.
    end: Option<u64>,
    ended: bool,
}

#[derive(Debug)]
struct Flow {
    id: u64,
    halves: [Half; 2],
    is_closed: bool,
    /// When the client last asked for the connection, until the server answers.
    asked_ns: Option<u64>,
    /// Of its last packet.
    last_ns: u64,
}

/// The connections to a server's port.
#[derive(Debug)]
pub struct Segments {
    port: u16,
    address: Option<IpAddr>,
    flows: HashMap<(End, End), Flow>,
    /// When those that have ended did.
    closed: VecDeque<(u64, (End, End), u64)>,
    /// Connections that were asked for just now: when, and by which number and whom.
    asked: VecDeque<(u64, u32, (End, End))>,
    /// Connections that are copies, with other addresses, of one that is known.
    copies: HashMap<(End, End), u32>,
    last_ns: u64,
    next_id: u64,
    /// Requests for a connection (SYN) that were sent again, and how long that took.
    pub repeated_syns: u64,
    pub repeated_syns_ns: u64,
    /// Bytes that were not captured.
    pub missing: u64,
    /// Answers of which the end was not captured: they end with the last packet before.
    pub unknown_ends: u64,
    /// Packets of connections that were captured before and after their addresses were translated.
    pub copied: u64,
    /// Packets with an earlier time than the one before them.
    pub disordered: u64,
    /// Packets of the connections.
    pub packets: u64,
    /// All others, by what they are.
    pub skipped: BTreeMap<Reason, u64>,
}

impl Segments {
    /// The connections to this port, of this address if one is given.
    pub fn new(port: u16, address: Option<IpAddr>) -> Self {
        Self {
            port,
            address,
            flows: HashMap::new(),
            closed: VecDeque::new(),
            asked: VecDeque::new(),
            copies: HashMap::new(),
            last_ns: 0,
            next_id: 1,
            repeated_syns: 0,
            repeated_syns_ns: 0,
            missing: 0,
            unknown_ends: 0,
            copied: 0,
            disordered: 0,
            packets: 0,
            skipped: BTreeMap::new(),
        }
    }

    /// Packets that were left out and may have been the server's, by what they are.
    pub fn not_understood(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self
            .skipped
            .iter()
            .map(|(reason, &count)| (reason.as_ref(), count));
        all.filter(|(reason, _)| !layers::is_understood(reason))
    }

    fn is_server(&self, end: End) -> bool {
        end.1 == self.port && self.address.is_none_or(|address| address == end.0)
    }

    /// Take a packet.
    pub fn take(&mut self, packet: &Packet, out: &mut Vec<Event>) {
        // Two interfaces may be some microseconds apart.
        if packet.at_ns + 100_000 < self.last_ns {
            self.disordered += 1;
        }
        self.last_ns = packet.at_ns;
        let found = layers::segment(packet).and_then(|segment| {
            let (from, to) = (segment.from, segment.to);
            if self.is_server(to) {
                Ok((segment, (from, to), true))
            } else if self.is_server(from) {
                Ok((segment, (to, from), false))
            } else {
                Err(layers::ELSEWHERE.into())
            }
        });
        match found {
            Ok((segment, key, to_server)) => self.segment(&segment, key, to_server, out),
            Err(reason) => *self.skipped.entry(reason).or_default() += 1,
        }
    }

    fn segment(
        &mut self,
        segment: &Segment,
        key: (End, End),
        to_server: bool,
        out: &mut Vec<Event>,
    ) {
        let opens = to_server && segment.flags & (SYN | ACK) == SYN;
        if self.is_copy(segment, key, opens) {
            self.copied += 1;
            return;
        }
        self.packets += 1;
        self.forget(segment.at_ns);
        if opens {
            self.reopened(segment, key, out);
            self.asked_again(segment.at_ns, key);
        }
        if !self.flows.contains_key(&key) && !self.opened(segment, key, opens, out) {
            return;
        }
        let flow = self.flows.get_mut(&key).expect("made above");
        if flow.is_closed {
            return;
        }
        if !to_server {
            flow.asked_ns = None;
        }
        let (missing, is_end_unknown) = flow.segment(segment, to_server, out);
        self.missing += missing;
        self.unknown_ends += u64::from(is_end_unknown);
        let [up, down] = &flow.halves;
        if segment.flags & RST != 0 || (up.ended && down.ended) {
            flow.is_closed = true;
            let (id, at_ns) = (flow.id, segment.at_ns);
            out.push(Event::Closed { id, at_ns });
            self.closed.push_back((at_ns, key, id));
        }
    }

    /// Whether the packet is of a connection that is known by other addresses: a translation leaves the numbers as they are.
    fn is_copy(&mut self, segment: &Segment, key: (End, End), opens: bool) -> bool {
        if !opens {
            return self.copies.contains_key(&key);
        }
        let (now_ns, number) = (segment.at_ns, segment.sequence);
        while self
            .asked
            .front()
            .is_some_and(|(at_ns, ..)| now_ns.saturating_sub(*at_ns) > TRANSLATED_NS)
        {
            self.asked.pop_front();
        }
        if self.copies.get(&key) == Some(&number) {
            return true;
        }
        self.copies.remove(&key);
        let is_copy = self
            .asked
            .iter()
            .any(|&(_, of, by)| of == number && by != key);
        if is_copy && self.copies.len() < MOST_FLOWS {
            self.copies.insert(key, number);
        } else if self.asked.len() < MOST_FLOWS {
            self.asked.push_back((now_ns, number, key));
        }
        is_copy
    }

    /// Forget connections that have ended long ago, or of which there are too many.
    fn forget(&mut self, now_ns: u64) {
        while let Some(&(at_ns, key, id)) = self.closed.front() {
            let is_old = now_ns.saturating_sub(at_ns) > REMEMBERED_NS;
            if !is_old && self.flows.len() < MOST_FLOWS && self.closed.len() < MOST_FLOWS {
                return;
            }
            self.closed.pop_front();
            if self.flows.get(&key).is_some_and(|flow| flow.id == id) {
                self.flows.remove(&key);
            }
        }
    }

    /// The same numbers of another beginning: another connection. Of the same beginning, the packet has been sent again.
    fn reopened(&mut self, segment: &Segment, key: (End, End), out: &mut Vec<Event>) {
        let is_again = |flow: &mut Flow| {
            flow.halves[0]
                .first
                .is_some_and(|first| first == segment.sequence)
        };
        if self.flows.get_mut(&key).is_none_or(is_again) {
            return;
        }
        if let Some(old) = self.flows.remove(&key).filter(|old| !old.is_closed) {
            out.push(Event::Closed {
                id: old.id,
                at_ns: segment.at_ns,
            });
        }
    }

    /// Count a connection that is asked for again because no answer came; a copy of the same packet comes at once.
    fn asked_again(&mut self, at_ns: u64, key: (End, End)) {
        let flow = self.flows.get_mut(&key);
        if let Some(asked_ns) = flow.and_then(|flow| flow.asked_ns.as_mut()) {
            let waited_ns = at_ns.saturating_sub(*asked_ns);
            if waited_ns >= SHORTEST_TIMEOUT_NS {
                *asked_ns = at_ns;
                self.repeated_syns += 1;
                self.repeated_syns_ns += waited_ns;
            }
        }
    }

    /// Whether the packet is the first of a connection. What follows the end of one opens none.
    fn opened(
        &mut self,
        segment: &Segment,
        key: (End, End),
        is_new: bool,
        out: &mut Vec<Event>,
    ) -> bool {
        let ends = segment.flags & (RST | FIN) != 0;
        let is_empty = segment.payload.is_empty() && !is_new;
        if self.flows.len() >= MOST_FLOWS || ends || is_empty {
            return false;
        }
        let (id, at_ns) = (self.next_id, segment.at_ns);
        self.next_id += 1;
        let halves = Default::default();
        self.flows.insert(
            key,
            Flow {
                id,
                halves,
                is_closed: false,
                asked_ns: is_new.then_some(at_ns),
                last_ns: at_ns,
            },
        );
        out.push(Event::Opened { id, at_ns, is_new });
        true
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
    /// Gives how many bytes turned out to be missing, and whether the end of an answer is among them.
    fn segment(&mut self, segment: &Segment, to_server: bool, out: &mut Vec<Event>) -> (u64, bool) {
        let id = self.id;
        let (mut missing, mut is_end_unknown) = (0, false);
        let before_ns = std::mem::replace(&mut self.last_ns, segment.at_ns);
        if segment.flags & ACK != 0 {
            // What the other side has acknowledged and we have not seen, nobody will send again. When it came is not known: with the
            // next request that may be long ago.
            let is_prompt = segment.payload.is_empty()
                && segment.at_ns.saturating_sub(before_ns) <= LONGEST_ACK_NS;
            let at_ns = if is_prompt { segment.at_ns } else { before_ns };
            let other = &mut self.halves[usize::from(to_server)];
            let is_last = other.waiting.is_empty();
            missing += other.acknowledged(segment, at_ns, id, direction(!to_server), out);
            is_end_unknown = missing > 0 && is_last && to_server && !is_prompt;
        }
        let half = &mut self.halves[usize::from(!to_server)];
        if segment.flags & SYN != 0 {
            half.begin(segment.sequence);
            return (missing, is_end_unknown);
        }
        let next = *half.next.get_or_insert(segment.sequence);
        let distance = segment.sequence.wrapping_sub(next) as i32;
        let length = segment.payload.len() + segment.cut;
        if segment.flags & FIN != 0 {
            let end = half.position as i64 + i64::from(distance) + length as i64;
            half.end = half.end.or(u64::try_from(end).ok());
        }
        if length > 0 {
            missing += half.data(segment, distance, id, direction(to_server), out);
        }
        if half.end == Some(half.position) && !half.ended {
            half.ended = true;
            half.advance(1);
        }
        (missing, is_end_unknown)
    }
}

impl Half {
    /// The number of its beginning, which may come again, or be another one if nobody has answered the first.
    fn begin(&mut self, sequence: u32) {
        let is_other = self.position == 0 && self.first.is_some_and(|first| first != sequence);
        if self.next.is_none() || is_other {
            self.first = Some(sequence);
            self.next = Some(sequence.wrapping_add(1));
        }
    }

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
            let at = self.position + distance as u64;
            let known = self
                .waiting
                .get(&at)
                .map_or(0, |(_, bytes, cut)| bytes.len() + cut);
            if length <= known {
                return 0;
            }
            if self.waiting_bytes + length <= MOST_BYTES {
                self.waiting_bytes += length - known;
                let bytes = segment.payload.to_vec();
                self.waiting.insert(at, (segment.at_ns, bytes, segment.cut));
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

    /// What has been acknowledged and is missing came at `at_ns`, or before what waits behind it.
    fn acknowledged(
        &mut self,
        segment: &Segment,
        at_ns: u64,
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
        self.give_up_until(until, at_ns, id, direction, out)
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
            let behind_ns = self
                .waiting
                .first_key_value()
                .map(|(_, (at_ns, ..))| *at_ns);
            let at_ns = behind_ns.unwrap_or(at_ns);
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
