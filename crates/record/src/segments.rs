//! Reconstructs the bytes of connections from packets, in order and without repetition, and counts bytes that were not captured.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use crate::Direction;
use crate::capture::Packet;
use crate::layers::{self, Endpoint, Reason, Segment};

/// Maximum bytes of a direction that wait for a missing packet.
const MAX_WAITING_BYTES: usize = 4 << 20;
const MAX_FLOWS: usize = 65_536;
/// Time after a connection's end in which its packets may be repeated: that of TCP's TIME-WAIT.
const CLOSED_RETENTION_NS: u64 = 60_000_000_000;
/// Minimum time before a SYN is retransmitted. TCP's default is a second; no known system is faster than this.
const MIN_SYN_TIMEOUT_NS: u64 = 200_000_000;
/// Maximum delay of an acknowledgement without data after the data.
const MAX_ACK_DELAY_NS: u64 = 200_000_000;
/// Maximum time between the captures of a packet on both sides of an address translation.
const MAX_TRANSLATION_NS: u64 = 10_000_000;
/// TCP flags.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A change of a connection that packets show.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// `is_new`: seen from its first packet.
    Opened {
        id: u64,
        at_ns: u64,
        is_new: bool,
    },
    /// Bytes, and the number of bytes after them that were not captured.
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

/// Client and server.
type FlowKey = (Endpoint, Endpoint);

/// One direction of a connection.
#[derive(Debug, Default)]
struct HalfConnection {
    /// The initial sequence number; None if it was not seen.
    initial_sequence: Option<u32>,
    next_sequence: Option<u32>,
    /// Segments after a missing one, by stream position: time, bytes, number of bytes cut off.
    waiting: BTreeMap<u64, (u64, Vec<u8>, usize)>,
    waiting_bytes: usize,
    /// Stream position: the number of bytes so far, which does not wrap around as sequence numbers do.
    position: u64,
    /// Stream position of the end; None before a FIN.
    end_position: Option<u64>,
    has_ended: bool,
}

/// A connection.
#[derive(Debug)]
struct Flow {
    id: u64,
    /// To the server, and to the client.
    halves: [HalfConnection; 2],
    is_closed: bool,
    /// Time of the client's last SYN; None once the server has answered.
    syn_ns: Option<u64>,
    /// Time of the last packet.
    last_ns: u64,
}

/// The connections to a server's port.
#[derive(Debug)]
pub struct Segments {
    port: u16,
    address: Option<IpAddr>,
    flows: HashMap<FlowKey, Flow>,
    /// Ended connections: time of the end, key, id.
    closed: VecDeque<(u64, FlowKey, u64)>,
    /// Recent SYNs: time, sequence number, key.
    recent_syns: VecDeque<(u64, u32, FlowKey)>,
    /// Copies of known connections with translated addresses, and their initial sequence numbers.
    copies: HashMap<FlowKey, u32>,
    last_ns: u64,
    next_id: u64,
    /// Number of SYNs that were retransmitted.
    pub repeated_syns: u64,
    /// Time that connections waited before these SYNs were retransmitted.
    pub repeated_syns_ns: u64,
    /// Bytes that were not captured.
    pub missing: u64,
    /// Answers whose end was not captured; the last packet before it is counted as the end.
    pub unknown_ends: u64,
    /// Packets captured a second time, with translated addresses.
    pub copied: u64,
    /// Packets with an earlier time than the previous packet.
    pub disordered: u64,
    /// Packets of the server's connections.
    pub packets: u64,
    /// All other packets, by the reason for skipping them.
    pub skipped: BTreeMap<Reason, u64>,
}

