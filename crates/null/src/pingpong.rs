//! Measures the minimum latency of any client: one connection repeats one request, with a blocking send and a blocking receive.
//!
//! Without epoll, decoding and a choice of rows, it costs as much as a client written for this one exchange. An answer is complete
//! when it has the length of the first one. Only the clock is read in between, as in any client that reports latencies.

use std::os::fd::OwnedFd;

use howfar_contract::{FailCode, Failed, Latency};
use howfar_wire::mysql::command::{self, Execute};
use howfar_wire::mysql::handshake::{Account, Greeting};
use howfar_wire::mysql::reply::{self, Prepared};
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::mysql::{Answer, Framer, Malformed, auth};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use crate::address;
use crate::clock::{now_ns, thread_cpu_ns};
use crate::jobs::{PingPong, PingPongJob};

const SQL: &[u8] = b"SELECT c FROM sbtest1 WHERE id=?";
const BUFFER_BYTES: usize = 64 * 1024;
const MAX_PACKET_BYTES: usize = 1 << 16;
/// Number of readings from which the clock's step and the cost of a reading are derived.
const READINGS: u32 = 100_000;

/// Encode an execution of the prepared point select for row 1.
fn encode_execute(statement: u32, is_first: bool) -> Vec<u8> {
    let mut packet = Vec::new();
    let mut execute = Execute::begin(&mut packet, statement, is_first, 1);
    execute.integer(1);
    execute.end();
    packet
}

/// Log in, prepare, and make round trips for the time that the job gives.
pub(crate) fn measure(job: &PingPongJob) -> Result<PingPong, Failed> {
    let (clock_step_ns, clock_read_ns) = measure_clock();
    let socket = address::connect(&job.target)?;
    let mut client = Client {
        socket,
        buffer: vec![0; BUFFER_BYTES],
        target_name: address::target_name(&job.target),
    };
    let caches_metadata = client.log_in()?;
    let statement = client.prepare()?;
    let first = encode_execute(statement, true);
    client.measure_answer(&first, caches_metadata)?;
    let request = encode_execute(statement, false);
    let length = client.measure_answer(&request, caches_metadata)?;

    let mut latency = Latency::new();
    let mut last = now_ns();
    let warmup_end = last + job.warmup_ns;
    let mut window_start = None;
    loop {
        client.send(&request)?;
        client.receive_exactly(length)?;
        let now = now_ns();
        if let Some((start_ns, start_cpu_ns)) = window_start {
            latency.record(now - last);
            if now - start_ns >= job.measure_ns {
                return Ok(PingPong {
                    rounds: latency.count(),
                    elapsed_ns: now - start_ns,
                    cpu_ns: thread_cpu_ns() - start_cpu_ns,
                    request_bytes: request.len() as u32,
                    reply_bytes: length as u32,
                    clock_step_ns,
                    clock_read_ns,
                    histogram: latency.to_event("round"),
                });
            }
        } else if now >= warmup_end {
            window_start = Some((now, thread_cpu_ns()));
        }
        last = now;
    }
}

/// The smallest observed step of the monotonic clock, and the cost of a reading, in nanoseconds.
fn measure_clock() -> (u64, f64) {
    let begin = now_ns();
    let (mut last, mut step) = (begin, u64::MAX);
    for _ in 0..READINGS {
        let now = now_ns();
        if now > last {
            step = step.min(now - last);
        }
        last = now;
    }
    let step = if step == u64::MAX { 0 } else { step };
    (step, (last - begin) as f64 / f64::from(READINGS))
}

/// The connection to the null server.
struct Client {
    socket: OwnedFd,
    buffer: Vec<u8>,
    target_name: String,
}

