//! The client: one thread, like the application's, that makes round trips one after the other.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;

use howfar_contract::jobs::{Target, find_preopened_connections};
use howfar_contract::{FailCode, Failed, emit_or_fail};

use super::jobs::{ReplayJob, ReplayPage, Replayed};
use super::speech::{ANSWER_HEAD_BYTES, AnswerSpec, Speech};
use super::stream::{Duplex, TlsConnector};
use super::{BUFFER_BYTES, CpuWait, now_ns, wait_until};
use crate::address;

/// Replay all pages and write an event for each.
pub(crate) fn replay(job: &ReplayJob) -> Result<(), Failed> {
    job.check()?;
    let mut client = Client {
        target: &job.target,
        speech: job.speech,
        tls: job.tls.as_ref().map(TlsConnector::new).transpose()?,
        open: HashMap::new(),
        output: Vec::new(),
        input: vec![0; BUFFER_BYTES],
        cpu_wait: CpuWait::new(),
    };
    let steps = job.pages.iter().flat_map(|page| &page.steps);
    for connection in find_preopened_connections(steps.map(|step| (step.connection, step.opens))) {
        client.connect(connection)?;
    }
    for page in &job.pages {
        emit_or_fail(&client.replay_page(page)?)?;
    }
    Ok(())
}

struct Client<'a> {
    target: &'a Target,
    speech: Speech,
    tls: Option<TlsConnector>,
    open: HashMap<u32, Box<dyn Duplex>>,
    output: Vec<u8>,
    input: Vec<u8>,
    cpu_wait: CpuWait,
}

impl Client<'_> {
    /// Open a connection; returns the nanoseconds that this took without the login, because the recording contains the round trips of
    /// its own login.
    fn connect(&mut self, number: u32) -> Result<u64, Failed> {
        self.open.remove(&number);
        let start_ns = now_ns();
        let descriptor = address::connect(self.target)?;
        let plain = UnixStream::from(descriptor);
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(plain),
            Some(tls) => tls
                .begin(plain)
                .map_err(|error| self.connection_error(&error))?,
        };
        let took_ns = now_ns() - start_ns;
        self.speech
            .log_in(&mut *stream)
            .map_err(|error| self.connection_error(&error))?;
        self.open.insert(number, stream);
        Ok(took_ns)
    }

    fn replay_page(&mut self, page: &ReplayPage) -> Result<Replayed, Failed> {
        self.cpu_wait.since_last_call();
        let start_ns = now_ns();
        let mut replayed = Replayed {
            took_ns: 0,
            opened_ns: Vec::new(),
            round_trips_ns: Vec::with_capacity(page.steps.len()),
            client_late_ns: 0,
            server_late_ns: 0,
        };
        let (mut last, mut late_sends_ns, mut logins_ns) = (start_ns, 0, 0);
        for step in &page.steps {
            let mut due = last + step.gap_ns;
            if step.opens {
                wait_until(due);
                let connecting = now_ns();
                let opened_ns = self.connect(step.connection)?;
                replayed.opened_ns.push(opened_ns);
                due = now_ns();
                logins_ns += due - connecting - opened_ns;
            }
            let answer_spec = step.answer_spec();
            self.output.clear();
            self.speech.write_request(
                &mut self.output,
                &answer_spec,
                step.bytes_to_server as usize,
            );
            let sent = wait_until(due);
            let late_ns = self
                .make_round_trip(step.connection, &answer_spec)
                .map_err(|error| self.connection_error(&error))?;
            last = now_ns();
            late_sends_ns += sent - due;
            replayed.server_late_ns += late_ns;
            replayed.round_trips_ns.push(last - sent);
        }
        replayed.took_ns = wait_until(last + page.rest_ns) - start_ns - logins_ns;
        // Both figures include a wait for a CPU while a request was due, hence the maximum.
        replayed.client_late_ns = self.cpu_wait.since_last_call().max(late_sends_ns);
        Ok(replayed)
    }

    /// Make one round trip; returns how late the server was, in nanoseconds.
    fn make_round_trip(&mut self, connection: u32, answer_spec: &AnswerSpec) -> io::Result<u64> {
        let stream = self
            .open
            .get_mut(&connection)
            .ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(&self.output)?;
        stream.flush()?;
        let length = self.speech.answer_length(answer_spec);
        let (mut received, mut head) = (0, [0; ANSWER_HEAD_BYTES]);
        while received < length {
            let max_count = BUFFER_BYTES.min(length - received);
            let count = stream.read(&mut self.input[..max_count])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The answer may come a few bytes at a time: each goes to its position.
            for (offset, byte) in (received..ANSWER_HEAD_BYTES).zip(&self.input[..count]) {
                head[offset] = *byte;
            }
            received += count;
        }
        self.speech.read_lateness(answer_spec, &head)
    }

    fn connection_error(&self, error: &io::Error) -> Failed {
        Failed::new(
            FailCode::Connect,
            format!(
                "the replay lost its connection to {}: {error}",
                address::target_name(self.target)
            ),
            "Look whether the null server and what is in between still run.",
        )
    }
}
