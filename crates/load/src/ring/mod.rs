//! An `io_uring` for one worker: sends are gathered into the call that also waits, and receives stay armed.
//!
//! Connections are known only by their tokens. Not here: what a reply means (`worker`).
//!
//! The unsafe code relies on these invariants: a packet does not move until the call that submits it has returned, because a send is
//! completed inside that call (`MSG_DONTWAIT`: it is never parked); buffers for replies live as long as the ring, and are read only
//! between the completion that names them and their return to the kernel.
#![allow(unsafe_code)] // entries of the ring hold addresses

mod buffers;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::net::{self, Shutdown};

use buffers::ReceiveBuffers;

/// Entries of the submission queue: a longer batch is submitted in parts.
const SUBMISSION_ENTRIES: u32 = 1024;
/// Maximum number of entries that wait to be submitted together: a send counts as sent when it is queued, so it must not wait long.
const MAX_QUEUED: usize = 32;
/// Room for packets, in bytes, before part of a batch must be submitted.
const PACKET_BYTES: usize = 64 * 1024;
const BUFFER_GROUP: u16 = 0;

/// The two high bits of an entry's user data are its kind; the rest is a token, or a send's number.
const KIND: u64 = 0b11 << 62;
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 62;
const WRITABLE: u64 = 2 << 62;
const EPOLL: u64 = 3 << 62;

/// Identifies an open socket in a ring: the connection's index in the low bits, a number unique to this socket above.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(u64);

impl Token {
    fn new(generation: u32, index: usize) -> Self {
        Self((u64::from(generation & (u32::MAX >> 2)) << 32) | (index as u64 & 0xFFFF_FFFF))
    }

    fn from_user_data(data: u64) -> Self {
        Self(data & !KIND)
    }

    /// The connection's index.
    pub(crate) fn index(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }
}

/// An event that [`Ring::next`] returns.
#[derive(Debug)]
pub(crate) enum Event {
    /// The first `count` bytes of the buffer were received; `is_armed`: further bytes will be received without arming again.
    Received {
        token: Token,
        count: usize,
        is_armed: bool,
    },
    /// Nothing was received for lack of a buffer: the receive must be armed again.
    Starved {
        token: Token,
    },
    /// The peer has closed the connection, or the connection failed.
    Closed {
        token: Token,
        error: Option<Errno>,
    },
    /// The socket did not take these bytes.
    Unsent {
        token: Token,
        rest: Vec<u8>,
    },
    /// A send failed.
    SendFailed {
        token: Token,
        error: Errno,
    },
    Writable {
        token: Token,
    },
    /// The watched descriptor is readable; `is_armed`: it is still watched.
    EpollReady {
        is_armed: bool,
    },
}

/// A send of the current batch: where its bytes are, in case the socket does not take them all.
struct Sent {
    token: Token,
    offset: usize,
    len: usize,
}

