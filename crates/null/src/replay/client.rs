//! The client: one thread, like the application's, that makes round trips one after the other.

use std::collections::HashMap;
use std::io;

use howfar_contract::jobs::{Target, opened_before};
use howfar_contract::{FailCode, Failed, tell};

use super::jobs::{ReplayJob, ReplayPage, Replayed};
use super::speech::{ANSWER_HEAD_BYTES, AnswerSpec, Speech};
use super::stream::{ClientSide, Duplex, boxed_socket};
use super::{BUFFER_BYTES, CpuWait, now_ns, wait_until};
use crate::address;

/// Replay all pages and write an event for each.
pub(crate) fn replay(job: &ReplayJob) -> Result<(), Failed> {
    job.check()?;
    let mut client = Client {
        target: &job.target,
        speech: job.speech,
        tls: job.tls.as_ref().map(ClientSide::new).transpose()?,
        open: HashMap::new(),
        output: Vec::new(),
        input: vec![0; BUFFER_BYTES],
        cpu_wait: CpuWait::new(),
    };
    let steps = job.pages.iter().flat_map(|page| &page.steps);
    for connection in opened_before(steps.map(|step| (step.connection, step.opens))) {
        client.connect(connection)?;
    }
    for page in &job.pages {
        tell(&client.replay_page(page)?)?;
    }
    Ok(())
}

struct Client<'a> {
    target: &'a Target,
    speech: Speech,
    tls: Option<ClientSide>,
    open: HashMap<u32, Box<dyn Duplex>>,
    output: Vec<u8>,
    input: Vec<u8>,
    cpu_wait: CpuWait,
}

impl Client<'_> {
    /// Open a connection; returns the nanoseconds that this took, not counting our login: the recording contains the round trips of
    /// its own login.
    fn connect(&mut self, number: u32) -> Result<u64, Failed> {
        self.open.remove(&number);
        let start_ns = now_ns();
        let descriptor = address::connect(self.target)?;
        let plain = boxed_socket(descriptor, matches!(self.target, Target::Tcp { .. }));
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(plain),
            Some(tls) => tls
                .begin(plain)
                .map_err(|error| self.connection_lost(&error))?,
        };
        let took = now_ns() - start_ns;
        self.speech
            .log_in(&mut *stream)
            .map_err(|error| self.connection_lost(&error))?;
        self.open.insert(number, stream);
        Ok(took)
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
                let opened = self.connect(step.connection)?;
                replayed.opened_ns.push(opened);
                due = now_ns();
                logins_ns += due - connecting - opened;
            }
            let answer_spec = step.answer_spec();
            self.output.clear();
            self.speech.write_request(
                &mut self.output,
                &answer_spec,
                step.bytes_to_server as usize,
            );
            let sent = wait_until(due);
            let late = self
                .round_trip(step.connection, &answer_spec)
                .map_err(|error| self.connection_lost(&error))?;
            last = now_ns();
            late_sends_ns += sent - due;
            replayed.server_late_ns += late;
            replayed.round_trips_ns.push(last - sent);
        }
        replayed.took_ns = wait_until(last + page.rest_ns) - start_ns - logins_ns;
        // A wait for a processor while a request was due is in both figures, hence the maximum.
        replayed.client_late_ns = self.cpu_wait.since_last_call().max(late_sends_ns);
        Ok(replayed)
    }

    /// Make one round trip; returns how late the server was, in nanoseconds.
    fn round_trip(&mut self, connection: u32, answer_spec: &AnswerSpec) -> io::Result<u64> {
        let stream = self
            .open
            .get_mut(&connection)
            .ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(&self.output)?;
        stream.flush()?;
        let length = self.speech.answer_length(answer_spec);
        let (mut received, mut first) = (0, [0; ANSWER_HEAD_BYTES]);
        while received < length {
            let wanted = BUFFER_BYTES.min(length - received);
            let count = stream.read(&mut self.input[..wanted])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The answer may come a few bytes at a time: each goes to its position.
            for (at, byte) in (received..ANSWER_HEAD_BYTES).zip(&self.input[..count]) {
                first[at] = *byte;
            }
            received += count;
        }
        self.speech.read_lateness(answer_spec, &first)
    }

    fn connection_lost(&self, error: &io::Error) -> Failed {
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
