//! One connection while it opens: from `connect` to its last prepared statement, without blocking.

use std::os::fd::OwnedFd;

use howfar_contract::Failed;
use howfar_contract::events::{NotOpened, Step, StepName};
use howfar_contract::jobs::Target;
use howfar_wire::mysql::Malformed;
use howfar_wire::recognise::FirstBytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, RecvFlags};
use rustix::time::Timespec;

use crate::channel::TlsFacts;
use crate::clock::now_ns;
use crate::failure::{self, TimeLimit};
use crate::job_over::{JobOver, interrupted_failure};
use crate::protocol;
use crate::session::{Handshake, LoginParameters, Phase, Session};
use crate::socket::{Address, ConnectStart, connect_result, send_some};
use crate::tcp_info;

const BUFFER_BYTES: usize = 16 * 1024;
/// Maximum receives in a row before the caller checks the clock: a login needs a few.
const MAX_RECEIVES: u32 = 32;
/// Pause between two attempts while the server's queue is full.
const QUEUE_FULL_RETRY_NS: i64 = 2_000_000;
const POLL_NS: i64 = 50_000_000;

/// A connection that is not ready yet.
pub(crate) struct Connecting {
    pub(crate) socket: OwnedFd,
    pub(crate) began_ns: u64,
    handshake: Box<dyn Handshake>,
    steps: Steps,
    /// The session, once logged in; the connection is ready when `unsent` is empty too.
    session: Option<Session>,
    is_connected: bool,
    unsent: Vec<u8>,
    first_bytes: FirstBytes,
    /// The socket may hold more bytes than were read, for which no event will come.
    pub(crate) may_have_more: bool,
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Connecting")
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

impl Connecting {
    /// Begin to connect; `None` if the server's queue of new connections is full.
    pub(crate) fn begin(
        parameters: &LoginParameters<'_>,
        address: &Address,
        began_ns: u64,
    ) -> Result<Option<Self>, Failed> {
        let started = address
            .connect()
            .map_err(|error| failure::connect_failed(parameters.target, &error))?;
        let (socket, is_connected) = match started {
            ConnectStart::Connected(socket) => (socket, true),
            ConnectStart::Pending(socket) => (socket, false),
            ConnectStart::Busy => return Ok(None),
        };
        let mut unsent = Vec::new();
        let mut handshake = protocol::login(parameters, &mut unsent)?;
        // A client that has nothing to send is ready as soon as its socket is.
        let session = handshake.feed(&[], parameters, &mut unsent)?;
        let mut connecting = Self {
            socket,
            began_ns,
            handshake,
            steps: Steps::new(began_ns),
            session,
            is_connected,
            unsent,
            first_bytes: FirstBytes::default(),
            may_have_more: false,
        };
        if is_connected {
            connecting.steps.enter(connecting.phase());
        }
        Ok(Some(connecting))
    }

    fn phase(&self) -> Phase {
        if self.is_connected {
            self.handshake.phase()
        } else {
            Phase::Connect
        }
    }

    /// Find out whether the transport is connected or failed.
    fn finish_connect(&mut self, target: &Target) -> Result<(), Failed> {
        if !self.is_connected {
            connect_result(&self.socket)
                .map_err(|error| failure::connect_failed(target, &error))?;
            self.is_connected = true;
            self.steps.enter(self.phase());
        }
        Ok(())
    }

    /// Advance the opening as far as the socket allows without blocking.
    pub(crate) fn progress(
        &mut self,
        parameters: &LoginParameters<'_>,
        buffer: &mut [u8],
    ) -> Result<Option<Session>, Failed> {
        let target = parameters.target;
        self.finish_connect(target)?;
        self.may_have_more = false;
        for _ in 0..MAX_RECEIVES {
            let sent = send_some(&self.socket, &self.unsent)
                .map_err(|error| failure::connection_broken(target, &error))?;
            self.unsent.drain(..sent);
            if self.unsent.is_empty() && self.session.is_some() {
                return Ok(self.session.take());
            }
            match retry_on_intr(|| net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT)) {
                Ok((0, _)) => {
                    let closed = failure::connection_closed(target, &self.phase().before());
                    return Err(self.refine_failure(parameters, closed));
                }
                Ok((count, _)) if self.session.is_none() => {
                    let (raw, out) = (&buffer[..count], &mut self.unsent);
                    self.first_bytes.keep(raw);
                    self.session = match self.handshake.feed(raw, parameters, out) {
                        Ok(session) => session,
                        Err(failed) => return Err(self.refine_failure(parameters, failed)),
                    };
                    self.steps.enter(self.phase());
                }
                Ok(_) => {
                    let error = Malformed::Unexpected("bytes came although nothing was asked");
                    return Err(failure::malformed_mysql(target, error));
                }
                // NOTCONN: the kernel may report it on the first attempt, before the connect is complete.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(None),
                Err(error) => return Err(failure::connection_broken(target, &error.into())),
            }
        }
        self.may_have_more = true;
        Ok(None)
    }

