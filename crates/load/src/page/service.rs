//! One connection of a worker to one service: send a request, and wait for its complete answer. Blocking, with one send and one
//! receive per round trip.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use howfar_contract::jobs::{PageConnect, PsMode, Service};
use howfar_contract::{Failed, events};
use howfar_wire::mysql::Malformed;
use howfar_wire::mysql::handshake::Account;
use howfar_wire::mysql::row::Work;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, RecvFlags, SendFlags, Shutdown};

use crate::channel::{Channel, Wanted};
use crate::clock::now_ns;
use crate::connecting::open_one;
use crate::connection::Broken;
use crate::failure;
use crate::login::{Entry, Session};
use crate::protocol::{Outcome, Replies};
use crate::receipt::{self, ReceiptContext};
use crate::socket::Address;
use crate::wire::send_some;
use crate::workload::Program;
use crate::workload::commands::Commands;

/// Size of the receive buffer: most answers come in one piece.
const BUFFER: usize = 64 * 1024;

/// A service as all workers see it.
#[derive(Debug)]
pub(crate) struct ServiceEndpoint {
    pub(crate) name: &'static str,
    service: Service,
    address: Address,
    wanted: Wanted,
    /// The requests to this service; for SQL, the statements of one round.
    pub(crate) program: Program,
    connect_ns: u64,
    stall_ns: u64,
}

/// Buffers that a worker lends to its connections.
pub(crate) struct Buffers {
    pub(crate) packet: Vec<u8>,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    buffer: Vec<u8>,
    work: Work,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            packet: Vec::new(),
            sealed: Vec::new(),
            plain: Vec::new(),
            buffer: vec![0; BUFFER],
            work: Work::touch(),
        }
    }
}

/// An open connection.
pub(crate) struct ServiceConnection {
    socket: Arc<OwnedFd>,
    channel: Channel,
    pub(crate) replies: Replies,
}

impl ServiceEndpoint {
    pub(crate) fn new(
        name: &'static str,
        service: &Service,
        program: Program,
        (connect_ns, stall_ns): (u64, u64),
    ) -> Result<Self, Failed> {
        Ok(Self {
            name,
            address: Address::parse(&service.target)?,
            wanted: Wanted::new(&service.session(), &service.target)?,
            service: service.clone(),
            program,
            connect_ns,
            stall_ns,
        })
    }

    fn entry(&self) -> Entry<'_> {
        Entry {
            target: &self.service.target,
            account: Account {
                user: &self.service.user,
                password: &self.service.password,
                database: &self.service.database,
            },
            wanted: &self.wanted,
            program: &self.program,
            decode: false,
            read_only: false,
        }
    }

    /// Connect and log in.
    pub(crate) fn open(&self) -> Result<ServiceConnection, Failed> {
        let (socket, session) = open_one(&self.entry(), &self.address, self.connect_ns)?;
        self.line(socket, session)
    }

    /// Make an open connection blocking, with timeouts enforced by the kernel.
    fn line(&self, socket: OwnedFd, session: Session) -> Result<ServiceConnection, Failed> {
        let patience = Some(Duration::from_nanos(self.stall_ns));
        rustix::io::ioctl_fionbio(&socket, false)
            .and_then(|()| sockopt::set_socket_timeout(&socket, Timeout::Recv, patience))
            .and_then(|()| sockopt::set_socket_timeout(&socket, Timeout::Send, patience))
            .map_err(|error| self.io(error))?;
        Ok(ServiceConnection {
            socket: Arc::new(socket),
            channel: session.channel,
            replies: session.replies,
        })
    }

    /// The receipt of a first connection, and of a second one if later ones differ: if each page opens connections, or if they may
    /// resume TLS sessions. Both connections are returned, for workers to use.
    pub(crate) fn receipt(
        &self,
        connect: PageConnect,
        threads: u32,
        cpus: &[u32],
    ) -> Result<(events::Receipt, Vec<ServiceConnection>), Failed> {
        let entry = self.entry();
        let open = || open_one(&entry, &self.address, self.connect_ns);
        let context = ReceiptContext {
            entry: &entry,
            address: &self.address,
            limit_ns: self.connect_ns,
            mode: PsMode::Disable,
            threads,
            cpus,
        };
        let (mut receipt, socket, session) = receipt::open(context, open)?;
        receipt.driver = "threads";
        let mut lines = vec![self.line(socket, session)?];
        let later = self.service.tls.is_some() && threads > 1;
        if later || connect == PageConnect::PerPage {
            let (socket, session) = open()?;
            receipt.connect_turns = receipt::connect_turns(&self.address, &session);
            receipt.tls_resumed = session.tls.as_ref().map(|tls| tls.resumed);
            lines.push(self.line(socket, session)?);
        }
        Ok((receipt, lines))
    }

    fn io(&self, error: Errno) -> Failed {
        failure::broken(&self.service.target, &error.into())
    }

    /// The failure if nothing was received within the limit.
    fn stalled(&self, worker: u64, doing: &str) -> Failed {
        failure::stalled(&self.service.target, worker, doing, self.stall_ns)
    }

    /// The failure for invalid bytes, or for an error of the socket.
    fn wrong(&self, broken: &Broken) -> Failed {
        let protocol = self.program.commands().map(Commands::protocol);
        broken.translate(&self.service.target, protocol)
    }

    /// The failure if the answer is an error of the server.
    fn refused(&self, doing: &str, outcome: &Outcome, replies: &Replies) -> Option<Failed> {
        match outcome {
            Outcome::Done(_) => None,
            Outcome::Failed(error) => Some(failure::server(&self.service.target, doing, error)),
            Outcome::Commands => {
                let first = replies.counts().and_then(|counts| counts.refused.first());
                first.map(|refusal| failure::command(&self.service.target, doing, refusal))
            }
        }
    }
}

