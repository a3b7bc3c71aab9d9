//! A page made by a real application, requested over FastCGI as a web server does.
//!
//! A page ends with the last byte of its end record, when a web server closes too: cleanup by the application after that delays the
//! next page, as it does behind a web server. Not here: the codec (`howfar_wire::fastcgi`), whether a page is valid ([`verdict`]).

mod verdict;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use howfar_contract::events::Receipt;
use howfar_contract::jobs::{FastCgi, PageJob};
use howfar_contract::{Failed, internal};
use howfar_wire::fastcgi::{self, Malformed, Reply};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::service::send_all;
use super::{Page, PageRecord, PageSetup};
use crate::clock::now_ns;
use crate::failure;
use crate::receipt::requested_address;
use crate::socket::Address;
use crate::sockopt::peer_pid;

/// Names of times measured besides the latency of pages; the constants below are indices into it.
const KINDS: [&str; 2] = ["connect.application", "queue.application"];
const CONNECT: usize = 0;
/// A wait for room in the application's queue of new connections: the cost of a full queue, and by its count how often it was full.
const QUEUE: usize = 1;
/// Size of the receive buffer: most answers come in one piece.
const BUFFER: usize = 64 * 1024;

/// The application as all workers see it.
#[derive(Debug)]
struct ApplicationEndpoint {
    fastcgi: FastCgi,
    address: SocketAddrUnix,
    /// The request, which is the same for each page.
    request: Vec<u8>,
    connect_ns: u64,
    stall_ns: u64,
}

/// One worker's connection to the application.
struct Visitor {
    site: Arc<ApplicationEndpoint>,
    worker: u64,
    /// The persistent connection, if connections are kept.
    kept: Option<OwnedFd>,
    reply: Reply,
    buffer: Vec<u8>,
}

/// The outcome of a request.
#[derive(Debug)]
enum Heard {
    /// The answer, and with it the page, ended at this time.
    End(u64),
    /// The application closed a kept connection before it answered a byte.
    Closed,
}

/// Everything before the first page: the receipt, and a visitor for each worker.
pub(super) fn setup(job: &PageJob, fastcgi: &FastCgi, cpus: &[u32]) -> Result<PageSetup, Failed> {
    let site = Arc::new(ApplicationEndpoint::new(job, fastcgi)?);
    let first = site.connect(&mut PageRecord::default())?;
    let receipt = site.receipt(&first, job.workers, cpus);
    // If connections are not kept, this one is closed without a request, which applications tolerate.
    let mut kept = fastcgi.keep_connection.then_some(first);
    let visitor = |worker| -> Box<dyn Page> {
        Box::new(Visitor {
            site: Arc::clone(&site),
            worker,
            kept: kept.take(),
            reply: Reply::new(fastcgi.ends_with.len()),
            buffer: vec![0; BUFFER],
        })
    };
    Ok(PageSetup {
        receipt,
        services: BTreeMap::new(),
        kinds: KINDS.to_vec(),
        pages: (0..u64::from(job.workers)).map(visitor).collect(),
    })
}

impl ApplicationEndpoint {
    fn new(job: &PageJob, fastcgi: &FastCgi) -> Result<Self, Failed> {
        let Address::Unix(address) = Address::parse(&fastcgi.target)? else {
            return Err(internal("an application's address is no path"));
        };
        let mut request = Vec::new();
        let parameters = fastcgi.parameters.iter();
        fastcgi::request(
            &mut request,
            parameters.map(|(name, value)| (name.as_bytes(), value.as_bytes())),
            fastcgi.keep_connection,
        );
        Ok(Self {
            fastcgi: fastcgi.clone(),
            address,
            request,
            connect_ns: job.connect_timeout_ns,
            stall_ns: job.stall_timeout_ns,
        })
    }

