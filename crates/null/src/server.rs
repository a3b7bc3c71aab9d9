//! One thread of the null server: an epoll, the connections that it accepted, and one input and one output buffer for all of them.
//!
//! A query costs one wait (shared by all connections that are ready), one receive and one send. With a service time, answers wait in
//! a queue in the order in which they are due, and a timer wakes the thread.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::answers::AnswerBook;
use crate::clock::now_ns;
use crate::session::Session;

const MAX_EVENTS: usize = 256;
const BUFFER_BYTES: usize = 64 * 1024;
const LISTENER_TOKEN: u64 = u64::MAX;
const TIMER_TOKEN: u64 = u64::MAX - 1;
/// Maximum connections accepted before others are served again.
const ACCEPT_BATCH: usize = 64;
/// Maximum connections of a thread; further ones are closed.
const MAX_CONNECTIONS: usize = 65_536;
/// Maximum bytes of answers held for a client that does not read; beyond that, nothing more is read from it until it does.
const MAX_UNSENT_BYTES: usize = 4 << 20;
/// Edge-triggered: epoll reports once when bytes come. A receive that does not fill the buffer has emptied the socket.
const INTEREST: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// The next connection's number, across all threads.
static NEXT_CONNECTION: AtomicU32 = AtomicU32::new(1);

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    number: u32,
    session: Session,
    /// Answers not yet sent.
    unsent: Vec<u8>,
    /// How many bytes of `unsent` are due.
    due_bytes: usize,
    /// Whether epoll reports when the socket has room.
    wants_writable: bool,
}

/// An answer that waits for its service time.
#[derive(Debug, Clone, Copy)]
struct DelayedAnswer {
    due_ns: u64,
    index: usize,
    number: u32,
    byte_count: usize,
}

#[derive(Debug)]
struct Delay {
    timer: OwnedFd,
    service_ns: u64,
    queue: VecDeque<DelayedAnswer>,
}

#[derive(Debug)]
pub(crate) struct Server {
    listener: Arc<OwnedFd>,
    book: Arc<AnswerBook>,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    free_slots: Vec<usize>,
    delay: Option<Delay>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Server {
    pub(crate) fn new(
        listener: Arc<OwnedFd>,
        book: Arc<AnswerBook>,
        delay_ns: u64,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // EXCLUSIVE: a new client wakes only one of the threads.
        let listener_events = EventFlags::IN | EventFlags::EXCLUSIVE;
        epoll::add(
            &epoll,
            &*listener,
            EventData::new_u64(LISTENER_TOKEN),
            listener_events,
        )?;
        let delay = if delay_ns > 0 {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            epoll::add(&epoll, &timer, EventData::new_u64(TIMER_TOKEN), INTEREST)?;
            Some(Delay {
                timer,
                service_ns: delay_ns,
                queue: VecDeque::new(),
            })
        } else {
            None
        };
        Ok(Self {
            listener,
            book,
            epoll,
            connections: Vec::new(),
            free_slots: Vec::new(),
            delay,
            input: vec![0; BUFFER_BYTES],
            output: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    /// Serve until epoll itself fails.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        loop {
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, space, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER_TOKEN => self.accept(),
                    TIMER_TOKEN => self.send_due()?,
                    index => self.handle_readiness(index as usize, event.flags),
                }
            }
        }
    }

