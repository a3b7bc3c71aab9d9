//! One connection of a worker to one service: send a request, and wait for its complete answer. Blocking, with one send and one
//! receive per round trip.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use howfar_contract::jobs::{PageConnect, PsMode, Service};
use howfar_contract::{Failed, events};
use howfar_wire::mysql::Malformed;
use howfar_wire::mysql::row::RowHandling;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, RecvFlags, SendFlags, Shutdown};

use crate::channel::{Channel, ChannelOptions};
use crate::clock::now_ns;
use crate::connecting::open_blocking;
use crate::connection_error::ConnectionError;
use crate::failure;
use crate::receipt::{self, ReceiptContext};
use crate::session::{LoginParameters, Outcome, Replies, Session};
use crate::socket::{Address, send_some};
use crate::workload::Program;
use crate::workload::commands::Commands;

/// Size of the receive buffer: most answers come in one piece.
const BUFFER_BYTES: usize = 64 * 1024;

/// A service's address, options and requests, shared by all workers.
#[derive(Debug)]
pub(crate) struct ServiceEndpoint {
    pub(crate) name: &'static str,
    service: Service,
    address: Address,
    channel_options: ChannelOptions,
    /// The requests to this service; for SQL, the statements of one round.
    pub(crate) program: Program,
    /// Time limits of a connect, and of an answer.
    connect_ns: u64,
    stall_ns: u64,
}

/// Buffers that a worker lends to its connections.
pub(crate) struct Buffers {
    pub(crate) packet: Vec<u8>,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    buffer: Vec<u8>,
    row_handling: RowHandling,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            packet: Vec::new(),
            sealed: Vec::new(),
            plain: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            row_handling: RowHandling::touch(),
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
            address: Address::parse(&service.login.target)?,
            channel_options: ChannelOptions::new(&service.session(), &service.login.target)?,
            service: service.clone(),
            program,
            connect_ns,
            stall_ns,
        })
    }

    fn login_parameters(&self) -> LoginParameters<'_> {
        LoginParameters::from_login(&self.service.login, &self.channel_options, &self.program)
    }

    /// Connect and log in.
    pub(crate) fn open(&self) -> Result<ServiceConnection, Failed> {
        let (socket, session) =
            open_blocking(&self.login_parameters(), &self.address, self.connect_ns)?;
        self.make_blocking(socket, session)
    }

    /// Make an open connection blocking, with timeouts enforced by the kernel.
    fn make_blocking(
        &self,
        socket: OwnedFd,
        session: Session,
    ) -> Result<ServiceConnection, Failed> {
        let timeout = Some(Duration::from_nanos(self.stall_ns));
        rustix::io::ioctl_fionbio(&socket, false)
            .and_then(|()| sockopt::set_socket_timeout(&socket, Timeout::Recv, timeout))
            .and_then(|()| sockopt::set_socket_timeout(&socket, Timeout::Send, timeout))
            .map_err(|error| self.io_failure(error))?;
        Ok(ServiceConnection {
            socket: Arc::new(socket),
            channel: session.channel,
            replies: session.replies,
        })
    }

    /// Open a first connection and make its receipt; open a second one if later connections differ: if each page opens connections,
    /// or if they may resume TLS sessions. Returns the open connections, for workers to use.
    pub(crate) fn open_with_receipt(
        &self,
        connect: PageConnect,
        threads: u32,
        cpus: &[u32],
    ) -> Result<(events::Receipt, Vec<ServiceConnection>), Failed> {
        let parameters = self.login_parameters();
        let open = || open_blocking(&parameters, &self.address, self.connect_ns);
        let context = ReceiptContext {
            parameters: &parameters,
            address: &self.address,
            limit_ns: self.connect_ns,
            mode: PsMode::Disable,
            threads,
            cpus,
        };
        let (mut receipt, socket, session) = receipt::open_with_receipt(context, open)?;
        receipt.driver = "threads";
        let mut connections = vec![self.make_blocking(socket, session)?];
        let may_resume = self.service.tls.is_some() && threads > 1;
        if may_resume || connect == PageConnect::PerPage {
            let (socket, session) = open()?;
            receipt.connect_round_trips = receipt::connect_round_trips(&self.address, &session);
            receipt.tls_resumed = session.tls.as_ref().map(|tls| tls.resumed);
            connections.push(self.make_blocking(socket, session)?);
        }
        Ok((receipt, connections))
    }

    fn io_failure(&self, error: Errno) -> Failed {
        failure::connection_broken(&self.service.login.target, &error.into())
    }

    /// The failure if nothing was received within the limit.
    fn stall_failure(&self, worker: u64, operation: &str) -> Failed {
        failure::stalled(&self.service.login.target, worker, operation, self.stall_ns)
    }

    /// The failure for invalid bytes, or for an error of the socket.
    fn translate_error(&self, error: &ConnectionError) -> Failed {
        let protocol = self.program.commands().map(Commands::protocol);
        error.translate(&self.service.login.target, protocol)
    }

    /// The failure if the answer is an error of the server.
    fn server_failure(
        &self,
        operation: &str,
        outcome: &Outcome,
        replies: &Replies,
    ) -> Option<Failed> {
        let target = &self.service.login.target;
        match outcome {
            Outcome::Done(_) => None,
            Outcome::Failed(error) => Some(failure::statement_failed(target, operation, error)),
            Outcome::Commands => {
                let error_reply = replies.counts().and_then(|counts| counts.errors.first());
                error_reply.map(|first| failure::command_failed(target, operation, first))
            }
        }
    }
}

