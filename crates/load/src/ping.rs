//! Times connections and small requests to one server, one at a time, as commands on stdin request.
//!
//! Blocking calls on one connection send a request and receive its answer: nothing else is between the two clock readings.

mod commands;
mod reply;

use std::os::fd::OwnedFd;
use std::time::Duration;

use howfar_contract::events::{Asked, Fetched, NotOpened, Opened};
use howfar_contract::jobs::{
    KeyValue, PingCommand, PingJob, PingProtocol, PingRequest, Protocol, SqlProtocol, Target,
    Workload,
};
use howfar_contract::{FailCode, Failed, emit_or_fail, internal};
use howfar_wire::recognise::FirstBytes;
use howfar_wire::{mysql, postgres, redis};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, RecvFlags, SendFlags, Shutdown, sockopt};

use crate::channel::{self, Channel, ChannelOptions};
use crate::clock::{now_ns, sleep_until};
use crate::connecting::{TimedOpening, open_timed};
use crate::failure::{self, ExpectedProtocol};
use crate::job_over::{JobOver, interrupted_failure};
use crate::receipt::{login_method, plain_version, requested_address, socket_address};
use crate::session::{Facts, LoginParameters, Replies, Session};
use crate::socket::Address;
use crate::sockopt::peer_pid;
use crate::tables::unprepared_program;
use crate::tcp_info;
use crate::workload::Program;
use commands::Commands;
use reply::Reply;

/// Size of the receive buffer in bytes.
const BUFFER_BYTES: usize = 64 * 1024;
/// Maximum bytes of a small answer, or of one whose rows are kept.
const MAX_SMALL_BYTES: u64 = 1 << 20;
/// Maximum bytes of a fetched answer whose rows are not kept.
const MAX_BULK_BYTES: u64 = 1 << 25;
/// Time limit of a complete large answer, as a multiple of that of a small one. The limit of a wait without a byte is the same for both.
const BULK_FACTOR: u64 = 12;
/// Time without a byte after which a wait checks whether the job is over.
const WAIT_SLICE_NS: u64 = 50_000_000;
/// Time limit for a server to answer a pending request after a goodbye.
const GOODBYE_TIMEOUT_NS: u64 = 500_000_000;

/// Run the commands of a job until it is over.
pub(crate) fn run(job: &PingJob) -> Result<(), Failed> {
    job.check()?;
    let address = Address::parse(&job.login.target)?;
    let channel_options = ChannelOptions::new(&job.session, &job.login.target)?;
    let program = program_for(job.protocol)?;
    let parameters = LoginParameters::from_login(&job.login, &channel_options, &program);
    let mut connection: Option<Connection<'_>> = None;
    let commands = Commands::begin()?;
    while let Some(command) = commands.next()? {
        match command {
            PingCommand::Open {} => {
                // Close the old connection first.
                drop(connection.take());
                match open_timed(
                    &parameters,
                    &address,
                    job.step_timeout_ns,
                    &commands.job_over,
                ) {
                    Ok(opening) => {
                        report_opened(&opening, &parameters, &address)?;
                        connection = Some(Connection::new(
                            opening.socket,
                            opening.session,
                            &job.login.target,
                            parameters.expected_protocol(),
                            job.step_timeout_ns,
                            commands.job_over.clone(),
                        )?);
                    }
                    Err(not_opened) => emit_or_fail::<NotOpened>(&not_opened)?,
                }
            }
            PingCommand::Ask {
                requests,
                rounds,
                within_ns,
                at_ns,
            } => emit_or_fail(
                &require_open(&mut connection)?.ask(&requests, rounds, within_ns, at_ns),
            )?,
            PingCommand::Fetch { request, rows } => {
                emit_or_fail(&require_open(&mut connection)?.fetch(&request, rows))?;
            }
        }
    }
    Ok(())
}

fn require_open<'a, 'b>(
    connection: &'b mut Option<Connection<'a>>,
) -> Result<&'b mut Connection<'a>, Failed> {
    connection
        .as_mut()
        .ok_or_else(|| Failed::bad_job("a request came before a connection was open"))
}

