//! A page made by a real application, requested over FastCGI as a web server does.
//!
//! A page ends with the last byte of its end record, at which a web server would close the connection. Cleanup by the application
//! after that delays the next page, as it does behind a web server. Not here: the codec (`howfar_wire::fastcgi`), and whether a page is
//! valid ([`verdict`]).

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
const CONNECT_INDEX: usize = 0;
/// Index of the times spent waiting for room in the application's queue of new connections. Their number shows how often it was full.
const QUEUE_INDEX: usize = 1;
/// Size of the receive buffer: most answers come in one piece.
const BUFFER_BYTES: usize = 64 * 1024;

/// The application's address and its request, shared by all workers.
#[derive(Debug)]
struct ApplicationEndpoint {
    fastcgi: FastCgi,
    address: SocketAddrUnix,
    /// The request, which is the same for each page.
    request: Vec<u8>,
    connect_timeout_ns: u64,
    stall_timeout_ns: u64,
}

/// One worker's connection to the application.
struct FastCgiWorker {
    endpoint: Arc<ApplicationEndpoint>,
    worker: u64,
    /// The persistent connection, if connections are kept.
    persistent: Option<OwnedFd>,
    reply: Reply,
    buffer: Vec<u8>,
}

/// The outcome of a request.
#[derive(Debug)]
enum RequestOutcome {
    /// The answer ended at this time, and with it the page.
    Ended(u64),
    /// The application closed a kept connection before it answered a byte.
    Closed,
}

/// Prepare a job before its first page: connect, and make the receipt and a page for each worker.
pub(super) fn setup(job: &PageJob, fastcgi: &FastCgi, cpus: &[u32]) -> Result<PageSetup, Failed> {
    let endpoint = Arc::new(ApplicationEndpoint::new(job, fastcgi)?);
    let first = endpoint.connect(&mut PageRecord::default())?;
    let receipt = endpoint.make_receipt(&first, job.workers, cpus);
    // If connections are not kept, this one is closed without a request, which applications tolerate.
    let mut persistent = fastcgi.keep_connection.then_some(first);
    let page_for_worker = |worker| -> Box<dyn Page> {
        Box::new(FastCgiWorker {
            endpoint: Arc::clone(&endpoint),
            worker,
            persistent: persistent.take(),
            reply: Reply::new(fastcgi.ends_with.len()),
            buffer: vec![0; BUFFER_BYTES],
        })
    };
    Ok(PageSetup {
        receipt,
        services: BTreeMap::new(),
        kinds: KINDS.to_vec(),
        pages: (0..u64::from(job.workers)).map(page_for_worker).collect(),
    })
}

impl ApplicationEndpoint {
    fn new(job: &PageJob, fastcgi: &FastCgi) -> Result<Self, Failed> {
        let Address::Unix(address) = Address::parse(&fastcgi.target)? else {
            return Err(internal("an application's address is no path"));
        };
        let mut request = Vec::new();
        let parameters = fastcgi.parameters.iter();
        fastcgi::write_request(
            &mut request,
            parameters.map(|(name, value)| (name.as_bytes(), value.as_bytes())),
            fastcgi.keep_connection,
        );
        Ok(Self {
            fastcgi: fastcgi.clone(),
            address,
            request,
            connect_timeout_ns: job.connect_timeout_ns,
            stall_timeout_ns: job.stall_timeout_ns,
        })
    }

    /// Connect; if the application's queue is full, wait for room in it.
    fn connect(&self, record: &mut PageRecord) -> Result<OwnedFd, Failed> {
        let began_ns = now_ns();
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            net::socket_with(family, kind, flags, None).map_err(|error| self.io_failure(error))?;
        // A non-blocking connect of a Unix socket succeeds or fails at once.
        let connected = net::connect(&socket, &self.address);
        rustix::io::ioctl_fionbio(&socket, false).map_err(|error| self.io_failure(error))?;
        match connected {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                self.wait_for_queue_room(&socket)?;
                record.add_latency(QUEUE_INDEX, now_ns().saturating_sub(began_ns));
            }
            Err(error) => return Err(self.connect_failure(error)),
        }
        self.set_timeout(&socket, Timeout::Recv, self.stall_timeout_ns)?;
        self.set_timeout(&socket, Timeout::Send, self.stall_timeout_ns)?;
        record.add_latency(CONNECT_INDEX, now_ns().saturating_sub(began_ns));
        Ok(socket)
    }

    /// Wait for room in the application's queue. The kernel wakes waiting threads in order when there is room: no polling is needed.
    fn wait_for_queue_room(&self, socket: &OwnedFd) -> Result<(), Failed> {
        self.set_timeout(socket, Timeout::Send, self.connect_timeout_ns)?;
        loop {
            match net::connect(socket, &self.address) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return Err(verdict::queue_full(
                        &self.fastcgi.target,
                        self.connect_timeout_ns,
                    ));
                }
                Err(error) => return Err(self.connect_failure(error)),
            }
        }
    }

    fn connect_failure(&self, error: Errno) -> Failed {
        let error = error.into();
        verdict::advise_not_listening(
            failure::connect_failed(&self.fastcgi.target, &error),
            &error,
        )
    }

    fn set_timeout(&self, socket: &OwnedFd, direction: Timeout, ns: u64) -> Result<(), Failed> {
        sockopt::set_socket_timeout(socket, direction, Some(Duration::from_nanos(ns)))
            .map_err(|error| self.io_failure(error))
    }

    fn make_receipt(&self, socket: &OwnedFd, threads: u32, cpus: &[u32]) -> Receipt {
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
            connect_round_trips: 0,
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

    fn io_failure(&self, error: Errno) -> Failed {
        failure::connection_broken(&self.fastcgi.target, &error.into())
    }
}

