//! One end of a connection that is passed on.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::time::{ClockId, clock_gettime};

/// Reported once when bytes come or room is there.
pub(crate) const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// What epoll reported stays true until a call says otherwise.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) socket: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other side has gone altogether.
    pub(crate) hung_up: bool,
}

impl End {
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: false,
            writable: false,
            hung_up: false,
        }
    }

    /// One of which nothing is known: trying shows it.
    pub(crate) const fn ready(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: true,
            writable: true,
            hung_up: false,
        }
    }

    pub(crate) fn hear(&mut self, flags: EventFlags) {
        self.readable |= flags
            .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        self.hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
    }
}

pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