/// A program without statements to prepare, for logins with this protocol.
fn program_for(protocol: PingProtocol) -> Result<Program, Failed> {
    let key_value_program = |protocol| {
        let workload = Workload::KeyValue(KeyValue::with_defaults(protocol));
        Program::new(&workload, 1, 1).map_err(internal)
    };
    match protocol {
        PingProtocol::Mysql => Ok(unprepared_program(SqlProtocol::Mysql)),
        PingProtocol::Postgresql => Ok(unprepared_program(SqlProtocol::Postgresql)),
        PingProtocol::Redis => key_value_program(Protocol::Resp2),
        PingProtocol::Memcached => key_value_program(Protocol::MemcachedText),
    }
}

/// Report an open connection.
fn report_opened(
    opening: &TimedOpening,
    parameters: &LoginParameters<'_>,
    address: &Address,
) -> Result<(), Failed> {
    let TimedOpening {
        socket, session, ..
    } = opening;
    let tls = session.tls.as_ref();
    let is_tcp = matches!(address, Address::Tcp(_));
    let (server_version, connection_id) = server_facts(session);
    emit_or_fail(&Opened {
        address_family: address.family(),
        local_address: socket_address(net::getsockname(socket).ok()),
        peer_address: requested_address(parameters.target),
        peer_pid: if is_tcp { None } else { peer_pid(socket) },
        server_version,
        connection_id,
        auth_method: login_method(parameters, session).to_owned(),
        tls_version: tls.map(|tls| tls.version.to_owned()),
        tls_cipher: tls.map(|tls| tls.cipher.to_owned()),
        tls_group: tls.and_then(|tls| tls.group.clone()),
        tls_resumed: tls.is_some_and(|tls| tls.resumed),
        handshake_rtt_ns: opening.handshake_rtt_ns,
        syn_retransmits: opening.syn_retransmits,
        path_mtu: tcp_info::read(socket).map(|info| info.path_mtu),
        steps: opening.steps.clone(),
    })
}

/// The server's version and its connection id, as it reported them during the login.
fn server_facts(session: &Session) -> (Option<String>, Option<u32>) {
    match &session.facts {
        Some(Facts::MySql(facts)) => (
            Some(plain_version(&facts.greeting.version).to_owned()),
            Some(facts.greeting.connection_id),
        ),
        Some(Facts::Postgres(facts)) => (Some(facts.version.clone()), facts.process),
        None => (None, None),
    }
}

/// An open connection, blocking. Dropping it sends the protocol's goodbye.
struct Connection<'a> {
    socket: OwnedFd,
    channel: Channel,
    replies: Replies,
    target: &'a Target,
    step_timeout_ns: u64,
    buffer: Vec<u8>,
    plain: Vec<u8>,
    /// Whether a request was sent whose answer is incomplete. If so when the next request begins, the connection is unusable.
    has_pending_request: bool,
    job_over: JobOver,
    /// First bytes received, to recognise another protocol; `None` after the first exchange.
    first_bytes: Option<(ExpectedProtocol, FirstBytes)>,
}

/// Times and size of one answer.
#[derive(Debug, Clone, Copy)]
struct Received {
    took_ns: u64,
    first_byte_ns: u64,
    bytes: u64,
}

