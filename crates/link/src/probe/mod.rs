//! Probes of an idle link: echo (the far end), round trip time, goodput. They use plain TCP sockets, so that they see what an
//! application would see.
//!
//! A connection to the echo begins with a [`handshake`] of 17 bytes: what the connection is for, and for a transfer the warm-up and
//! the measured window. Goodput is always counted by the receiving end.

mod echo;
mod goodput;
mod handshake;
mod rtt;
mod tcp;
mod window;

use std::io::BufRead;
use std::process::ExitCode;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::job::check_version;
use howfar_contract::{Failed, report};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Towards")]
pub(crate) enum TransferDirection {
    ToServer,
    ToClient,
}

/// A probe job; the fields mean what the Python side says.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "job", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Job {
    /// The far end of a probe: a TCP listener on `host`, port chosen by the kernel. Lives until stdin ends.
    #[schemars(title = "EchoJob")]
    Echo {
        #[schemars(extend("const" = 2))]
        version: u32,
        host: String,
    },
    /// Ping-pong of one byte over one TCP connection (NODELAY) to an echo; the link is otherwise idle.
    #[schemars(title = "RttJob")]
    Rtt {
        #[schemars(extend("const" = 2))]
        version: u32,
        host: String,
        port: u16,
        #[schemars(range(min = 1))]
        count: u32,
        #[serde(default = "default_timeout")]
        #[schemars(range(min = 1))]
        timeout_ns: u64,
    },
    /// Bulk transfer over one TCP connection; `to_client` makes the echo send.
    #[schemars(title = "GoodputJob")]
    Goodput {
        #[schemars(extend("const" = 2))]
        version: u32,
        host: String,
        port: u16,
        direction: TransferDirection,
        #[schemars(range(max = howfar_contract::LONGEST_NS))]
        warmup_ns: u64,
        #[schemars(range(min = 1, max = howfar_contract::LONGEST_NS))]
        measure_ns: u64,
    },
}

fn default_timeout() -> u64 {
    10_000_000_000
}

/// Read a probe job on stdin, run it, write events on stdout.
pub fn run() -> ExitCode {
    report(serve())
}

fn serve() -> Result<(), Failed> {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Failed::bad_job(format!("cannot read the job: {error}")))?;
    let job: Job = serde_json::from_str(&line)
        .map_err(|error| Failed::bad_job(format!("the probe job does not parse: {error}")))?;
    let (Job::Echo { version, .. } | Job::Rtt { version, .. } | Job::Goodput { version, .. }) =
        &job;
    check_version(*version).map_err(Failed::bad_job)?;
    match job {
        Job::Echo { host, .. } => echo::serve(&host),
        Job::Rtt {
            host,
            port,
            count,
            timeout_ns,
            ..
        } => {
            rtt::measure(tcp::parse_address(&host, port)?, count, timeout_ns)?.emit();
            Ok(())
        }
        Job::Goodput {
            host,
            port,
            direction,
            warmup_ns,
            measure_ns,
            ..
        } => {
            let handshake = handshake::Handshake {
                mode: match direction {
                    TransferDirection::ToServer => handshake::Mode::Sink,
                    TransferDirection::ToClient => handshake::Mode::Source,
                },
                warmup_ns,
                measure_ns,
            };
            goodput::measure(tcp::parse_address(&host, port)?, handshake)?.emit();
            Ok(())
        }
    }
}