impl Segments {
    /// Collect the connections to this port, and to this address if there is one.
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
        let counts = self
            .skipped
            .iter()
            .map(|(reason, &count)| (reason.as_ref(), count));
        counts.filter(|(reason, _)| !layers::is_understood(reason))
    }

    fn is_server(&self, endpoint: Endpoint) -> bool {
        endpoint.1 == self.port && self.address.is_none_or(|address| address == endpoint.0)
    }

    /// Process a packet, and append its events to `out`.
    pub fn feed(&mut self, packet: &Packet, out: &mut Vec<Event>) {
        // Timestamps of two interfaces may differ by some microseconds.
        if packet.at_ns + 100_000 < self.last_ns {
            self.disordered += 1;
        }
        self.last_ns = packet.at_ns;
        let outcome = layers::find_segment(packet).and_then(|segment| {
            let (source, destination) = (segment.source, segment.destination);
            if self.is_server(destination) {
                Ok((segment, (source, destination), true))
            } else if self.is_server(source) {
                Ok((segment, (destination, source), false))
            } else {
                Err(layers::OTHER_ENDPOINT.into())
            }
        });
        match outcome {
            Ok((segment, key, to_server)) => self.handle_segment(&segment, key, to_server, out),
            Err(reason) => *self.skipped.entry(reason).or_default() += 1,
        }
    }

    fn handle_segment(
        &mut self,
        segment: &Segment,
        key: FlowKey,
        to_server: bool,
        out: &mut Vec<Event>,
    ) {
        let is_opening = to_server && segment.flags & (SYN | ACK) == SYN;
        if self.is_copy(segment, key, is_opening) {
            self.copied += 1;
            return;
        }
        self.packets += 1;
        self.forget_closed(segment.at_ns);
        if is_opening {
            self.close_if_reused(segment, key, out);
            self.count_repeated_syn(segment.at_ns, key);
        }
        if !self.flows.contains_key(&key) && !self.open_flow(segment, key, is_opening, out) {
            return;
        }
        let flow = self.flows.get_mut(&key).expect("the flow is open");
        if flow.is_closed {
            return;
        }
        if !to_server {
            flow.syn_ns = None;
        }
        let (missing_bytes, is_end_unknown) = flow.handle_segment(segment, to_server, out);
        self.missing += missing_bytes;
        self.unknown_ends += u64::from(is_end_unknown);
        if segment.flags & RST != 0 || flow.halves.iter().all(|half| half.has_ended) {
            flow.is_closed = true;
            let (id, at_ns) = (flow.id, segment.at_ns);
            out.push(Event::Closed { id, at_ns });
            self.closed.push_back((at_ns, key, id));
        }
    }

    /// Whether the packet belongs to a copy of a connection that is known by other addresses. Address translation does not change
    /// sequence numbers.
    fn is_copy(&mut self, segment: &Segment, key: FlowKey, is_opening: bool) -> bool {
        if !is_opening {
            return self.copies.contains_key(&key);
        }
        let (now_ns, initial_sequence) = (segment.at_ns, segment.sequence);
        while self
            .recent_syns
            .front()
            .is_some_and(|(at_ns, ..)| now_ns.saturating_sub(*at_ns) > MAX_TRANSLATION_NS)
        {
            self.recent_syns.pop_front();
        }
        if self.copies.get(&key) == Some(&initial_sequence) {
            return true;
        }
        self.copies.remove(&key);
        let is_copy = self
            .recent_syns
            .iter()
            .any(|&(_, sequence, known_key)| sequence == initial_sequence && known_key != key);
        if is_copy && self.copies.len() < MAX_FLOWS {
            self.copies.insert(key, initial_sequence);
        } else if self.recent_syns.len() < MAX_FLOWS {
            self.recent_syns.push_back((now_ns, initial_sequence, key));
        }
        is_copy
    }

    /// Forget connections that ended long ago, and others that have ended if there are too many.
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

    /// Close a known connection if a SYN with another initial sequence number reuses its addresses. A SYN with the same number is a
    /// retransmission.
    fn close_if_reused(&mut self, segment: &Segment, key: FlowKey, out: &mut Vec<Event>) {
        let is_same_syn =
            |flow: &mut Flow| flow.halves[0].initial_sequence == Some(segment.sequence);
        if self.flows.get_mut(&key).is_none_or(is_same_syn) {
            return;
        }
        if let Some(old_flow) = self.flows.remove(&key).filter(|flow| !flow.is_closed) {
            out.push(Event::Closed {
                id: old_flow.id,
                at_ns: segment.at_ns,
            });
        }
    }

    /// Count a SYN that was retransmitted because no answer came. A copy of the packet, which comes immediately, is not counted.
    fn count_repeated_syn(&mut self, at_ns: u64, key: FlowKey) {
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

    /// Open a connection if this can be its first packet; false if not. A late packet of an ended connection opens none.
    fn open_flow(
        &mut self,
        segment: &Segment,
        key: FlowKey,
        is_new: bool,
        out: &mut Vec<Event>,
    ) -> bool {
        let is_end = segment.flags & (RST | FIN) != 0;
        let is_empty = segment.payload.is_empty() && !is_new;
        if self.flows.len() >= MAX_FLOWS || is_end || is_empty {
            return false;
        }
        let (id, at_ns) = (self.next_id, segment.at_ns);
        self.next_id += 1;
        let flow = Flow {
            id,
            halves: Default::default(),
            is_closed: false,
            syn_ns: is_new.then_some(at_ns),
            last_ns: at_ns,
        };
        self.flows.insert(key, flow);
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
        events: &mut Vec<Event>,
    ) -> (u64, bool) {
        let (mut missing_bytes, mut is_end_unknown) = (0, false);
        let previous_ns = std::mem::replace(&mut self.last_ns, segment.at_ns);
        let mut sink = ByteSink {
            id: self.id,
            direction: direction(!to_server),
            events,
        };
        if segment.flags & ACK != 0 {
            // The opposite direction will not send acknowledged bytes again, so those that were not captured stay missing. Their time is
            // unknown: if the next request acknowledges them, they may have come long before it.
            let is_prompt = segment.payload.is_empty()
                && segment.at_ns.saturating_sub(previous_ns) <= MAX_ACK_DELAY_NS;
            let at_ns = if is_prompt {
                segment.at_ns
            } else {
                previous_ns
            };
            let opposite = &mut self.halves[usize::from(to_server)];
            let is_last = opposite.waiting.is_empty();
            missing_bytes += opposite.skip_acknowledged(segment, at_ns, &mut sink);
            is_end_unknown = missing_bytes > 0 && is_last && to_server && !is_prompt;
        }
        sink.direction = direction(to_server);
        let half = &mut self.halves[usize::from(!to_server)];
        if segment.flags & SYN != 0 {
            half.begin(segment.sequence);
            return (missing_bytes, is_end_unknown);
        }
        let next_sequence = *half.next_sequence.get_or_insert(segment.sequence);
        let distance = segment.sequence.wrapping_sub(next_sequence) as i32;
        let length = segment.payload.len() + segment.cut_bytes;
        if segment.flags & FIN != 0 {
            let end = half.position as i64 + i64::from(distance) + length as i64;
            half.end_position = half.end_position.or(u64::try_from(end).ok());
        }
        if length > 0 {
            missing_bytes += half.handle_data(segment, distance, &mut sink);
        }
        if half.end_position == Some(half.position) && !half.has_ended {
            half.has_ended = true;
            half.advance(1);
        }
        (missing_bytes, is_end_unknown)
    }
}

