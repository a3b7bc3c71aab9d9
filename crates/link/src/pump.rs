//! Drives one direction of a link: packets from one interface go through the shaper and out of another. Each direction has its own
//! thread.
//!
//! The loop sends the packets that are due and receives those that came. Then it waits until the next one is due, for an order, or,
//! if nothing is in flight, for a packet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Orders, Sender};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{ClockId, clock_nanosleep_absolute};

use crate::arena::{Arena, MAX_PACKET_BYTES, Slot};
use crate::clock::{StampConverter, now, timespec};
use crate::effects::{Nanos, corrupt, jitter};
use crate::event::DirectionStats;
use crate::job::Direction;
use crate::packet::{self, Layout, VNET_LEN};
use crate::port::{self, Receiver, Transmitter};
use crate::shaper::{Shaper, Slice};
use crate::sleep::{EarlyRelease, Sleeper, Wait};
use crate::slicer;
use crate::stats::Counters;
use howfar_contract::Failed;

/// Maximum packets received in succession before the loop sends, or sent before it receives.
const BATCH: usize = 64;
/// Longest sleep at low rates; packets gather in the socket's buffer meanwhile.
const LOW_RATE_MAX_SLEEP: Nanos = 10_000_000;
/// Longest sleep at high rates (2.5 MB at 10 Gb/s).
const HIGH_RATE_MAX_SLEEP: Nanos = 2_000_000;
/// At rates in between, the longest sleep is the time that this many bytes take.
const SLEEP_BYTES: u64 = 1 << 20;
/// Packets closer together than this are a burst; the pump then sleeps for this time to gather more of it, as interrupt coalescing
/// in network cards does. It does so only when nothing is in flight; the wait counts as lateness. Being woken for each packet costs
/// more than forwarding it, and takes CPU time from the sender.
const BURST_GAP: Nanos = 20_000;
/// Maximum attempts to send a packet for which the kernel has no room.
const MAX_SEND_ATTEMPTS: u32 = 50;
/// Time between two attempts to send a packet.
const SEND_RETRY_PAUSE: Nanos = 20_000;
/// Memory beyond what rate, delay and queue need, for packets that arrive while the thread does not run.
const MEMORY_SLACK: u64 = 8 << 20;
/// Rate assumed for an unshaped direction when its memory is sized.
const ASSUMED_RATE_BPS: u64 = 20_000_000_000;

/// A request of the main thread to a pump.
#[derive(Debug)]
pub(crate) enum Order {
    Set(Direction),
    Stats {
        reset: bool,
        /// The total of the receiver's drop counter; None if unknown.
        dropped: Option<u64>,
        answer: Sender<DirectionStats>,
    },
    Stop,
}

#[derive(Debug)]
pub(crate) struct Pump {
    interfaces: (String, String),
    receiver: Receiver,
    transmitter: Transmitter,
    orders: Orders<Order>,
    wake: Arc<OwnedFd>,
    shaper: Shaper<Slot>,
    arena: Arena,
    counters: Counters,
    sleeper: Sleeper,
    early_release: EarlyRelease,
    max_sleep: Nanos,
    stamps: StampConverter,
    can_overtake: bool,
    /// When the last packet came.
    last_arrival: Nanos,
    /// The last packet closely followed the one before it; a sleep of `BURST_GAP` without a packet ends the burst.
    in_burst: bool,
    scratch: Vec<u8>,
}

/// Maximum bytes that a direction can hold.
fn max_bytes_held(direction: &Direction) -> u64 {
    let rate = u128::from(direction.max_rate().unwrap_or(ASSUMED_RATE_BPS));
    let extra = direction.jitter.as_ref().map_or(0, jitter::practical_max);
    let bytes_on_line = rate * u128::from(direction.effective_delay() + extra) / 8_000_000_000;
    bytes_on_line as u64 + direction.queue_bytes + MEMORY_SLACK
}

/// Whether a packet may be due before one that came earlier.
fn can_overtake(direction: &Direction) -> bool {
    direction.reorder && direction.jitter.is_some()
}

/// Minimum delay of a packet on the line; 0 with jitter, which may cancel the whole delay.
fn min_delay(direction: &Direction) -> Nanos {
    if direction.jitter.is_some() {
        0
    } else {
        direction.effective_delay()
    }
}

/// Sleep until `wake_at`; neither packets nor orders wake the thread. While a packet is in flight that cannot be overtaken, new
/// packets are not due before it, and the kernel's stamp records their arrival. Orders wait until the thread wakes; no sleep is
/// longer than [`LOW_RATE_MAX_SLEEP`]. A plain timer costs less than waiting for a descriptor with a timeout.
fn sleep_until(wake_at: Nanos) {
    // After a signal, the loop reads the clock and sleeps again.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(wake_at));
}

