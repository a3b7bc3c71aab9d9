//! The client: one thread, as the application has it, that makes round trips one after the other.

use std::collections::{BTreeSet, HashMap};
use std::io;

use howfar_contract::jobs::Target;
use howfar_contract::{FailCode, Failed};

use super::jobs::{ReplayJob, ReplayPage, ReplayStep, Replayed};
use super::stream::{ClientSide, Duplex, socket};
use super::{BUFFER, HEADER, LATENESS, Queued, now_ns, wait_until};
use crate::address;
use crate::tell;

/// Replay all pages; an event for each.
pub(crate) fn replay(job: &ReplayJob) -> Result<(), Failed> {
    job.check()?;
    let mut client = Client {
        target: &job.target,
        tls: job.tls.as_ref().map(ClientSide::new).transpose()?,
        open: HashMap::new(),
        output: Vec::new(),
        input: vec![0; BUFFER],
        queued: Queued::new(),
    };
    for connection in opened_before(&job.pages) {
        client.connect(connection)?;
    }
    for page in &job.pages {
        tell(&client.page(page)?)?;
    }
    Ok(())
}

/// Connections that a step uses before any step has opened them.
fn opened_before(pages: &[ReplayPage]) -> BTreeSet<u32> {
    let (mut before, mut opened) = (BTreeSet::new(), BTreeSet::new());
    for step in pages.iter().flat_map(|page| &page.steps) {
        if step.opens {
            opened.insert(step.connection);
        } else if !opened.contains(&step.connection) {
            before.insert(step.connection);
        }
    }
    before
}

struct Client<'a> {
    target: &'a Target,
    tls: Option<ClientSide>,
    open: HashMap<u32, Box<dyn Duplex>>,
    output: Vec<u8>,
    input: Vec<u8>,
    queued: Queued,
}

impl Client<'_> {
    /// Nanoseconds that it took.
    fn connect(&mut self, number: u32) -> Result<u64, Failed> {
        self.open.remove(&number);
        let began = now_ns();
        let descriptor = address::connect(self.target)?;
        let plain = socket(descriptor, matches!(self.target, Target::Tcp { .. }));
        let stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(plain),
            Some(tls) => tls.begin(plain).map_err(|error| self.lost(&error))?,
        };
        let took = now_ns() - began;
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
        let (mut last, mut overshot) = (began, 0);
        for step in &page.steps {
            let mut due = last + step.gap_ns;
            if step.opens {
                wait_until(due);
                done.opened_ns.push(self.connect(step.connection)?);
                due = now_ns();
            }
            self.prepare(step);
            let sent = wait_until(due);
            let late = self.round_trip(step).map_err(|error| self.lost(&error))?;
            last = now_ns();
            overshot += sent - due;
            done.server_late_ns += late;
            done.round_trips_ns.push(last - sent);
        }
        done.took_ns = wait_until(last + page.rest_ns) - began;
        // What it waited for a processor while it should have sent is in both.
        done.client_late_ns = self.queued.since().max(overshot);
        Ok(done)
    }

    fn prepare(&mut self, step: &ReplayStep) {
        let length = (step.bytes_to_server as usize).max(HEADER);
        self.output.clear();
        self.output
            .extend_from_slice(&(length as u32).to_be_bytes());
        self.output
            .extend_from_slice(&step.bytes_to_client.to_be_bytes());
        self.output.extend_from_slice(&step.server_ns.to_be_bytes());
        self.output.resize(length, 0);
    }

    /// How late the server was.
    fn round_trip(&mut self, step: &ReplayStep) -> io::Result<u64> {
        let stream = self
            .open
            .get_mut(&step.connection)
            .ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(&self.output)?;
        stream.flush()?;
        let length = (step.bytes_to_client as usize).max(LATENESS);
        let (mut had, mut late) = (0, [0; LATENESS]);
        while had < length {
            let room = BUFFER.min(length - had);
            let count = stream.read(&mut self.input[..room])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // A few bytes at a time is possible: they are put where they belong.
            for (at, byte) in (had..LATENESS).zip(&self.input[..count]) {
                late[at] = *byte;
            }
            had += count;
        }
        Ok(u64::from_be_bytes(late))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn step(connection: u32, opens: bool) -> ReplayStep {
        ReplayStep {
            connection,
            opens,
            gap_ns: 0,
            server_ns: 0,
            bytes_to_server: 0,
            bytes_to_client: 0,
        }
    }

    #[test]
    fn connections_that_no_page_opens_are_open_before() {
        let page = |steps| ReplayPage { steps, rest_ns: 0 };
        let pages = [
            page(vec![step(1, true), step(1, false), step(2, false)]),
            page(vec![step(2, true), step(3, false)]),
        ];
        assert_eq!(opened_before(&pages), BTreeSet::from([2, 3]));
    }
}