impl FastCgiWorker {
    /// Send the request and receive the reply to its end. `is_new`: nothing was sent over this connection before.
    ///
    /// PHP-FPM closes kept connections after `pm.max_requests` pages, and reads a request already in flight without answering. Therefore
    /// a close before the first byte is treated as a close between requests, as web servers do. The cause may also be a child that
    /// crashed while making the page; either counts as a reopened connection.
    fn request_page(
        &mut self,
        socket: &OwnedFd,
        is_new: bool,
        record: &mut PageRecord,
    ) -> Result<RequestOutcome, Failed> {
        self.reply.begin();
        match send_all(socket, &self.endpoint.request) {
            Err(Errno::PIPE) if !is_new => return Ok(RequestOutcome::Closed),
            // The connection is closed, but the application may have sent the reason.
            Ok(()) | Err(Errno::PIPE) => {}
            Err(Errno::AGAIN) => return Err(self.stall_failure()),
            Err(error) => return Err(self.endpoint.io_failure(error)),
        }
        let began_ns = now_ns();
        let mut received = 0;
        loop {
            if received > 0 && now_ns().saturating_sub(began_ns) > self.endpoint.stall_timeout_ns {
                // The socket's timeout only limits silence; this limits a page that never ends.
                return Err(self.stall_failure());
            }
            let count = match net::recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) if !is_new && received == 0 => {
                    return Ok(RequestOutcome::Closed);
                }
                Ok((0, _)) | Err(Errno::CONNRESET) => {
                    return Err(verdict::closed_early(
                        &self.endpoint.fastcgi.target,
                        &self.reply,
                    ));
                }
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(self.stall_failure()),
                Err(error) => return Err(self.endpoint.io_failure(error)),
            };
            received += count;
            record.counters.to_client += count as u64;
            let is_complete = self.reply.feed(&self.buffer[..count]);
            if is_complete.map_err(|error| self.malformed_failure(error))? {
                let ended_ns = now_ns();
                record.counters.to_server += self.endpoint.request.len() as u64;
                return Ok(RequestOutcome::Ended(ended_ns));
            }
        }
    }

    fn stall_failure(&self) -> Failed {
        let endpoint = &self.endpoint;
        let failed = failure::stalled(
            &endpoint.fastcgi.target,
            self.worker,
            "page",
            endpoint.stall_timeout_ns,
        );
        verdict::advise_timeout(failed, endpoint.fastcgi.keep_connection)
    }

    fn malformed_failure(&self, error: Malformed) -> Failed {
        verdict::malformed(&self.endpoint.fastcgi.target, error, &self.reply)
    }
}

impl Page for FastCgiWorker {
    fn open(&mut self) -> Result<(), Failed> {
        if self.endpoint.fastcgi.keep_connection && self.persistent.is_none() {
            self.persistent = Some(self.endpoint.connect(&mut PageRecord::default())?);
        }
        Ok(())
    }

    fn run_page(&mut self, record: &mut PageRecord) -> Result<u64, Failed> {
        record.counters.queries = 1;
        record.counters.round_trips = 1;
        let mut persistent = self.persistent.take();
        loop {
            let is_new = persistent.is_none();
            let socket = match persistent.take() {
                Some(socket) => socket,
                None => self.endpoint.connect(record)?,
            };
            let ended_ns = match self.request_page(&socket, is_new, record)? {
                // Open a new connection and request the page again.
                RequestOutcome::Closed => {
                    record.reopened += 1;
                    continue;
                }
                RequestOutcome::Ended(ended_ns) => ended_ns,
            };
            if self.endpoint.fastcgi.keep_connection {
                self.persistent = Some(socket);
            }
            let reported = verdict::check_page(&self.endpoint.fastcgi, &self.reply)?;
            record.reported.extend(reported.iter().cloned());
            return Ok(ended_ns);
        }
    }

    fn close(&mut self) {
        self.persistent = None;
    }
}

#[cfg(test)]
#[path = "fastcgi_tests.rs"]
mod tests;
