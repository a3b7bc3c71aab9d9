//! One end of a connection that is passed on.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use rustix::time::{ClockId, clock_gettime};

/// Reported once when bytes come or room becomes available (edge-triggered).
pub(crate) const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// A socket and its readiness: what epoll reported stays true until a call shows otherwise.
#[derive(Debug)]
pub(crate) struct SocketEnd {
    pub(crate) socket: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed both directions.
    pub(crate) is_hung_up: bool,
}

impl SocketEnd {
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: false,
            writable: false,
            is_hung_up: false,
        }
    }

    /// An end of unknown readiness, taken to be ready: the first call shows whether it is.
    pub(crate) const fn assume_ready(socket: OwnedFd) -> Self {
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

    /// Read some bytes; `Ok(None)` if none are available now, `Some(0)` if the sender has ended.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        match net::recv(&self.socket, buffer, RecvFlags::empty()) {
            Ok((count, _)) => Ok(Some(count)),
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> rustix::io::Result<usize> {
        match net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            other => other,
        }
    }
}

pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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

    /// A server's socket, and what a tap in front of it needs. Removes the folder when dropped.
    pub(crate) struct Rig {
        folder: PathBuf,
        to_tap: PathBuf,
        pub(crate) server: UnixListener,
        pub(crate) target: Target,
        pub(crate) wake: Arc<OwnedFd>,
    }

    impl Rig {
        /// A rig, and the tap's listener. `name`: the test's.
        pub(crate) fn new(name: &str) -> (Self, OwnedFd) {
            let folder = std::env::temp_dir().join(format!("howfar-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder");
            let (to_server, to_tap) = (folder.join("server"), folder.join("tap"));
            let server = UnixListener::bind(&to_server).expect("a socket");
            server.set_nonblocking(true).expect("a server");
            let listener = UnixListener::bind(&to_tap).expect("a socket");
            listener.set_nonblocking(true).expect("a listener");
            let rig = Self {
                folder,
                to_tap,
                server,
                target: Target::Unix {
                    path: to_server.display().to_string(),
                },
                wake: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("one")),
            };
            (rig, listener.into())
        }

        pub(crate) fn client(&self) -> UnixStream {
            let client = UnixStream::connect(&self.to_tap).expect("the tap listens");
            client.set_nonblocking(true).expect("a client");
            client
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    /// A client sends until nothing more fits, and its server, which reads nothing, does the same; then the client is killed. The
    /// server must be able to write the rest, and to read all that was sent.
    pub(crate) fn check_client_killed_while_both_wait(rig: &Rig, mut turn: impl FnMut()) {
        const REST: usize = 4 << 20;
        let mut client = rig.client();
        let mut session = loop {
            turn();
            if let Ok((session, _)) = rig.server.accept() {
                break session;
            }
        };
        session.set_nonblocking(true).expect("a session");
        let sent = fill(&mut client, &mut turn);
        fill(&mut session, &mut turn);
        drop(client);
        let (mut written, mut read, mut bytes) = (0, 0, vec![0; 1 << 16]);
        for _ in 0..100_000 {
            turn();
            if written < REST {
                written += session.write(&bytes).unwrap_or(0);
                continue;
            }
            match session.read(&mut bytes) {
                Ok(count) if count > 0 => read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        assert!(written >= REST, "the server could not write");
        assert_eq!(read, sent);
    }

    fn fill(stream: &mut UnixStream, turn: &mut impl FnMut()) -> usize {
        let (mut filled, mut refused, bytes) = (0, 0, vec![0; 1 << 16]);
        while refused < 10 {
            match stream.write(&bytes) {
                Ok(count) => (filled, refused) = (filled + count, 0),
                Err(_) => refused += 1,
            }
            turn();
        }
        filled
    }
}