impl ServiceConnection {
    /// Send the packet of `room` and receive the complete answer; an error of the server ends the job. Also returns the number of
    /// protocol bytes received.
    pub(crate) fn ask(
        &mut self,
        site: &ServiceEndpoint,
        room: &mut Buffers,
        (worker, doing): (u64, &str),
    ) -> Result<(Outcome, u64), Failed> {
        let bytes = if self.channel.is_plain() {
            &room.packet
        } else {
            room.sealed.clear();
            self.channel
                .seal(&room.packet, &mut room.sealed)
                .map_err(|error| site.wrong(&Broken::Channel(error)))?;
            &room.sealed
        };
        send_all(&self.socket, bytes).map_err(|error| match error {
            Errno::AGAIN => site.stalled(worker, doing),
            error => site.io(error),
        })?;
        let began_ns = now_ns();
        let (mut came, mut pieces) = (0, 0_u64);
        loop {
            if pieces > 0 && now_ns().saturating_sub(began_ns) > site.stall_ns {
                // The socket's timeout only limits silence; this limits an answer that never ends.
                return Err(site.stalled(worker, doing));
            }
            pieces += 1;
            let count = match net::recv(&self.socket, &mut room.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    let during = format!("during {doing}");
                    return Err(failure::gone(&site.service.target, &during));
                }
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(site.stalled(worker, doing)),
                Err(error) => return Err(site.io(error)),
            };
            let taken = self.take(room, count, &mut came);
            if let Some(outcome) = taken.map_err(|broken| site.wrong(&broken))? {
                return match site.refused(doing, &outcome, &self.replies) {
                    Some(failed) => Err(failed),
                    None => Ok((outcome, came)),
                };
            }
        }
    }

    /// Decode the first `count` bytes of the buffer; returns the outcome once the answer is complete.
    fn take(
        &mut self,
        room: &mut Buffers,
        count: usize,
        came: &mut u64,
    ) -> Result<Option<Outcome>, Broken> {
        let (replies, work) = (&mut self.replies, &mut room.work);
        let bytes = &room.buffer[..count];
        if self.channel.is_plain() {
            *came += count as u64;
            return replies.decode(bytes, &[], work);
        }
        let (mut outcome, mut own) = (None, Vec::new());
        self.channel
            .open_each(bytes, &mut room.plain, &mut own, |packets| {
                *came += packets.len() as u64;
                let ended = outcome.is_some() && !packets.is_empty();
                if ended && !replies.may_go_on() {
                    let late = Malformed::Unexpected("bytes follow the end of an answer");
                    return Err(Broken::Malformed(late));
                }
                outcome = replies.decode(packets, &[], work)?.or(outcome.take());
                Ok(())
            })?;
        if outcome.is_none() {
            self.channel.goes_on()?;
        }
        send_all(&self.socket, &own).map_err(|error| Broken::Io(error.into()))?;
        Ok(outcome)
    }

    /// The socket, for reading its state; [`ServiceConnection::leave`] ends the connection even if this handle is still held.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Send the protocol's goodbye, if it has one (key-value stores have none), and close. Errors are ignored: the server may be gone.
    pub(crate) fn leave(mut self) {
        let (mut quit, mut bytes) = (Vec::new(), Vec::new());
        self.replies.goodbye(&mut quit);
        if !quit.is_empty() {
            let _ = self.channel.seal(&quit, &mut bytes);
            let _ = send_some(&self.socket, &bytes);
        }
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Send all of `bytes`, waiting up to the socket's timeout.
pub(super) fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