pub(crate) struct Ring {
    // The first field is dropped first: the kernel must release the memory of the fields below before it is freed.
    uring: IoUring,
    buffers: ReceiveBuffers,
    packets: Vec<u8>,
    sends: Vec<Sent>,
    batch: u64,
    generation: u32,
    starved: u64,
    /// Whether a receive found no buffer since the last call.
    short_of_buffers: bool,
    completions: Vec<cqueue::Entry>,
    next_completion: usize,
    /// Sends that failed in the last call; reported before other events.
    failed: Vec<Event>,
    /// Sockets to close after the next call: until they are submitted, entries refer to descriptors by number.
    to_close: Vec<OwnedFd>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ring")
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for `connections`, with receive buffers of `buffer_bytes` bytes; disabled until the thread that will use it calls
    /// [`Ring::start`].
    pub(crate) fn new(connections: usize, buffer_bytes: usize) -> io::Result<Self> {
        // Maximum completions between two calls: for each connection one ended receive and one failed send, and one for each buffer.
        let buffers = ReceiveBuffers::new(connections, buffer_bytes)?;
        let max_completions = 2 * connections as u32 + 2 * u32::from(buffers.entries());
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_r_disabled()
            .setup_clamp()
            .setup_cqsize(max_completions.next_power_of_two().max(SUBMISSION_ENTRIES))
            .build(SUBMISSION_ENTRIES)?;
        // SAFETY: the address is that of `entries` entries, initialised and aligned to a page, that outlive the ring.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(
                buffers.address(),
                buffers.entries(),
                BUFFER_GROUP,
                0,
            )?;
        }
        Ok(Self {
            uring,
            buffers,
            packets: Vec::with_capacity(PACKET_BYTES),
            sends: Vec::with_capacity(SUBMISSION_ENTRIES as usize),
            batch: 1,
            generation: 0,
            starved: 0,
            short_of_buffers: false,
            completions: Vec::with_capacity(SUBMISSION_ENTRIES as usize),
            next_completion: 0,
            failed: Vec::new(),
            to_close: Vec::new(),
        })
    }

    /// Enable the ring: from now on it belongs to this thread.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()
    }

    /// Receives that found no buffer: each costs another receive.
    pub(crate) fn starved(&self) -> u64 {
        self.starved
    }

    /// Number of the current batch, which changes with each wait. A batch may hold only one send of a connection.
    #[inline]
    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    /// Report whenever this descriptor is readable.
    pub(crate) fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        let fd = Fd(epoll.as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true);
        self.push(&poll.build().user_data(EPOLL))
    }

    /// Start to receive from a new socket.
    pub(crate) fn register(&mut self, socket: &OwnedFd, index: usize) -> io::Result<Token> {
        self.generation = self.generation.wrapping_add(1);
        let token = Token::new(self.generation, index);
        self.arm_receive(socket, token)?;
        Ok(token)
    }

    /// Receive again after a receive has ended.
    pub(crate) fn arm_receive(&mut self, socket: &OwnedFd, token: Token) -> io::Result<()> {
        let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFER_GROUP);
        self.push(&receive.build().user_data(RECEIVE | token.0))
    }

    /// Report once when the socket is writable.
    pub(crate) fn await_writable(&mut self, socket: &OwnedFd, token: Token) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLOUT as u32);
        self.push(&poll.build().user_data(WRITABLE | token.0))
    }

    /// Send a copy of `bytes` with the next call, or as soon as [`MAX_QUEUED`] entries are queued. Only failed sends are reported.
    #[inline]
    pub(crate) fn send(&mut self, socket: &OwnedFd, token: Token, bytes: &[u8]) -> io::Result<()> {
        if self.uring.submission().len() >= MAX_QUEUED {
            self.submit()?;
        }
        if self.packets.capacity() - self.packets.len() < bytes.len() {
            // Sends are complete once they are submitted; then the packets may move.
            self.submit()?;
            self.packets.reserve(bytes.len());
        }
        let offset = self.packets.len();
        self.packets.extend_from_slice(bytes);
        // SAFETY: `offset` is inside the vector, whose memory stays where it is: it grows only after a submission.
        let address = unsafe { self.packets.as_ptr().add(offset) };
        // `MSG_WAITALL`: a partial send is reported as a failure, not suppressed as a success.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL;
        let send = opcode::Send::new(Fd(socket.as_raw_fd()), address, bytes.len() as u32)
            .flags(flags)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(SEND | self.sends.len() as u64);
        self.sends.push(Sent {
            token,
            offset,
            len: bytes.len(),
        });
        self.push(&send)
    }

    /// Close a socket once all its entries are submitted.
    pub(crate) fn close_later(&mut self, socket: OwnedFd) {
        self.to_close.push(socket);
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: sockets stay open until after the submission (`close_later`), and packets do not move (`send`).
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        unsafe { self.uring.submission().push(entry) }.map_err(io::Error::other)
    }

    /// Submit all without waiting.
    fn submit(&mut self) -> io::Result<()> {
        while !self.uring.submission().is_empty() {
            match self.uring.submit() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Submit all, and wait for an event up to `max_wait_ns`; `None` waits without limit.
    #[inline]
    pub(crate) fn wait(&mut self, max_wait_ns: Option<u64>) -> io::Result<()> {
        if std::mem::take(&mut self.short_of_buffers) {
            self.buffers.grow();
        }
        let outcome = match max_wait_ns {
            None => self.uring.submit_and_wait(1),
            Some(0) => self.submit_and_poll(),
            Some(max_ns) => {
                let timeout = Timespec::new()
                    .sec(max_ns / 1_000_000_000)
                    .nsec((max_ns % 1_000_000_000) as u32);
                let limit = SubmitArgs::new().timespec(&timeout);
                self.uring.submitter().submit_with_args(1, &limit)
            }
        };
        match outcome {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {}
            Err(error) => return Err(error),
        }
        self.submit()?;
        self.completions.clear();
        self.next_completion = 0;
        self.completions.extend(self.uring.completion());
        for entry in &self.completions {
            if entry.user_data() & KIND == SEND {
                self.failed.push(self.failed_send_event(entry));
            }
        }
        self.packets.clear();
        self.sends.clear();
        self.batch += 1;
        for socket in self.to_close.drain(..) {
            // Closing alone is not enough: the socket's receive holds it open.
            let _ = net::shutdown(socket.as_fd(), Shutdown::Both);
        }
        Ok(())
    }

    /// Submit all and get pending completions without waiting.
    fn submit_and_poll(&self) -> io::Result<usize> {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: all arguments are numbers; what the entries point to is valid, see `push`.
        unsafe {
            let waiting = self.uring.submission_shared().len();
            let submitter = self.uring.submitter();
            submitter.enter::<libc::sigset_t>(waiting as u32, 0, flags, None)
        }
    }

    /// The event of a send that did not fully succeed.
    #[cold]
    fn failed_send_event(&self, entry: &cqueue::Entry) -> Event {
        let sent = &self.sends[(entry.user_data() & !KIND) as usize];
        let token = sent.token;
        let sent_bytes = match entry.result() {
            count @ 0.. => count as usize,
            error if error == -libc::EAGAIN || error == -libc::EINTR => 0,
            error => {
                let error = Errno::from_raw_os_error(-error);
                return Event::SendFailed { token, error };
            }
        };
        let rest = self.packets[sent.offset + sent_bytes..sent.offset + sent.len].to_vec();
        Event::Unsent { token, rest }
    }

    /// The next event of the last call; received bytes are copied to the start of `buffer`.
    #[inline]
    pub(crate) fn next(&mut self, buffer: &mut [u8]) -> Option<Event> {
        if let Some(event) = self.failed.pop() {
            return Some(event);
        }
        loop {
            let entry = self.completions.get(self.next_completion)?;
            self.next_completion += 1;
            let (data, result) = (entry.user_data(), entry.result());
            let is_armed = cqueue::more(entry.flags());
            let token = Token::from_user_data(data);
            return Some(match data & KIND {
                SEND => continue,
                WRITABLE => Event::Writable { token },
                EPOLL => Event::EpollReady { is_armed },
                _ => match (cqueue::buffer_select(entry.flags()), result) {
                    (Some(id), _) => {
                        let count = result.max(0) as usize;
                        self.buffers.copy_out(id, &mut buffer[..count]);
                        if count == 0 {
                            Event::Closed { token, error: None }
                        } else {
                            Event::Received {
                                token,
                                count,
                                is_armed,
                            }
                        }
                    }
                    (None, 0) => Event::Closed { token, error: None },
                    (None, error) if error == -libc::ENOBUFS => {
                        self.starved += 1;
                        self.short_of_buffers = true;
                        Event::Starved { token }
                    }
                    (None, error) => Event::Closed {
                        token,
                        error: Some(Errno::from_raw_os_error(-error)),
                    },
                },
            });
        }
    }
}