impl<'a> Connection<'a> {
    fn new(
        socket: OwnedFd,
        session: Session,
        target: &'a Target,
        expected: ExpectedProtocol,
        step_timeout_ns: u64,
        job_over: JobOver,
    ) -> Result<Self, Failed> {
        let timeout = Some(Duration::from_nanos(step_timeout_ns.min(WAIT_SLICE_NS)));
        ioctl_fionbio(&socket, false)
            .and_then(|()| sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, timeout))
            .and_then(|()| sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, timeout))
            .map_err(|error| internal(format!("setting a socket's options: {error}")))?;
        Ok(Self {
            socket,
            channel: session.channel,
            replies: session.replies,
            target,
            step_timeout_ns,
            buffer: vec![0; BUFFER_BYTES],
            plain: Vec::new(),
            has_pending_request: false,
            job_over,
            first_bytes: Some((expected, FirstBytes::default())),
        })
    }

    fn encode(&self, request: &PingRequest) -> Vec<u8> {
        let mut out = Vec::new();
        let words = &request.words;
        match &self.replies {
            Replies::MySql(_) if words.is_empty() => mysql::command::ping(&mut out),
            Replies::Postgres(_) if words.is_empty() => postgres::request::sync(&mut out),
            Replies::Redis(_) if words.is_empty() => redis::request::command(&mut out, &[b"PING"]),
            Replies::Memcached(_) if words.is_empty() => out.extend_from_slice(b"version\r\n"),
            Replies::MySql(_) | Replies::Postgres(_) => {
                self.replies.query(&mut out, words.join(" ").as_bytes());
            }
            Replies::Redis(_) => {
                let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
                redis::request::command(&mut out, &words);
            }
            Replies::Memcached(_) => {
                out.extend_from_slice(words.join(" ").as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        out
    }

    fn ask(&mut self, requests: &[PingRequest], rounds: u32, within_ns: u64, at_ns: u64) -> Asked {
        let packets: Vec<Vec<u8>> = requests
            .iter()
            .map(|request| self.encode(request))
            .collect();
        let capacity = rounds.min(1 << 16) as usize;
        // Not `vec![…; n]`: clones of a vector have no capacity, and would grow between measured requests.
        let mut latencies_ns: Vec<Vec<u64>> = requests
            .iter()
            .map(|_| Vec::with_capacity(capacity))
            .collect();
        let mut refusals = vec![None; requests.len()];
        sleep_until(at_ns);
        let began_ns = now_ns();
        let mut lost = None;
        'rounds: for round in 0..rounds {
            if round > 0 && now_ns() - began_ns > within_ns {
                break;
            }
            for (index, packet) in packets.iter().enumerate() {
                let mut reply = Reply::for_replies(&self.replies, false);
                match self.exchange(packet, &mut reply, MAX_SMALL_BYTES) {
                    Ok(received) => latencies_ns[index].push(received.took_ns),
                    Err(failed) => {
                        lost = Some(failed);
                        break 'rounds;
                    }
                }
                if refusals[index].is_none() {
                    refusals[index] = reply.into_answer().refusal;
                }
            }
        }
        let info = tcp_info::read(&self.socket);
        Asked {
            began_ns,
            late_ns: if at_ns == 0 {
                0
            } else {
                began_ns.saturating_sub(at_ns)
            },
            latencies_ns,
            refusals,
            lost,
            min_rtt_ns: info.and_then(|info| info.min_rtt_ns),
            retransmits: info.map(|info| info.retransmits),
        }
    }

    fn fetch(&mut self, request: &PingRequest, rows: bool) -> Fetched {
        let packet = self.encode(request);
        let mut reply = Reply::for_replies(&self.replies, rows);
        let max_bytes = if rows {
            MAX_SMALL_BYTES
        } else {
            MAX_BULK_BYTES
        };
        let (received, lost) = match self.exchange(&packet, &mut reply, max_bytes) {
            Ok(received) => (Some(received), None),
            Err(failed) => (None, Some(failed)),
        };
        let answer = reply.into_answer();
        Fetched {
            took_ns: received.map_or(0, |received| received.took_ns),
            first_byte_ns: received.map_or(0, |received| received.first_byte_ns),
            bytes: received.map_or(0, |received| received.bytes),
            rows: if rows { answer.rows } else { Vec::new() },
            refusal: answer.refusal,
            lost,
        }
    }

    /// Send a request and receive its complete answer. The first answer also shows which protocol the server speaks.
    fn exchange(
        &mut self,
        packet: &[u8],
        reply: &mut Reply,
        max_bytes: u64,
    ) -> Result<Received, Failed> {
        let outcome = self.exchange_bytes(packet, reply, max_bytes);
        let first_bytes = self.first_bytes.take();
        match first_bytes.and_then(|(expected, first_bytes)| {
            failure::other_protocol(self.target, expected, &first_bytes)
        }) {
            Some(failed) => {
                self.has_pending_request = true;
                Err(failed)
            }
            None => outcome,
        }
    }

    fn exchange_bytes(
        &mut self,
        packet: &[u8],
        reply: &mut Reply,
        max_bytes: u64,
    ) -> Result<Received, Failed> {
        if self.has_pending_request {
            return Err(failure::connection_closed(
                self.target,
                "before this request",
            ));
        }
        if self.job_over.is_set() {
            return Err(interrupted_failure());
        }
        self.has_pending_request = true;
        let began_ns = now_ns();
        self.send(packet)?;
        let mut received = Received {
            took_ns: 0,
            first_byte_ns: 0,
            bytes: 0,
        };
        loop {
            let count = self.receive()?;
            received.took_ns = now_ns() - began_ns;
            if received.bytes == 0 {
                received.first_byte_ns = received.took_ns;
            }
            received.bytes += count as u64;
            if self.decode(count, reply)? {
                self.has_pending_request = false;
                return Ok(received);
            }
            if received.bytes > max_bytes {
                return Err(self.oversize_failure(max_bytes));
            }
            let factor = if max_bytes > MAX_SMALL_BYTES {
                BULK_FACTOR
            } else {
                1
            };
            if received.took_ns > self.step_timeout_ns.saturating_mul(factor) {
                return Err(self.stall_failure());
            }
        }
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), Failed> {
        if self.channel.is_plain() {
            return self.send_sealed(packet);
        }
        let mut sealed = Vec::new();
        self.channel
            .seal(packet, &mut sealed)
            .map_err(|error| channel::translate_error(self.target, &error))?;
        self.send_sealed(&sealed)
    }

    fn send_sealed(&self, mut bytes: &[u8]) -> Result<(), Failed> {
        let mut slices = 0;
        while !bytes.is_empty() {
            match net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => (bytes, slices) = (&bytes[sent..], 0),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.count_idle_slice(&mut slices)?,
                Err(error) => return Err(failure::connection_broken(self.target, &error.into())),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<usize, Failed> {
        let mut slices = 0;
        loop {
            match net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    return Err(failure::connection_closed(self.target, "during a request"));
                }
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.count_idle_slice(&mut slices)?,
                Err(error) => return Err(failure::connection_broken(self.target, &error.into())),
            }
        }
    }

    /// Count a slice of waiting without progress; fails if the limit is reached or the job is over.
    fn count_idle_slice(&self, slices: &mut u64) -> Result<(), Failed> {
        *slices += 1;
        if *slices >= self.step_timeout_ns.div_ceil(WAIT_SLICE_NS) {
            return Err(self.stall_failure());
        }
        if self.job_over.is_set() {
            return Err(interrupted_failure());
        }
        Ok(())
    }

    /// Decode the first `count` bytes of the buffer; true if the answer is complete.
    fn decode(&mut self, count: usize, reply: &mut Reply) -> Result<bool, Failed> {
        let raw = &self.buffer[..count];
        if let Some((_, first_bytes)) = &mut self.first_bytes {
            first_bytes.keep(raw);
        }
        let mut ready = false;
        let mut channel_answer = Vec::new();
        let target = self.target;
        if self.channel.is_plain() {
            ready = reply
                .feed(raw)
                .map_err(|error| error.translate(target, reply.protocol()))?;
        } else {
            self.plain.clear();
            self.channel
                .open(raw, &mut self.plain, &mut channel_answer)
                .map_err(|error| channel::translate_error(target, &error))?;
            if !self.plain.is_empty() {
                ready = reply
                    .feed(&self.plain)
                    .map_err(|error| error.translate(target, reply.protocol()))?;
            }
            if !ready {
                self.channel
                    .check_not_ended()
                    .map_err(|error| channel::translate_error(target, &error))?;
            }
            // Send TLS's own answer, if any.
            self.send_sealed(&channel_answer)?;
        }
        Ok(ready)
    }

    fn stall_failure(&self) -> Failed {
        Failed::new(
            FailCode::Stalled,
            format!(
                "{} did not answer a request within {:.1} s",
                failure::target_name(self.target),
                self.step_timeout_ns as f64 / 1e9
            ),
            "Check the server and the path for a hang, or allow a longer wait (--timeout).",
        )
    }

    fn oversize_failure(&self, max_bytes: u64) -> Failed {
        Failed::new(
            FailCode::Protocol,
            format!(
                "{} answered a small request with more than {max_bytes} bytes",
                failure::target_name(self.target)
            ),
            "Check that the address is that of a database server.",
        )
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let goodbye = self.replies.sealed_goodbye(&mut self.channel);
        // The work is done, so errors are ignored: the server may be gone.
        let _ = self.send_sealed(&goodbye);
        if self.has_pending_request {
            self.finish_pending();
        }
    }
}

impl Connection<'_> {
    /// Let the server answer the pending request and read the goodbye after it: closing with bytes unread would send a reset, which
    /// the server would see before the goodbye.
    fn finish_pending(&mut self) {
        let until_ns = now_ns() + GOODBYE_TIMEOUT_NS;
        let _ = net::shutdown(&self.socket, Shutdown::Write);
        while now_ns() < until_ns {
            match net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((1.., _)) | Err(Errno::INTR | Errno::AGAIN) => {}
                Ok((0, _)) | Err(_) => return,
            }
        }
    }
}