/// The longest sleep, during which packets gather in the socket's buffer.
fn max_sleep(direction: &Direction) -> Nanos {
    let rate = direction.rate_bps().unwrap_or(ASSUMED_RATE_BPS);
    (SLEEP_BYTES * 8_000_000_000 / rate).clamp(HIGH_RATE_MAX_SLEEP, LOW_RATE_MAX_SLEEP)
}

impl Pump {
    /// Make a pump in the thread that will run it. `interfaces`: the names of those that packets come from and go to.
    pub(crate) fn new(
        interfaces: (String, String),
        ports: (Receiver, Transmitter),
        direction: &Direction,
        orders: Orders<Order>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        Self {
            interfaces,
            receiver: ports.0,
            transmitter: ports.1,
            orders,
            wake,
            shaper: Shaper::new(now(), direction),
            arena: Arena::new(max_bytes_held(direction)),
            counters: Counters::new(),
            sleeper: Sleeper::new(now()),
            early_release: EarlyRelease::new(min_delay(direction)),
            max_sleep: max_sleep(direction),
            stamps: StampConverter::read(),
            can_overtake: can_overtake(direction),
            last_arrival: 0,
            in_burst: false,
            scratch: vec![0; MAX_PACKET_BYTES],
        }
    }

    /// Run until ordered to stop, or until an interface is gone.
    pub(crate) fn run(mut self) -> Result<(), Failed> {
        loop {
            self.wait()?;
            self.transmit_due()?;
            self.receive()?;
            // An order applies after one batch of the packets that came before it; if more of them wait, these get the new settings.
            if self.handle_orders() {
                return Ok(());
            }
        }
    }

    /// Wait until a slice is due, a packet came that must be received at once, or an order may be pending.
    fn wait(&mut self) -> Result<(), Failed> {
        let start = now();
        let Some(due) = self.shaper.next_wake() else {
            if std::mem::take(&mut self.in_burst) {
                sleep_until(start + BURST_GAP);
                return Ok(());
            }
            return self.poll_events(None).map(drop);
        };
        let due = due.saturating_sub(self.early_release.lead());
        if due <= start {
            return Ok(());
        }
        match self.sleeper.plan_wait(start, due) {
            Wait::Spin => {
                let mut time = start;
                while time < due {
                    std::hint::spin_loop();
                    time = now();
                }
                self.sleeper.record_spin(time - start);
            }
            Wait::Sleep(wake_at) if self.can_overtake => {
                if self.poll_events(Some(wake_at - start))? {
                    self.sleeper.record_sleep(wake_at, now());
                }
            }
            Wait::Sleep(wake_at) if wake_at - start > self.max_sleep => {
                sleep_until(start + self.max_sleep);
            }
            Wait::Sleep(wake_at) => {
                sleep_until(wake_at);
                self.sleeper.record_sleep(wake_at, now());
            }
        }
        Ok(())
    }