    /// Connect; if the application's queue is full, wait for room in it.
    fn connect(&self, record: &mut PageRecord) -> Result<OwnedFd, Failed> {
        let began_ns = now_ns();
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, kind, flags, None).map_err(|error| self.io(error))?;
        // A non-blocking connect of a Unix socket succeeds or fails at once.
        let answer = net::connect(&socket, &self.address);
        rustix::io::ioctl_fionbio(&socket, false).map_err(|error| self.io(error))?;
        match answer {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                self.queue(&socket)?;
                record.latency(QUEUE, now_ns().saturating_sub(began_ns));
            }
            Err(error) => return Err(self.refused(error)),
        }
        self.patience(&socket, Timeout::Recv, self.stall_ns)?;
        self.patience(&socket, Timeout::Send, self.stall_ns)?;
        record.latency(CONNECT, now_ns().saturating_sub(began_ns));
        Ok(socket)
    }

    /// Wait for room in the application's queue. The kernel wakes waiting threads in order when there is room: no polling is needed.
    fn queue(&self, socket: &OwnedFd) -> Result<(), Failed> {
        self.patience(socket, Timeout::Send, self.connect_ns)?;
        loop {
            match net::connect(socket, &self.address) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return Err(verdict::full(&self.fastcgi.target, self.connect_ns));
                }
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    fn refused(&self, error: Errno) -> Failed {
        let error = error.into();
        verdict::not_there(failure::refused(&self.fastcgi.target, &error), &error)
    }

    fn patience(&self, socket: &OwnedFd, way: Timeout, ns: u64) -> Result<(), Failed> {
        sockopt::set_socket_timeout(socket, way, Some(Duration::from_nanos(ns)))
            .map_err(|error| self.io(error))
    }

    fn receipt(&self, socket: &OwnedFd, threads: u32, cpus: &[u32]) -> Receipt {
        Receipt {
            address_family: "unix",
            local_address: None,
            peer_address: requested_address(&self.fastcgi.target),
            server_address: None,
            peer_pid: peer_pid(socket),
            server_version: String::new(),
            server_connection_id: None,
            auth_plugin: "none".to_owned(),
            protocol_mode: "fastcgi",
            tls_version: None,
            tls_cipher: None,
            tls_client_version: None,
            tls_client_cipher: None,
            tls_group: None,
            tls_retried: None,
            tls_resumed: None,
            connect_turns: 0,
            compression: None,
            compression_level: None,
            tcp_mss: None,
            tcp_nodelay: None,
            congestion_control: None,
            driver: "threads",
            client_threads: threads,
            client_cpus: cpus.to_vec(),
        }
    }

    fn io(&self, error: Errno) -> Failed {
        failure::broken(&self.fastcgi.target, &error.into())
    }
}

impl Visitor {
    /// Send the request and receive the reply to its end. `fresh`: nothing was sent over this connection before.
    ///
    /// PHP-FPM closes kept connections after `pm.max_requests` pages, and reads a request already in flight without answering. So, as
    /// web servers do, a close before the first byte is treated as a close between requests. The cause may also be a child that died
    /// over the page: each case is counted.
    fn ask(
        &mut self,
        socket: &OwnedFd,
        fresh: bool,
        record: &mut PageRecord,
    ) -> Result<Heard, Failed> {
        self.reply.begin();
        match send_all(socket, &self.site.request) {
            Err(Errno::PIPE) if !fresh => return Ok(Heard::Closed),
            // The connection is closed, but the application may have sent the reason.
            Ok(()) | Err(Errno::PIPE) => {}
            Err(Errno::AGAIN) => return Err(self.stalled()),
            Err(error) => return Err(self.site.io(error)),
        }
        let began_ns = now_ns();
        let mut came = 0;
        loop {
            if came > 0 && now_ns().saturating_sub(began_ns) > self.site.stall_ns {
                // The socket's timeout only limits silence; this limits a page that never ends.
                return Err(self.stalled());
            }
            let count = match net::recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) if !fresh && came == 0 => {
                    return Ok(Heard::Closed);
                }
                Ok((0, _)) | Err(Errno::CONNRESET) => {
                    return Err(verdict::gone(&self.site.fastcgi.target, &self.reply));
                }
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(self.stalled()),
                Err(error) => return Err(self.site.io(error)),
            };
            came += count;
            record.used.to_client += count as u64;
            let ended = self.reply.feed(&self.buffer[..count]);
            if ended.map_err(|error| self.malformed(error))? {
                let ended_ns = now_ns();
                record.used.to_server += self.site.request.len() as u64;
                return Ok(Heard::End(ended_ns));
            }
        }
    }

    fn stalled(&self) -> Failed {
        let site = &self.site;
        let failed = failure::stalled(&site.fastcgi.target, self.worker, "page", site.stall_ns);
        verdict::silent(failed, site.fastcgi.keep_connection)
    }

    fn malformed(&self, error: Malformed) -> Failed {
        verdict::malformed(&self.site.fastcgi.target, error, &self.reply)
    }
}

impl Page for Visitor {
    fn open(&mut self) -> Result<(), Failed> {
        if self.site.fastcgi.keep_connection && self.kept.is_none() {
            self.kept = Some(self.site.connect(&mut PageRecord::default())?);
        }
        Ok(())
    }

    fn run_one(&mut self, record: &mut PageRecord) -> Result<u64, Failed> {
        record.used.queries = 1;
        record.used.turns = 1;
        let mut kept = self.kept.take();
        loop {
            let fresh = kept.is_none();
            let socket = match kept.take() {
                Some(socket) => socket,
                None => self.site.connect(record)?,
            };
            let ended_ns = match self.ask(&socket, fresh, record)? {
                // The next connection is fresh.
                Heard::Closed => {
                    record.reopened += 1;
                    continue;
                }
                Heard::End(ended_ns) => ended_ns,
            };
            if self.site.fastcgi.keep_connection {
                self.kept = Some(socket);
            }
            let reported = verdict::judge(&self.site.fastcgi, &self.reply)?;
            record.reported.extend(reported.iter().cloned());
            return Ok(ended_ns);
        }
    }

    fn leave(&mut self) {
        self.kept = None;
    }
}

#[cfg(test)]
#[path = "visitor_tests.rs"]
mod tests;