/// Collects the bytes of one direction of a connection.
struct ByteSink<'a> {
    id: u64,
    direction: Direction,
    events: &'a mut Vec<Event>,
}

impl ByteSink<'_> {
    fn emit(&mut self, at_ns: u64, bytes: Vec<u8>, skipped: usize) {
        self.events.push(Event::Bytes {
            id: self.id,
            direction: self.direction,
            at_ns,
            bytes,
            skipped,
        });
    }
}

impl HalfConnection {
    /// Set the initial sequence number. A SYN may be repeated, or have another number if the first was not answered.
    fn begin(&mut self, sequence: u32) {
        let is_new = self
            .initial_sequence
            .is_some_and(|initial| initial != sequence);
        if self.next_sequence.is_none() || (self.position == 0 && is_new) {
            self.initial_sequence = Some(sequence);
            self.next_sequence = Some(sequence.wrapping_add(1));
        }
    }

    fn advance(&mut self, count: usize) {
        self.position += count as u64;
        self.next_sequence = self
            .next_sequence
            .map(|sequence| sequence.wrapping_add(count as u32));
    }

    /// Process the data of a segment whose sequence number is `distance` after the expected one. Returns how many bytes turned out to be
    /// missing.
    fn handle_data(&mut self, segment: &Segment, distance: i32, sink: &mut ByteSink<'_>) -> u64 {
        let &Segment {
            at_ns,
            payload,
            cut_bytes,
            ..
        } = segment;
        if distance <= 0 {
            let known_bytes = distance.unsigned_abs() as usize;
            self.emit_bytes(at_ns, payload, cut_bytes, known_bytes, sink);
            self.emit_waiting(at_ns, sink);
            return 0;
        }
        let length = payload.len() + cut_bytes;
        let position = self.position + distance as u64;
        let waiting_bytes = self
            .waiting
            .get(&position)
            .map_or(0, |(_, bytes, cut_bytes)| bytes.len() + cut_bytes);
        if length <= waiting_bytes {
            return 0;
        }
        if self.waiting_bytes + length <= MAX_WAITING_BYTES {
            self.waiting_bytes += length - waiting_bytes;
            self.waiting
                .insert(position, (at_ns, payload.to_vec(), cut_bytes));
            return 0;
        }
        let missing_bytes = self.skip_until(position, at_ns, sink);
        self.emit_bytes(at_ns, payload, cut_bytes, 0, sink);
        missing_bytes
    }