impl ServiceConnection {
    /// Send the packet in `buffers` and receive the complete answer; an error of the server ends the job. Also returns the number of
    /// protocol bytes received.
    pub(crate) fn run_request(
        &mut self,
        endpoint: &ServiceEndpoint,
        buffers: &mut Buffers,
        (worker, operation): (u64, &str),
    ) -> Result<(Outcome, u64), Failed> {
        let bytes = if self.channel.is_plain() {
            &buffers.packet
        } else {
            buffers.sealed.clear();
            self.channel
                .seal(&buffers.packet, &mut buffers.sealed)
                .map_err(|error| endpoint.translate_error(&ConnectionError::Channel(error)))?;
            &buffers.sealed
        };
        send_all(&self.socket, bytes).map_err(|error| match error {
            Errno::AGAIN => endpoint.stall_failure(worker, operation),
            error => endpoint.io_failure(error),
        })?;
        let began_ns = now_ns();
        let (mut received_bytes, mut pieces) = (0, 0_u64);
        loop {
            if pieces > 0 && now_ns().saturating_sub(began_ns) > endpoint.stall_ns {
                // The socket's timeout only limits silence; this limits an answer that never ends.
                return Err(endpoint.stall_failure(worker, operation));
            }
            pieces += 1;
            let count = match net::recv(&self.socket, &mut buffers.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    let during = format!("during {operation}");
                    return Err(failure::connection_closed(
                        &endpoint.service.login.target,
                        &during,
                    ));
                }
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(endpoint.stall_failure(worker, operation)),
                Err(error) => return Err(endpoint.io_failure(error)),
            };
            let decoded = self.decode(buffers, count, &mut received_bytes);
            if let Some(outcome) = decoded.map_err(|error| endpoint.translate_error(&error))? {
                return match endpoint.server_failure(operation, &outcome, &self.replies) {
                    Some(failed) => Err(failed),
                    None => Ok((outcome, received_bytes)),
                };
            }
        }
    }

    /// Decode the first `count` bytes of the buffer; returns the outcome once the answer is complete.
    fn decode(
        &mut self,
        buffers: &mut Buffers,
        count: usize,
        received_bytes: &mut u64,
    ) -> Result<Option<Outcome>, ConnectionError> {
        let (replies, handling) = (&mut self.replies, &mut buffers.row_handling);
        let bytes = &buffers.buffer[..count];
        if self.channel.is_plain() {
            *received_bytes += count as u64;
            return replies.decode(bytes, &[], handling);
        }
        let (mut outcome, mut reply) = (None, Vec::new());
        self.channel
            .open_in_pieces(bytes, &mut buffers.plain, &mut reply, |packets| {
                *received_bytes += packets.len() as u64;
                let ended = outcome.is_some() && !packets.is_empty();
                if ended && !replies.allows_unsolicited() {
                    let error = Malformed::Unexpected("bytes follow the end of an answer");
                    return Err(ConnectionError::Malformed(error));
                }
                outcome = replies.decode(packets, &[], handling)?.or(outcome.take());
                Ok(())
            })?;
        if outcome.is_none() {
            self.channel.check_not_ended()?;
        }
        send_all(&self.socket, &reply).map_err(|error| ConnectionError::Io(error.into()))?;
        Ok(outcome)
    }

    /// The socket, for reading its state; [`ServiceConnection::close`] ends the connection even if this handle is still held.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Send the protocol's goodbye, if it has one (key-value stores have none), and close. Errors are ignored: the server may be
    /// gone.
    pub(crate) fn close(mut self) {
        let bytes = self.replies.sealed_goodbye(&mut self.channel);
        let _ = send_some(&self.socket, &bytes);
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