    /// The failure of a connection that took too long.
    pub(crate) fn timeout_failure(
        &self,
        parameters: &LoginParameters<'_>,
        limit: TimeLimit,
    ) -> Failed {
        let failed = failure::timed_out(parameters.target, &self.phase().to_do(), limit);
        self.refine_failure(parameters, failed)
    }

    /// `failed`, or a more precise failure if the first bytes show another protocol.
    fn refine_failure(&self, parameters: &LoginParameters<'_>, failed: Failed) -> Failed {
        failure::other_protocol(
            parameters.target,
            parameters.expected_protocol(),
            &self.first_bytes,
        )
        .unwrap_or(failed)
    }
}

/// How long the steps of an opening took.
#[derive(Debug)]
struct Steps {
    /// The present step, and when it began.
    current: StepName,
    since_ns: u64,
    ended: Vec<(StepName, u64)>,
}

impl Steps {
    fn new(began_ns: u64) -> Self {
        Self {
            current: StepName::Connect,
            since_ns: began_ns,
            ended: Vec::new(),
        }
    }

    /// Enter a phase. The clock is read only if the phase ends a step.
    fn enter(&mut self, phase: Phase) {
        if phase.step() != self.current {
            self.end_step(phase.step());
        }
    }

    fn end_step(&mut self, next: StepName) {
        let now = now_ns();
        self.ended.push((self.current, now - self.since_ns));
        (self.current, self.since_ns) = (next, now);
    }

    /// List the steps that ended, with the round trips of each. The login has the session's round trips that belong to no other step; a
    /// connect over a Unix socket has none.
    fn list_ended(&self, session: Option<&Session>, is_unix: bool) -> Vec<Step> {
        let tls_round_trips = session
            .and_then(|session| session.tls.as_ref())
            .map_or(1, TlsFacts::round_trips);
        let count_ended = |step| u32::from(self.ended.iter().any(|(name, _)| *name == step));
        let before_login = count_ended(StepName::Greeting)
            + count_ended(StepName::TlsRequest)
            + tls_round_trips * count_ended(StepName::Tls);
        let login_round_trips = session.map_or(1, |session| {
            session.round_trips.saturating_sub(before_login)
        });
        let step = |&(name, took_ns): &(StepName, u64)| Step {
            name,
            took_ns,
            round_trips: match name {
                StepName::Connect => u32::from(!is_unix),
                StepName::Greeting | StepName::TlsRequest => 1,
                StepName::Tls => tls_round_trips,
                StepName::Login => login_round_trips,
            },
        };
        self.ended.iter().map(step).collect()
    }
}

/// A connection that was opened step by step.
pub(crate) struct TimedOpening {
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    pub(crate) steps: Vec<Step>,
    /// The kernel's measure of TCP's handshake alone; `None` for a Unix socket.
    pub(crate) handshake_rtt_ns: Option<u64>,
    pub(crate) syn_retransmits: Option<u32>,
}

/// Open one connection and time its steps, each of which may take `step_limit_ns`. The end of the job interrupts only the wait for
/// the transport, not a login: servers count abandoned logins.
pub(crate) fn open_timed(
    parameters: &LoginParameters<'_>,
    address: &Address,
    step_limit_ns: u64,
    job_over: &JobOver,
) -> Result<TimedOpening, NotOpened> {
    let is_unix = matches!(address, Address::Unix(_));
    let began_ns = now_ns();
    let mut connecting = begin_within(parameters, address, TimeLimit::for_step(step_limit_ns))
        .map_err(|failure| {
            let waited_ns = now_ns() - began_ns;
            NotOpened {
                steps: Vec::new(),
                step: StepName::Connect,
                waited_ns,
                timed_out: waited_ns > step_limit_ns,
                syn_retransmits: None,
                failure,
            }
        })?;
    let mut tcp_info_at_connect = None;
    let outcome = loop {
        if !connecting.is_connected && job_over.is_set() {
            break Err((interrupted_failure(), false));
        }
        match handle_next_event(&mut connecting, parameters, step_limit_ns) {
            Ok(None) => {}
            Ok(Some(session)) => break Ok(session),
            Err(error) => break Err(error),
        }
        // Read before any data is sent and acknowledged, so that it measures SYN and SYN-ACK alone.
        if connecting.is_connected && tcp_info_at_connect.is_none() {
            tcp_info_at_connect = tcp_info::read(&connecting.socket);
        }
    };
    let syn_retransmits = |info: tcp_info::TcpInfo| info.retransmits as u32;
    match outcome {
        Ok(session) => {
            connecting.steps.end_step(StepName::Login);
            let mut steps = connecting.steps.list_ended(Some(&session), is_unix);
            // A session without a login is ready when the step before it ends.
            steps.retain(|step| step.name != StepName::Login || step.round_trips > 0);
            Ok(TimedOpening {
                socket: connecting.socket,
                session,
                steps,
                handshake_rtt_ns: tcp_info_at_connect.and_then(|info| info.min_rtt_ns),
                syn_retransmits: tcp_info_at_connect.map(syn_retransmits),
            })
        }
        Err((failure, timed_out)) => Err(NotOpened {
            steps: connecting.steps.list_ended(None, is_unix),
            step: connecting.steps.current,
            waited_ns: now_ns() - connecting.steps.since_ns,
            timed_out,
            syn_retransmits: tcp_info::read(&connecting.socket).map(syn_retransmits),
            failure,
        }),
    }
}

