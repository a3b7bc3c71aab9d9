//! The client: one thread, like the application's, that makes round trips one after the other.

use std::collections::HashMap;
use std::io;

use howfar_contract::jobs::{Target, opened_before};
use howfar_contract::{FailCode, Failed, tell};

use super::jobs::{ReplayJob, ReplayPage, Replayed};
use super::speech::{HEAD, Speech, Wish};
use super::stream::{ClientSide, Duplex, socket};
use super::{BUFFER, Queued, now_ns, wait_until};
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
        input: vec![0; BUFFER],
        queued: Queued::new(),
    };
    let steps = job.pages.iter().flat_map(|page| &page.steps);
    for connection in opened_before(steps.map(|step| (step.connection, step.opens))) {
        client.connect(connection)?;
    }
    for page in &job.pages {
        tell(&client.page(page)?)?;
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
    queued: Queued,
}

impl Client<'_> {
    /// Open a connection; returns the nanoseconds that this took, not counting our login: the recording contains the round trips of
    /// its own login.
    fn connect(&mut self, number: u32) -> Result<u64, Failed> {
        self.open.remove(&number);
        let began = now_ns();
        let descriptor = address::connect(self.target)?;
        let plain = socket(descriptor, matches!(self.target, Target::Tcp { .. }));
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(plain),
            Some(tls) => tls.begin(plain).map_err(|error| self.lost(&error))?,
        };
        let took = now_ns() - began;
        self.speech
            .greet(&mut *stream)
            .map_err(|error| self.lost(&error))?;
        self.open.insert(number, stream);
        Ok(took)
    }

    fn page(&mut self, page: &ReplayPage) -> Result<Replayed, Failed> {
        self.queued.since();
        let began = now_ns();
        let mut done = Replayed {
            took_ns: 0,
            opened_ns: Vec::new(),
            round_trips_ns: Vec::with_capacity(page.steps.len()),
            client_late_ns: 0,
            server_late_ns: 0,
        };
        let (mut last, mut overshot, mut greeted) = (began, 0, 0);
        for step in &page.steps {
            let mut due = last + step.gap_ns;
            if step.opens {
                wait_until(due);
                let connecting = now_ns();
                let opened = self.connect(step.connection)?;
                done.opened_ns.push(opened);
                due = now_ns();
                greeted += due - connecting - opened;
            }
            let wish = step.wish();
            self.output.clear();
            self.speech
                .request(&mut self.output, &wish, step.bytes_to_server as usize);
            let sent = wait_until(due);
            let late = self
                .round_trip(step.connection, &wish)
                .map_err(|error| self.lost(&error))?;
            last = now_ns();
            overshot += sent - due;
            done.server_late_ns += late;
            done.round_trips_ns.push(last - sent);
        }
        done.took_ns = wait_until(last + page.rest_ns) - began - greeted;
        // A wait for a processor while a request was due is in both figures, hence the maximum.
        done.client_late_ns = self.queued.since().max(overshot);
        Ok(done)
    }

    /// Make one round trip; returns how late the server was, in nanoseconds.
    fn round_trip(&mut self, connection: u32, wish: &Wish) -> io::Result<u64> {
        let stream = self
            .open
            .get_mut(&connection)
            .ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(&self.output)?;
        stream.flush()?;
        let length = self.speech.answer_length(wish);
        let (mut had, mut first) = (0, [0; HEAD]);
        while had < length {
            let room = BUFFER.min(length - had);
            let count = stream.read(&mut self.input[..room])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The answer may come a few bytes at a time: each goes to its position.
            for (at, byte) in (had..HEAD).zip(&self.input[..count]) {
                first[at] = *byte;
            }
            had += count;
        }
        self.speech.late_ns(wish, &first)
    }

    fn lost(&self, error: &io::Error) -> Failed {
        Failed::new(
            FailCode::Connect,
            format!(
                "the replay lost its connection to {}: {error}",
                address::name(self.target)
            ),
            "Look whether the null server and what is in between still run.",
        )
    }
}