    #[cold]
    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match net::accept_with(&*self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Out of descriptors: connections that end will free some.
                    thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            };
            // An error is not reported: a client that is refused sees its connection closed.
            let _ = self.admit(socket);
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let index = match self.free_slots.pop() {
            Some(index) => index,
            None if self.connections.len() < MAX_CONNECTIONS => {
                self.connections.push(None);
                self.connections.len() - 1
            }
            None => return Err(io::ErrorKind::OutOfMemory.into()),
        };
        let number = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
        let outcome = send(&socket, &self.book.greeting(number)).and_then(|_| {
            let data = EventData::new_u64(index as u64);
            Ok(epoll::add(&self.epoll, &socket, data, INTEREST)?)
        });
        if outcome.is_err() {
            self.free_slots.push(index);
            return outcome;
        }
        self.connections[index] = Some(Connection {
            socket,
            number,
            session: Session::default(),
            unsent: Vec::new(),
            due_bytes: 0,
            wants_writable: false,
        });
        Ok(())
    }

    #[inline]
    fn handle_readiness(&mut self, index: usize, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) && self.flush(index).is_err() {
            return self.close(index);
        }
        if self.receive(index).is_err() {
            self.close(index);
        }
    }

    /// Receive and answer requests. An error or the client's QUIT ends the connection.
    #[inline]
    fn receive(&mut self, index: usize) -> Result<(), ConnectionEnded> {
        loop {
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                return Ok(());
            };
            if connection.unsent.len() > MAX_UNSENT_BYTES {
                return Ok(());
            }
            let buffer = self.input.as_mut_slice();
            let count = match net::recv(&connection.socket, buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ConnectionEnded),
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(ConnectionEnded),
            };
            self.output.clear();
            let outcome =
                connection
                    .session
                    .feed(&self.input[..count], &self.book, &mut self.output);
            if !self.output.is_empty() {
                self.answer(index)?;
            }
            if outcome != Ok(ControlFlow::Continue(())) {
                return Err(ConnectionEnded);
            }
            if count < BUFFER_BYTES {
                return Ok(());
            }
        }
    }

    /// Send the output, or hold it until it is due.
    #[inline]
    fn answer(&mut self, index: usize) -> Result<(), ConnectionEnded> {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return Ok(());
        };
        if self.delay.is_none() && connection.unsent.is_empty() {
            let sent = send(&connection.socket, &self.output)?;
            if sent == self.output.len() {
                return Ok(());
            }
            connection.unsent.extend_from_slice(&self.output[sent..]);
            connection.due_bytes = connection.unsent.len();
            return self.update_interest(index);
        }
        connection.unsent.extend_from_slice(&self.output);
        let Some(delay) = &mut self.delay else {
            connection.due_bytes = connection.unsent.len();
            return Ok(());
        };
        delay.queue.push_back(DelayedAnswer {
            due_ns: now_ns() + delay.service_ns,
            index,
            number: connection.number,
            byte_count: self.output.len(),
        });
        if delay.queue.len() == 1 {
            delay.arm_timer()?;
        }
        Ok(())
    }

    /// Send the answers that are due by now.
    #[cold]
    fn send_due(&mut self) -> io::Result<()> {
        while let Some(delay) = &mut self.delay {
            let Some(&answer) = delay.queue.front() else {
                return Ok(());
            };
            if answer.due_ns > now_ns() {
                return delay.arm_timer();
            }
            delay.queue.pop_front();
            match self.connections.get_mut(answer.index) {
                Some(Some(connection)) if connection.number == answer.number => {
                    connection.due_bytes += answer.byte_count;
                }
                // The client has disconnected.
                _ => continue,
            }
            // Also receive the requests that were left in the socket while too many answers waited.
            if self
                .flush(answer.index)
                .and_then(|()| self.receive(answer.index))
                .is_err()
            {
                self.close(answer.index);
            }
        }
        Ok(())
    }

    /// Send the bytes of a connection that are due.
    #[cold]
    fn flush(&mut self, index: usize) -> Result<(), ConnectionEnded> {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return Ok(());
        };
        let sent = send(
            &connection.socket,
            &connection.unsent[..connection.due_bytes],
        )?;
        connection.unsent.drain(..sent);
        connection.due_bytes -= sent;
        self.update_interest(index)
    }

    /// Let epoll report room in the socket only while bytes are due.
    fn update_interest(&mut self, index: usize) -> Result<(), ConnectionEnded> {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return Ok(());
        };
        let wants_writable = connection.due_bytes > 0;
        if wants_writable == connection.wants_writable {
            return Ok(());
        }
        let flags = if wants_writable {
            INTEREST | EventFlags::OUT
        } else {
            INTEREST
        };
        let data = EventData::new_u64(index as u64);
        epoll::modify(&self.epoll, &connection.socket, data, flags)?;
        connection.wants_writable = wants_writable;
        Ok(())
    }

    #[cold]
    fn close(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::take) {
            // Closing the socket removes it from the epoll.
            drop(connection);
            self.free_slots.push(index);
        }
    }
}

impl Delay {
    /// Set the timer to when the first answer is due.
    fn arm_timer(&self) -> io::Result<()> {
        let Some(first_answer) = self.queue.front() else {
            return Ok(());
        };
        let timer_spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (first_answer.due_ns / 1_000_000_000) as i64,
                tv_nsec: (first_answer.due_ns % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &timer_spec)?;
        Ok(())
    }
}

/// The end of a connection: the client closed it, the socket failed, or the client violated the protocol. It is not reported.
struct ConnectionEnded;

impl From<io::Error> for ConnectionEnded {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<Errno> for ConnectionEnded {
    fn from(_: Errno) -> Self {
        Self
    }
}

/// Send as many bytes as the socket takes now, possibly none; returns their number.
#[inline]
fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}
