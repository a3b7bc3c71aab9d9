//! Turns packets into the bytes of connections, in order and each once, and counts bytes that were not captured.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use crate::Direction;
use crate::capture::Packet;
use crate::layers::{self, Endpoint, Reason, Segment};

/// Maximum bytes of a direction that may wait for a missing packet.
const MAX_WAITING_BYTES: usize = 4 << 20;
const MAX_FLOWS: usize = 65_536;
/// Packets of a connection may be repeated for this time after its end; TCP's TIME-WAIT is as long.
const CLOSED_RETENTION_NS: u64 = 60_000_000_000;
/// Shortest time after which a SYN is retransmitted. TCP's default is a second; no known system is faster than this.
const MIN_SYN_TIMEOUT_NS: u64 = 200_000_000;
/// Maximum delay of an acknowledgement without data after what it acknowledges.
const MAX_ACK_DELAY_NS: u64 = 200_000_000;
/// Maximum time between the captures of a packet on both sides of an address translation.
const MAX_TRANSLATION_NS: u64 = 10_000_000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What packets mean for a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// `is_new`: seen from its first packet.
    Opened {
        id: u64,
        at_ns: u64,
        is_new: bool,
    },
    /// Bytes, and how many bytes after them are missing.
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
struct HalfConnection {
    /// The initial sequence number, if that was seen.
    first: Option<u32>,
    next: Option<u32>,
    /// Segments ahead of a missing one, by stream position: time, bytes, number of bytes cut.
    waiting: BTreeMap<u64, (u64, Vec<u8>, usize)>,
    waiting_bytes: usize,
    /// Stream position: bytes so far, which do not wrap around as sequence numbers do.
    position: u64,
    /// Stream position at which it ends.
    end: Option<u64>,
    ended: bool,
}

#[derive(Debug)]
struct Flow {
    id: u64,
    halves: [HalfConnection; 2],
    is_closed: bool,
    /// When the client last sent a SYN; None once the server has answered.
    syn_ns: Option<u64>,
    /// Time of the last packet.
    last_ns: u64,
}

/// The connections to a server's port.
#[derive(Debug)]
pub struct Segments {
    port: u16,
    address: Option<IpAddr>,
    flows: HashMap<(Endpoint, Endpoint), Flow>,
    /// Ended connections: time of the end, addresses, id.
    closed: VecDeque<(u64, (Endpoint, Endpoint), u64)>,
    /// Recent SYNs: time, sequence number, addresses.
    recent_syns: VecDeque<(u64, u32, (Endpoint, Endpoint))>,
    /// Connections that are copies of known ones with translated addresses, and their initial sequence numbers.
    copies: HashMap<(Endpoint, Endpoint), u32>,
    last_ns: u64,
    next_id: u64,
    /// Number of SYNs that were retransmitted.
    pub repeated_syns: u64,
    /// How long connections waited until these SYNs were retransmitted.
    pub repeated_syns_ns: u64,
    /// Bytes that were not captured.
    pub missing: u64,
    /// Answers whose end was not captured: they are taken to end with the last packet before it.
    pub unknown_ends: u64,
    /// Packets captured a second time, with translated addresses.
    pub copied: u64,
    /// Packets with an earlier time than the one before them.
    pub disordered: u64,
    /// Packets of the server's connections.
    pub packets: u64,
    /// All other packets, by the reason for skipping them.
    pub skipped: BTreeMap<Reason, u64>,
}

