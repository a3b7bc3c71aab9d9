//! One connection of a worker to one service: ask, and wait for the whole answer. Blocking, one send and one receive a turn.

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

/// Most answers come in one piece.
const BUFFER: usize = 64 * 1024;

/// A service as all workers see it.
#[derive(Debug)]
pub(crate) struct ServiceEndpoint {
    pub(crate) name: &'static str,
    service: Service,
    address: Address,
    wanted: Wanted,
    /// What is requested there; of statements those of one round.
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

    /// From here on its waits are the kernel's.
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

    /// What a first connection really is, and a second one where later ones differ: connections are opened again and again, or may
    /// resume TLS sessions. Both are given back, for workers to use.
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

    /// The end of a wait without a byte.
    fn stalled(&self, worker: u64, doing: &str) -> Failed {
        failure::stalled(&self.service.target, worker, doing, self.stall_ns)
    }

    /// What is wrong with the bytes that came, or with the socket.
    fn wrong(&self, broken: &Broken) -> Failed {
        let protocol = self.program.commands().map(Commands::protocol);
        broken.translate(&self.service.target, protocol)
    }

    /// The server's error instead of an answer.
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
    /// Send the packet of `room` and take the whole answer; an error of the server ends the job. Gives how many bytes of protocol
    /// came.
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
                // The kernel's own limit is one for silence: an answer that never ends is none.
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

    /// The first `count` bytes of the buffer: how the answer ended, once it did.
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

    /// For a look at it; [`ServiceConnection::leave`] ends the connection whoever still holds this.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Say goodbye as clients do, which is nothing at a key-value store, and close. A server that is gone by now changes nothing.
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

/// All of `bytes`, waiting as long as the socket's own limit.
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