    /// Emit the bytes of a segment except the first `known_bytes`, which were emitted before.
    fn emit_bytes(
        &mut self,
        at_ns: u64,
        payload: &[u8],
        cut_bytes: usize,
        known_bytes: usize,
        sink: &mut ByteSink<'_>,
    ) {
        let length = payload.len() + cut_bytes;
        if known_bytes >= length {
            return;
        }
        let bytes = payload.get(known_bytes..).unwrap_or_default().to_vec();
        self.advance(length - known_bytes);
        let skipped = length - known_bytes - bytes.len();
        sink.emit(at_ns, bytes, skipped);
    }

    /// Emit the waiting bytes that are next in the stream. The receiver could not read them before `filled_ns`, when the gap before them
    /// was filled.
    fn emit_waiting(&mut self, filled_ns: u64, sink: &mut ByteSink<'_>) {
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.position {
                return;
            }
            let (position, (at_ns, bytes, cut_bytes)) = entry.remove_entry();
            self.waiting_bytes -= bytes.len() + cut_bytes;
            let known_bytes = (self.position - position) as usize;
            self.emit_bytes(at_ns.max(filled_ns), &bytes, cut_bytes, known_bytes, sink);
        }
    }

    /// Skip bytes that are acknowledged but were not captured. They get the time of the waiting bytes after them, else `at_ns`. Returns
    /// their number.
    fn skip_acknowledged(&mut self, segment: &Segment, at_ns: u64, sink: &mut ByteSink<'_>) -> u64 {
        let Some(next_sequence) = self.next_sequence else {
            return 0;
        };
        let distance = segment.acknowledged.wrapping_sub(next_sequence) as i32;
        // The end of the stream takes up one sequence number.
        if distance <= 1 && self.waiting.is_empty() {
            return 0;
        }
        self.skip_until(self.position + distance.max(0) as u64, at_ns, sink)
    }

    /// Skip the missing bytes before stream position `end`, which will not come. Returns their number.
    fn skip_until(&mut self, end: u64, at_ns: u64, sink: &mut ByteSink<'_>) -> u64 {
        let mut missing_bytes = 0;
        while self.position < end {
            let next_waiting = self.waiting.first_key_value();
            let (gap_end, at_ns) = next_waiting
                .map_or((end, at_ns), |(&position, &(at_ns, ..))| {
                    (position.min(end), at_ns)
                });
            let skipped = gap_end.saturating_sub(self.position);
            if skipped > 0 {
                missing_bytes += skipped;
                self.advance(skipped as usize);
                sink.emit(at_ns, Vec::new(), skipped as usize);
            }
            // The bytes of the gap were not captured, but the receiver got them in time.
            self.emit_waiting(0, sink);
        }
        missing_bytes
    }
}