impl Client {
    #[inline]
    fn send(&self, bytes: &[u8]) -> Result<(), Failed> {
        match net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(self.server_error(FailCode::ServerGone, "took only a part of a request")),
            Err(error) => Err(self.connection_error(error)),
        }
    }

    /// Receive the next part of an answer; returns its length.
    #[inline]
    fn receive(&mut self) -> Result<usize, Failed> {
        match net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) => Err(self.server_error(FailCode::ServerGone, "closed the connection")),
            Ok((count, _)) => Ok(count),
            Err(error) => Err(self.connection_error(error)),
        }
    }

    #[inline]
    fn receive_exactly(&mut self, length: usize) -> Result<(), Failed> {
        let mut received = 0;
        while received < length {
            received += self.receive()?;
        }
        if received == length {
            Ok(())
        } else {
            Err(self.server_error(FailCode::Protocol, "sent more than an answer"))
        }
    }

    /// Log in. Returns whether the server leaves out definitions that the client caches.
    fn log_in(&mut self) -> Result<bool, Failed> {
        let account = Account {
            user: "howfar",
            password: "",
            database: "sbtest",
        };
        let mut framer = Framer::new(MAX_PACKET_BYTES);
        let greeting = self.receive_packet(&mut framer)?;
        let greeting = Greeting::parse(&greeting).map_err(|error| self.protocol_error(error))?;
        let session = greeting.session();
        let mut out = Vec::new();
        let sequence = framer.sequence();
        let next = session.login(&mut out, sequence, &account, auth::NATIVE, &[]);
        framer.expect(next);
        self.send(&out)?;
        let answer = self.receive_packet(&mut framer)?;
        if answer.first() == Some(&reply::OK) {
            Ok(session.caches_metadata())
        } else {
            Err(self.server_error(
                FailCode::Auth,
                "does not let everybody in: it is no null server",
            ))
        }
    }

    fn prepare(&mut self) -> Result<u32, Failed> {
        let mut out = Vec::new();
        command::prepare(&mut out, SQL);
        self.send(&out)?;
        let mut framer = Framer::new(MAX_PACKET_BYTES);
        framer.expect(1);
        let mut packets = self.receive_packets(&mut framer, 1)?;
        let head =
            Prepared::parse(&packets.remove(0)).map_err(|error| self.protocol_error(error))?;
        // A list of definitions ends with one more packet.
        let packet_count =
            |definitions: u16| usize::from(definitions) + usize::from(definitions > 0);
        let missing = packet_count(head.parameters) + packet_count(head.columns);
        if packets.len() < missing {
            self.receive_packets(&mut framer, missing - packets.len())?;
        }
        Ok(head.statement)
    }

    /// Receive one packet that comes alone.
    fn receive_packet(&mut self, framer: &mut Framer) -> Result<Vec<u8>, Failed> {
        Ok(self.receive_packets(framer, 1)?.swap_remove(0))
    }

    /// Receive packets until there are at least `min_count`.
    fn receive_packets(
        &mut self,
        framer: &mut Framer,
        min_count: usize,
    ) -> Result<Vec<Vec<u8>>, Failed> {
        let mut packets = Vec::new();
        while packets.len() < min_count {
            let count = self.receive()?;
            let mut input = &self.buffer[..count];
            while let Some(payload) = framer
                .next(&mut input)
                .map_err(|error| self.protocol_error(error))?
            {
                packets.push(payload.to_vec());
            }
        }
        Ok(packets)
    }

    /// Send the request once and decode the answer; returns its length.
    fn measure_answer(&mut self, request: &[u8], caches_metadata: bool) -> Result<usize, Failed> {
        let mut answer = Answer::new(caches_metadata);
        answer.begin(true);
        self.send(request)?;
        let mut length = 0;
        loop {
            let count = self.receive()?;
            length += count;
            let ended = answer.feed(&self.buffer[..count], &[], &mut RowHandling::Skip);
            if ended.map_err(|error| self.protocol_error(error))?.is_some() {
                return Ok(length);
            }
        }
    }

    #[cold]
    fn connection_error(&self, error: Errno) -> Failed {
        let code = if error == Errno::AGAIN {
            FailCode::Stalled
        } else {
            FailCode::ServerGone
        };
        self.server_error(code, &format!("does not answer: {error}"))
    }

    #[cold]
    fn protocol_error(&self, error: Malformed) -> Failed {
        let problem = format!("does not follow the protocol: {error}");
        self.server_error(FailCode::Protocol, &problem)
    }

    #[cold]
    fn server_error(&self, code: FailCode, problem: &str) -> Failed {
        Failed::new(
            code,
            format!("the server at {} {problem}", self.target_name),
            "The ping-pong is for `howfar-engine null`, one that runs and is not paused.",
        )
    }
}