/// Wait for one event and handle it. The boolean of an error tells whether the time limit was exceeded.
fn handle_next_event(
    connecting: &mut Connecting,
    parameters: &LoginParameters<'_>,
    limit_ns: u64,
) -> Result<Option<Session>, (Failed, bool)> {
    let mut interest = PollFlags::IN;
    if !connecting.is_connected {
        interest = PollFlags::OUT;
    } else if !connecting.unsent.is_empty() {
        interest |= PollFlags::OUT;
    }
    // Check the limit on every call: the wait below never times out if the peer sends a byte now and then.
    if now_ns() > connecting.steps.since_ns + limit_ns {
        let limit = TimeLimit::for_step(limit_ns);
        return Err((connecting.timeout_failure(parameters, limit), true));
    }
    let is_ready =
        connecting.is_connected && connecting.session.is_some() && connecting.unsent.is_empty();
    if !is_ready && !wait_until_ready(&mut [PollFd::new(&connecting.socket, interest)], POLL_NS) {
        return Ok(None);
    }
    if !connecting.is_connected {
        // Return first: the caller reads `TCP_INFO` before the first byte is sent.
        let finished = connecting.finish_connect(parameters.target);
        return finished.map(|()| None).map_err(|failed| (failed, false));
    }
    let mut buffer = [0; BUFFER_BYTES];
    connecting
        .progress(parameters, &mut buffer)
        .map_err(|failed| (failed, false))
}

/// Begin to connect; try again while the server's queue of new connections is full.
fn begin_within(
    parameters: &LoginParameters<'_>,
    address: &Address,
    limit: TimeLimit,
) -> Result<Connecting, Failed> {
    let began_ns = now_ns();
    loop {
        if let Some(connecting) = Connecting::begin(parameters, address, began_ns)? {
            return Ok(connecting);
        }
        if now_ns() > began_ns + limit.ns {
            let to_do = Phase::Connect.to_do();
            return Err(failure::timed_out(parameters.target, &to_do, limit));
        }
        wait_until_ready(&mut [], QUEUE_FULL_RETRY_NS);
    }
}

/// Open one connection and wait for it.
pub(crate) fn open_blocking(
    parameters: &LoginParameters<'_>,
    address: &Address,
    limit_ns: u64,
) -> Result<(OwnedFd, Session), Failed> {
    let limit = TimeLimit::for_opening(limit_ns);
    let deadline = now_ns() + limit_ns;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut connecting = begin_within(parameters, address, limit)?;
    loop {
        let mut interest = PollFlags::IN;
        if !connecting.is_connected || !connecting.unsent.is_empty() {
            interest |= PollFlags::OUT;
        }
        // A session that has nothing to send may be ready as soon as its socket is.
        if !connecting.is_connected || connecting.session.is_none() {
            wait_until_ready(&mut [PollFd::new(&connecting.socket, interest)], POLL_NS);
        }
        if let Some(session) = connecting.progress(parameters, &mut buffer)? {
            return Ok((connecting.socket, session));
        }
        if now_ns() > deadline {
            return Err(connecting.timeout_failure(parameters, limit));
        }
    }
}

/// Wait until a socket is ready or `timeout_ns` has passed; true if one is ready.
fn wait_until_ready(sockets: &mut [PollFd<'_>], timeout_ns: i64) -> bool {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: timeout_ns,
    };
    poll(sockets, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
