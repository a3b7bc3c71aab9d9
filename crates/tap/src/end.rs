//! A socket of a connection that a tap passes on, and the clock.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, RecvFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// A socket and its readiness, as epoll reported it or as a later call has shown.
#[derive(Debug)]
pub(crate) struct SocketEnd {
    pub(crate) socket: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed both directions.
    pub(crate) is_hung_up: bool,
}

impl SocketEnd {
    /// A socket whose readiness is unknown: it counts as ready until the first call shows whether it is.
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: true,
            writable: true,
            is_hung_up: false,
        }
    }

    pub(crate) fn handle_readiness(&mut self, flags: EventFlags) {
        self.readable |= flags
            .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        self.is_hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
    }

    /// Read some bytes; `None` if none are available now, `Some(0)` if the sender has ended. A reset counts as the end: bytes that the
    /// sender sent before must still be passed on.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        let receive = || net::recv(&self.socket, &mut *buffer, RecvFlags::empty());
        match retry_on_intr(receive) {
            Ok((count, _)) => Ok(Some(count)),
            Err(error) => self.end_of_read(error),
        }
    }

    /// The result of a read that failed.
    pub(crate) fn end_of_read(&mut self, error: Errno) -> rustix::io::Result<Option<usize>> {
        match error {
            Errno::AGAIN => {
                self.readable = false;
                Ok(None)
            }
            Errno::CONNRESET => Ok(Some(0)),
            error => Err(error),
        }
    }

    /// The result of a write: a socket without room takes 0 bytes.
    pub(crate) fn written(
        &mut self,
        outcome: rustix::io::Result<usize>,
    ) -> rustix::io::Result<usize> {
        if outcome == Err(Errno::AGAIN) {
            self.writable = false;
            return Ok(0);
        }
        outcome
    }
}

pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// Read the counter of an event or timer descriptor, which then is no longer readable.
pub(crate) fn clear_counter(descriptor: &OwnedFd) {
    let _ = rustix::io::read(descriptor, &mut [0u8; 8]);
}

#[cfg(test)]
pub(crate) mod test_rig {
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::sync::Arc;

    use howfar_contract::jobs::Target;
    use rustix::event::{EventfdFlags, eventfd};

    /// A listening server, and the arguments of a tap in front of it. Removes the folder when dropped.
    pub(crate) struct Rig {
        folder: PathBuf,
        to_tap: PathBuf,
        pub(crate) server: UnixListener,
        pub(crate) target: Target,
        pub(crate) wake: Arc<OwnedFd>,
    }

    impl Rig {
        /// A rig and the tap's listener. `name`: the name of the test.
        pub(crate) fn new(name: &str) -> (Self, OwnedFd) {
            let folder = std::env::temp_dir().join(format!("howfar-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            let (to_server, to_tap) = (folder.join("server"), folder.join("tap"));
            let listen = |path| {
                let listener = UnixListener::bind(path).expect("the path is free");
                listener.set_nonblocking(true).expect("the socket is open");
                listener
            };
            let (server, listener) = (listen(&to_server), listen(&to_tap));
            let rig = Self {
                folder,
                to_tap,
                server,
                target: Target::Unix {
                    path: to_server.display().to_string(),
                },
                wake: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd succeeds")),
            };
            (rig, listener.into())
        }

        pub(crate) fn connect(&self) -> UnixStream {
            let client = UnixStream::connect(&self.to_tap).expect("the tap listens");
            client.set_nonblocking(true).expect("the socket is open");
            client
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    /// Check that a server can write more bytes and read all that was sent after its client was killed while both waited: each had
    /// sent until nothing more fitted, and the server had read nothing. `run_tap` lets the tap process events.
    pub(crate) fn check_client_killed_while_both_wait(rig: &Rig, mut run_tap: impl FnMut()) {
        const MORE_BYTES: usize = 4 << 20;
        let mut client = rig.connect();
        let mut session = loop {
            run_tap();
            if let Ok((session, _)) = rig.server.accept() {
                break session;
            }
        };
        session.set_nonblocking(true).expect("the socket is open");
        let sent = fill(&mut client, &mut run_tap);
        fill(&mut session, &mut run_tap);
        drop(client);
        let (mut written, mut read, mut bytes) = (0, 0, vec![0; 1 << 16]);
        for _ in 0..100_000 {
            run_tap();
            if written < MORE_BYTES {
                written += session.write(&bytes).unwrap_or(0);
                continue;
            }
            match session.read(&mut bytes) {
                Ok(count) if count > 0 => read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        assert!(written >= MORE_BYTES, "the server can write");
        assert_eq!(read, sent);
    }

    /// Write until the socket has no more room; returns the number of bytes written.
    fn fill(stream: &mut UnixStream, run_tap: &mut impl FnMut()) -> usize {
        let (mut filled, mut refused, bytes) = (0, 0, vec![0; 1 << 16]);
        while refused < 10 {
            match stream.write(&bytes) {
                Ok(count) => (filled, refused) = (filled + count, 0),
                Err(_) => refused += 1,
            }
            run_tap();
        }
        filled
    }
}