    /// Wait until a packet or an order comes, at most for `timeout`. Returns true if neither came.
    fn poll_events(&self, timeout: Option<Nanos>) -> Result<bool, Failed> {
        let timeout = timeout.map(timespec);
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.receiver, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) if fds[0].revents().is_empty() => Ok(ready == 0),
            Ok(_) => {
                // Read only to clear the event; the channel holds the orders.
                let _ = rustix::io::read(self.wake.as_fd(), &mut [0_u8; 8]);
                Ok(false)
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(port::interface_error(
                &self.interfaces.0,
                "wait for packets on",
                &error.into(),
            )),
        }
    }

    /// Carry out pending orders. Returns true on an order to stop.
    fn handle_orders(&mut self) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => return true,
                Order::Set(direction) => {
                    self.arena.set_limit(max_bytes_held(&direction));
                    self.shaper.set(now(), &direction);
                    self.max_sleep = max_sleep(&direction);
                    self.early_release.set_delay(min_delay(&direction));
                    self.can_overtake = can_overtake(&direction);
                }
                Order::Stats {
                    reset,
                    dropped,
                    answer,
                } => {
                    // A requester that has ended needs no answer.
                    let _ = answer.send(self.counters.to_stats(dropped));
                    if reset {
                        self.counters.reset(dropped);
                    }
                    // The next query must report at least the current backlog.
                    self.counters.counts.queue_bytes_lately = self.shaper.backlog(now());
                }
            }
        }
        false
    }

    fn receive(&mut self) -> Result<(), Failed> {
        self.stamps = self.stamps.refresh();
        let stamps = self.stamps;
        for _ in 0..BATCH {
            let (buffer, in_arena) = match self.arena.reserve() {
                Some(buffer) => (buffer, true),
                None => (&mut self.scratch[..], false),
            };
            match self.receiver.receive(buffer) {
                Ok(None) => return Ok(()),
                Ok(Some(received)) => {
                    let layout = Layout::parse(&buffer[..received.length.min(buffer.len())]);
                    match layout {
                        Some(layout) if in_arena && !received.truncated => {
                            let arrival = stamps.to_monotonic(received.stamp);
                            self.in_burst = arrival < self.last_arrival + BURST_GAP;
                            self.last_arrival = arrival;
                            self.offer_packet(arrival, received.length, &layout);
                        }
                        layout => {
                            let segments = layout.map_or(1, |layout| u64::from(layout.segments));
                            self.counters.counts.drops.arena += segments;
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A packet of a kind that virtio-net headers cannot describe: the kernel has dropped it.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.counters.refused += 1;
                }
                Err(error) => {
                    return Err(port::interface_error(
                        &self.interfaces.0,
                        "receive from",
                        &error,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Offer the packet just received into the arena to the shaper.
    fn offer_packet(&mut self, arrival: Nanos, length: usize, layout: &Layout) {
        let slot = self.arena.commit(length);
        let mut train = layout.train();
        train.is_deferrable |= packet::is_bare_acknowledgement(self.arena.get(slot));
        let admission = self.shaper.offer(arrival, train, slot);
        self.arena.set_holders(slot, admission.slices);
        let counts = &mut self.counters.counts;
        counts.admitted += u64::from(admission.admitted);
        counts.drops.queue += u64::from(admission.dropped);
        counts.drops.loss += u64::from(admission.lost);
        counts.drops.outage += u64::from(admission.outage);
        self.counters.record_queue(admission.queue_bytes);
    }

    fn transmit_due(&mut self) -> Result<(), Failed> {
        for _ in 0..BATCH {
            let Some(slice) = self.shaper.take(now() + self.early_release.lead()) else {
                return Ok(());
            };
            let departed = self.transmit(&slice)?;
            self.counters.record_departure(slice.due, departed);
            if !slice.is_deferrable {
                self.early_release.record_departure(slice.due, departed);
            }
            self.arena.release(slice.packet);
        }
        Ok(())
    }

    /// Send one slice. Returns when it left or was dropped.
    fn transmit(&mut self, slice: &Slice<Slot>) -> Result<Nanos, Failed> {
        let packet = self.arena.get(slice.packet);
        let (mut corrupted, count) = (false, u64::from(slice.count));
        let sent = match (Layout::parse(packet), slice.flaw) {
            (Some(layout), Some(flaw)) => {
                let mut segment = slicer::cut_segment(packet, &layout, slice.first);
                corrupted = corrupt::flip_bit(&mut segment, flaw);
                self.send_packet(&segment, &[])?
            }
            (Some(layout), None) if layout.is_sliceable() && slice.count < layout.segments => {
                let headers = slicer::slice_headers(packet, &layout, slice.first, slice.count);
                let payload = layout.payload_range(slice.first, slice.count);
                self.send_packet(
                    headers.as_bytes(),
                    &packet[VNET_LEN + payload.start..VNET_LEN + payload.end],
                )?
            }
            _ => self.send_packet(packet, &[])?,
        };
        let counts = &mut self.counters.counts;
        if sent.is_some() {
            counts.packets += 1;
            counts.segments += count;
            counts.wire_bytes += slice.wire_bytes;
            // The copy of a corrupted segment counts only as a copy.
            counts.corrupted += u64::from(corrupted && !slice.is_copy);
            counts.duplicated += u64::from(slice.is_copy);
            counts.reordered += if slice.was_overtaken { count } else { 0 };
        } else {
            counts.drops.transmit += count;
        }
        Ok(sent.unwrap_or_else(now))
    }

    /// Hand one packet to the kernel, retrying for a bounded time while it has no room. Returns the time just before the successful
    /// attempt: earlier attempts count as delay of the packet; the receiving host's work, which runs within the send, does not. None
    /// if the kernel did not take the packet.
    fn send_packet(&self, headers: &[u8], payload: &[u8]) -> Result<Option<Nanos>, Failed> {
        for _ in 0..MAX_SEND_ATTEMPTS {
            let start = now();
            let Err(error) = self.transmitter.send(headers, payload) else {
                return Ok(Some(start));
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM) => {
                    // There is no event to wait for: the receiving host needs time to process what it has.
                    let _ = poll(&mut [], Some(&timespec(SEND_RETRY_PAUSE)));
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADFD) => {
                    return Err(port::interface_error(&self.interfaces.1, "send to", &error));
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}