impl Segments {
    /// For the connections to this port, at this address if one is given.
    pub fn new(port: u16, address: Option<IpAddr>) -> Self {
        Self {
            port,
            address,
            flows: HashMap::new(),
            closed: VecDeque::new(),
            recent_syns: VecDeque::new(),
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

    /// Skipped packets that may have been the server's, by reason.
    pub fn not_understood(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self
            .skipped
            .iter()
            .map(|(reason, &count)| (reason.as_ref(), count));
        all.filter(|(reason, _)| !layers::is_understood(reason))
    }

    fn is_server(&self, end: Endpoint) -> bool {
        end.1 == self.port && self.address.is_none_or(|address| address == end.0)
    }

    /// Take a packet.
    pub fn take(&mut self, packet: &Packet, out: &mut Vec<Event>) {
        // Timestamps of two interfaces may differ by some microseconds.
        if packet.at_ns + 100_000 < self.last_ns {
            self.disordered += 1;
        }
        self.last_ns = packet.at_ns;
        let classified = layers::find_segment(packet).and_then(|segment| {
            let (from, to) = (segment.from, segment.to);
            if self.is_server(to) {
                Ok((segment, (from, to), true))
            } else if self.is_server(from) {
                Ok((segment, (to, from), false))
            } else {
                Err(layers::OTHER_ENDPOINT.into())
            }
        });
        match classified {
            Ok((segment, key, to_server)) => self.handle_segment(&segment, key, to_server, out),
            Err(reason) => *self.skipped.entry(reason).or_default() += 1,
        }
    }

    fn handle_segment(
        &mut self,
        segment: &Segment,
        key: (Endpoint, Endpoint),
        to_server: bool,
        out: &mut Vec<Event>,
    ) {
        let opens = to_server && segment.flags & (SYN | ACK) == SYN;
        if self.is_copy(segment, key, opens) {
            self.copied += 1;
            return;
        }
        self.packets += 1;
        self.forget_closed(segment.at_ns);
        if opens {
            self.close_if_reused(segment, key, out);
            self.count_repeated_syn(segment.at_ns, key);
        }
        if !self.flows.contains_key(&key) && !self.open_flow(segment, key, opens, out) {
            return;
        }
        let flow = self.flows.get_mut(&key).expect("made above");
        if flow.is_closed {
            return;
        }
        if !to_server {
            flow.syn_ns = None;
        }
        let (missing, is_end_unknown) = flow.handle_segment(segment, to_server, out);
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

    /// Whether the packet belongs to a connection that is known by other addresses: translation does not change sequence numbers.
    fn is_copy(&mut self, segment: &Segment, key: (Endpoint, Endpoint), opens: bool) -> bool {
        if !opens {
            return self.copies.contains_key(&key);
        }
        let (now_ns, number) = (segment.at_ns, segment.sequence);
        while self
            .recent_syns
            .front()
            .is_some_and(|(at_ns, ..)| now_ns.saturating_sub(*at_ns) > MAX_TRANSLATION_NS)
        {
            self.recent_syns.pop_front();
        }
        if self.copies.get(&key) == Some(&number) {
            return true;
        }
        self.copies.remove(&key);
        let is_copy = self
            .recent_syns
            .iter()
            .any(|&(_, sequence, known)| sequence == number && known != key);
        if is_copy && self.copies.len() < MAX_FLOWS {
            self.copies.insert(key, number);
        } else if self.recent_syns.len() < MAX_FLOWS {
            self.recent_syns.push_back((now_ns, number, key));
        }
        is_copy
    }

    /// Forget connections that ended long ago; if there are too many, also later ones.
    fn forget_closed(&mut self, now_ns: u64) {
        while let Some(&(at_ns, key, id)) = self.closed.front() {
            let is_old = now_ns.saturating_sub(at_ns) > CLOSED_RETENTION_NS;
            if !is_old && self.flows.len() < MAX_FLOWS && self.closed.len() < MAX_FLOWS {
                return;
            }
            self.closed.pop_front();
            if self.flows.get(&key).is_some_and(|flow| flow.id == id) {
                self.flows.remove(&key);
            }
        }
    }

    /// Close the known connection if a SYN with another initial sequence number reuses its addresses; with the same number, the SYN is
    /// repeated.
    fn close_if_reused(
        &mut self,
        segment: &Segment,
        key: (Endpoint, Endpoint),
        out: &mut Vec<Event>,
    ) {
        let is_same_syn = |flow: &mut Flow| {
            flow.halves[0]
                .first
                .is_some_and(|first| first == segment.sequence)
        };
        if self.flows.get_mut(&key).is_none_or(is_same_syn) {
            return;
        }
        if let Some(old) = self.flows.remove(&key).filter(|old| !old.is_closed) {
            out.push(Event::Closed {
                id: old.id,
                at_ns: segment.at_ns,
            });
        }
    }

    /// Count a SYN that was retransmitted because no answer came. A mere copy of the packet comes at once and is not counted.
    fn count_repeated_syn(&mut self, at_ns: u64, key: (Endpoint, Endpoint)) {
        let flow = self.flows.get_mut(&key);
        if let Some(syn_ns) = flow.and_then(|flow| flow.syn_ns.as_mut()) {
            let waited_ns = at_ns.saturating_sub(*syn_ns);
            if waited_ns >= MIN_SYN_TIMEOUT_NS {
                *syn_ns = at_ns;
                self.repeated_syns += 1;
                self.repeated_syns_ns += waited_ns;
            }
        }
    }

    /// Open a connection if this can be its first packet; false if not. Packets after a connection's end open none.
    fn open_flow(
        &mut self,
        segment: &Segment,
        key: (Endpoint, Endpoint),
        is_new: bool,
        out: &mut Vec<Event>,
    ) -> bool {
        let ends = segment.flags & (RST | FIN) != 0;
        let is_empty = segment.payload.is_empty() && !is_new;
        if self.flows.len() >= MAX_FLOWS || ends || is_empty {
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
                syn_ns: is_new.then_some(at_ns),
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
    /// Process a segment. Returns how many bytes turned out to be missing, and whether they include an answer's end at an unknown
    /// time.
    fn handle_segment(
        &mut self,
        segment: &Segment,
        to_server: bool,
        out: &mut Vec<Event>,
    ) -> (u64, bool) {
        let id = self.id;
        let (mut missing, mut is_end_unknown) = (0, false);
        let before_ns = std::mem::replace(&mut self.last_ns, segment.at_ns);
        if segment.flags & ACK != 0 {
            // What the other side has acknowledged and we have not seen will not be sent again. When it came is unknown: if the next
            // request acknowledges it, perhaps long ago.
            let is_prompt = segment.payload.is_empty()
                && segment.at_ns.saturating_sub(before_ns) <= MAX_ACK_DELAY_NS;
            let at_ns = if is_prompt { segment.at_ns } else { before_ns };
            let other = &mut self.halves[usize::from(to_server)];
            let is_last = other.waiting.is_empty();
            missing += other.skip_acknowledged(segment, at_ns, id, direction(!to_server), out);
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
            missing += half.handle_data(segment, distance, id, direction(to_server), out);
        }
        if half.end == Some(half.position) && !half.ended {
            half.ended = true;
            half.advance(1);
        }
        (missing, is_end_unknown)
    }
}

impl HalfConnection {
    /// Set the initial sequence number. A SYN may be repeated, or have another number if the first was not answered.
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

    fn handle_data(
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
            if self.waiting_bytes + length <= MAX_WAITING_BYTES {
                self.waiting_bytes += length - known;
                let bytes = segment.payload.to_vec();
                self.waiting.insert(at, (segment.at_ns, bytes, segment.cut));
                return 0;
            }
            let until = self.position + distance as u64;
            let missing = self.skip_until(until, segment.at_ns, id, direction, out);
            self.emit_bytes(
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
        self.emit_bytes(
            segment.at_ns,
            segment.payload,
            segment.cut,
            distance.unsigned_abs() as usize,
            id,
            direction,
            out,
        );
        self.emit_waiting(segment.at_ns, id, direction, out);
        0
    }

    /// Emit bytes, of which the first `known` have been seen before.
    #[allow(clippy::too_many_arguments)] // one call site's values, not an object
    fn emit_bytes(
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

    /// Emit waiting bytes that are next. The receiver could not read them before `filled_ns`, when the bytes missing before them came.
    fn emit_waiting(
        &mut self,
        filled_ns: u64,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) {
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.position {
                return;
            }
            let (at, (at_ns, bytes, cut)) = entry.remove_entry();
            self.waiting_bytes -= bytes.len() + cut;
            let known = (self.position - at) as usize;
            self.emit_bytes(at_ns.max(filled_ns), &bytes, cut, known, id, direction, out);
        }
    }

    /// Skip what is acknowledged but missing. It counts as having come with what waits behind it, else at `at_ns`.
    fn skip_acknowledged(
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
        // The end of the stream takes up one sequence number.
        if beyond <= 1 && self.waiting.is_empty() {
            return 0;
        }
        let until = self.position + beyond.max(0) as u64;
        self.skip_until(until, at_ns, id, direction, out)
    }

    /// Skip what is missing before stream position `until`, as it will not come. Returns its number of bytes.
    fn skip_until(
        &mut self,
        until: u64,
        at_ns: u64,
        id: u64,
        direction: Direction,
        out: &mut Vec<Event>,
    ) -> u64 {
        let mut missing = 0;
        while self.position < until {
            let behind = self.waiting.first_key_value();
            let (to, at_ns) =
                behind.map_or((until, at_ns), |(&at, &(at_ns, ..))| (at.min(until), at_ns));
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
            // Not captured, but the receiver got it in time.
            self.emit_waiting(0, id, direction, out);
        }
        missing
    }
}
