//! Tests with malicious servers of every protocol, in clear text and over TLS, with two connections under epoll and eight over a ring.
//! Answers are slow, endless, cut, inconsistent or followed by more bytes; other attacks are on TLS itself. Every case ends within the
//! job's limits, with a reason, little memory and little CPU time.
//!
//! Attacks that only MySQL's protocol allows are in `malice`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{RecvFlags, recv};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use serde_json::{Value, json};

use crate::drivers::make_ring_job;
use crate::fake::{FakeServer, greeting, packet};
use crate::malice::{
    check_failure, drip, expect_packet, impatient_job, result_header, rogue_server, send_forever,
    serve_login_until_query,
};
use crate::rogue_postgres;
use crate::visitor::{read_request, record};

/// A connection, in clear text or over TLS.
pub(crate) trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

/// An endless answer: its name, its first bytes, and the bytes that then repeat.
type EndlessAnswer = (&'static str, Vec<u8>, Vec<u8>);

/// How a server of one protocol serves a connection up to the first request, and the answers that it may give to that request.
struct Script {
    name: &'static str,
    /// Serves the exchange in clear text before TLS; `None` if these tests do not use TLS with the protocol.
    before_tls: Option<fn(&mut UnixStream) -> io::Result<()>>,
    /// Serves up to the first request, which it reads. The argument tells whether the connection is over TLS.
    serve_login: fn(&mut dyn Peer, bool) -> io::Result<()>,
    /// A valid answer.
    answer: fn() -> Vec<u8>,
    endless: fn() -> Vec<EndlessAnswer>,
    /// Names and bytes of inconsistent answers that the engine detects at once.
    inconsistent: fn() -> Vec<(&'static str, Vec<u8>)>,
    job: fn(&str) -> Value,
}

static SCRIPTS: [Script; 7] = [
    Script {
        name: "mysql",
        before_tls: Some(|stream| {
            stream.write_all(&greeting_with_tls())?;
            expect_packet(stream).map(drop)
        }),
        serve_login: |stream, is_encrypted| {
            if !is_encrypted {
                stream.write_all(&greeting())?;
            }
            serve_login_until_query(stream, 2 + u8::from(is_encrypted))
        },
        answer: || [result_header(), packet(4, b"\x01a"), packet(5, EOF)].concat(),
        endless: || {
            let rows = (0..=255_u8).flat_map(|number| packet(number.wrapping_add(4), b"\x01a"));
            vec![("rows", result_header(), rows.collect())]
        },
        inconsistent: || {
            vec![
                ("misnumbered", packet(9, b"\0\0\0\x02\0\0\0")),
                ("many-columns", packet(1, b"\xfd\0\0\x10")),
            ]
        },
        job: impatient_job,
    },
    Script {
        name: "postgres",
        before_tls: Some(|stream| {
            rogue_postgres::read_body(stream)?;
            stream.write_all(b"S")?;
            // Wait for the client's handshake, so that the next bytes are not sent together with this.
            recv(stream, &mut [0; 1][..], RecvFlags::PEEK)?;
            Ok(())
        }),
        serve_login: |stream, _| rogue_postgres::serve_until_sync(stream),
        answer: rogue_postgres::answer,
        endless: || {
            let row = rogue_postgres::message(b'D', b"\0\x01\0\0\0\x01a");
            let notice = rogue_postgres::message(b'N', b"\0");
            vec![
                ("rows", Vec::new(), row.repeat(5000)),
                ("row", b"D\x3b\x9a\xca\0".to_vec(), vec![0; 60_000]),
                ("notices", Vec::new(), notice.repeat(5000)),
            ]
        },
        inconsistent: || {
            let message = rogue_postgres::message;
            vec![
                ("length", b"D\x7f\xff\xff\xff".to_vec()),
                ("below-zero", b"D\xff\xff\xff\xff".to_vec()),
                ("below-four", b"Z\0\0\0\x03I".to_vec()),
                ("long-tag", b"C\0\x10\0\0".to_vec()),
                ("long-error", b"E\0\x10\0\0".to_vec()),
                ("error", message(b'E', b"SERROR")),
                ("kind", message(b'?', b"")),
                ("login", message(b'R', &[0; 4])),
                ("state", message(b'Z', b"X")),
            ]
        },
        job: rogue_postgres::impatient_postgres_job,
    },
    Script {
        name: "resp",
        before_tls: Some(|_| Ok(())),
        serve_login: |stream, _| serve_until_key_request(stream, &[REDIS_QUERY], b"GET"),
        answer: || b"$3\r\nabc\r\n".to_vec(),
        endless: || {
            vec![
                ("string", b"$1000000000\r\n".to_vec(), vec![b'x'; 60_000]),
                ("pushes", Vec::new(), b">1\r\n+x\r\n".repeat(5000)),
                ("attributes", Vec::new(), b"|1\r\n+x\r\n+y\r\n".repeat(5000)),
            ]
        },
        inconsistent: || {
            vec![
                ("length", b"$99999999999\r\n".to_vec()),
                ("below-zero", b"$-7\r\n".to_vec()),
                ("elements", b"*99999999999\r\n".to_vec()),
                ("short", b"$3\r\nabcdef\r\n".to_vec()),
                ("deep", b"*1\r\n".repeat(100)),
                ("line", vec![b'+'; 100_000]),
            ]
        },
        job: |path| store(path, "resp2"),
    },
    Script {
        name: "resp3",
        before_tls: Some(|_| Ok(())),
        serve_login: |stream, _| {
            let hello = (&b"HELLO\r\n$1\r\n3\r\n"[..], &b"%1\r\n+proto\r\n:3\r\n"[..]);
            serve_until_key_request(stream, &[hello, REDIS_QUERY], b"GET")
        },
        answer: || b"|1\r\n+ttl\r\n:9\r\n=7\r\ntxt:abc\r\n".to_vec(),
        endless: || {
            vec![
                ("string", b"=1000000000\r\n".to_vec(), vec![b'x'; 60_000]),
                ("error", b"!1000000000\r\n".to_vec(), vec![b'x'; 60_000]),
                (
                    "map",
                    b"%1000000000\r\n".to_vec(),
                    b"+x\r\n_\r\n".repeat(5000),
                ),
                ("empty", Vec::new(), b"|0\r\n".repeat(10_000)),
            ]
        },
        inconsistent: || {
            vec![
                ("length", b"!99999999999\r\n".to_vec()),
                ("below-zero", b"%-1\r\n".to_vec()),
                ("elements", b"~99999999999\r\n".to_vec()),
                ("streamed", b"$?\r\n".to_vec()),
                ("null", b"_x\r\n".to_vec()),
                ("boolean", b"#x\r\n".to_vec()),
                ("double", b",x\r\n".to_vec()),
                ("number", b"(x\r\n".to_vec()),
                ("kind", b"#t\r\n".to_vec()),
                ("inner-push", b"*1\r\n>1\r\n+x\r\n".to_vec()),
                ("deep", b"%1\r\n".repeat(100)),
            ]
        },
        job: |path| store(path, "resp3"),
    },
    Script {
        name: "memcached",
        before_tls: Some(|_| Ok(())),
        serve_login: |stream, _| {
            let version = (&b"version\r\n"[..], &b"VERSION 1.6.18\r\n"[..]);
            serve_until_key_request(stream, &[version], b"get ")
        },
        answer: || b"VALUE k 0 3\r\nabc\r\nEND\r\n".to_vec(),
        endless: || {
            let value = b"VALUE k 0 1\r\nx\r\n".repeat(4000);
            vec![
                (
                    "value",
                    b"VALUE k 0 1000000000\r\n".to_vec(),
                    vec![b'x'; 60_000],
                ),
                ("values", Vec::new(), value),
            ]
        },
        inconsistent: || {
            vec![
                ("length", b"VALUE k 0 99999999999\r\n".to_vec()),
                ("below-zero", b"VALUE k 0 -1\r\n".to_vec()),
                ("short", b"VALUE k 0 3\r\nabcdef\r\nEND\r\n".to_vec()),
                (
                    "more-values",
                    [&b"VALUE k 0 1\r\nx\r\n".repeat(2)[..], b"END\r\n"].concat(),
                ),
                ("line", vec![b'V'; 100_000]),
            ]
        },
        job: |path| store(path, "memcached_text"),
    },
    Script {
        name: "meta",
        before_tls: Some(|_| Ok(())),
        serve_login: |stream, _| {
            let version = (&b"version\r\nmn\r\n"[..], &b"VERSION 1.6.18\r\nMN\r\n"[..]);
            serve_until_key_request(stream, &[version], b"mg ")
        },
        answer: || b"VA 3 kk\r\nabc\r\nMN\r\n".to_vec(),
        endless: || {
            vec![
                ("value", b"VA 1000000000\r\n".to_vec(), vec![b'x'; 60_000]),
                ("values", Vec::new(), b"VA 1 kk\r\nx\r\n".repeat(5000)),
                ("errors", Vec::new(), b"SERVER_ERROR x\r\n".repeat(4000)),
                ("flags", b"VA 1".to_vec(), b" kk".repeat(20_000)),
            ]
        },
        inconsistent: || {
            vec![
                ("length", b"VA 99999999999\r\n".to_vec()),
                ("below-zero", b"VA -1\r\n".to_vec()),
                ("no-size", b"VA\r\n".to_vec()),
                ("short", b"VA 3 kk\r\nabcdef\r\nMN\r\n".to_vec()),
                ("miss", b"EN\r\n".to_vec()),
                ("dialect", b"VALUE k 0 3\r\nabc\r\nEND\r\n".to_vec()),
                (
                    "more-values",
                    [&b"VA 1 kk\r\nx\r\n".repeat(4)[..], b"MN\r\n"].concat(),
                ),
            ]
        },
        job: |path| {
            let mut job = store(path, "memcached_meta");
            job["workload"]["get"] = 0.into();
            job["workload"]["multi_get"] = 1.into();
            job["workload"]["keys_each"] = 3.into();
            job
        },
    },
    Script {
        name: "fastcgi",
        before_tls: None,
        serve_login: |stream, _| read_request(stream),
        answer: page,
        endless: || {
            let body = record(6, &[b'x'; 200]).repeat(300);
            vec![
                ("page", record(6, b"\r\n"), body),
                ("errors", Vec::new(), record(7, &[b'x'; 200]).repeat(300)),
            ]
        },
        inconsistent: || {
            vec![
                ("version", b"\x02\x06\0\x01\0\x04\0\0abcd".to_vec()),
                ("request", b"\x01\x06\0\x07\0\x04\0\0abcd".to_vec()),
                ("kind", record(77, b"abcd")),
                ("end", record(3, &[0; 9])),
                ("closed", [record(6, b""), record(6, b"x")].concat()),
            ]
        },
        job: |path| {
            json!({
                "job": "page", "version": 2, "workers": 2, "seed": 1, "warmup_ns": 0, "measure_ns": 600_000_000_000_u64,
                "connect_timeout_ns": 300_000_000, "stall_timeout_ns": 300_000_000,
                "application": {
                    "kind": "fastcgi", "target": {"kind": "unix", "path": path}, "ends_with": "page done\n",
                    "parameters": {"REQUEST_METHOD": "GET"},
                },
            })
        },
    },
];

const EOF: &[u8] = b"\xfe\0\0\x02\0";

fn page() -> Vec<u8> {
    [record(6, b"\r\npage done\n"), record(3, &[0; 8])].concat()
}

fn store(path: &str, protocol: &str) -> Value {
    let mut job = impatient_job(path);
    for account in ["user", "password", "database"] {
        job[account] = "".into();
    }
    job["workload"] = json!({"kind": "key_value", "protocol": protocol, "get": 1, "set": 0});
    job
}

/// The query for Redis' version and connection id: the last bytes of the request, and the answer.
const REDIS_QUERY: (&[u8], &[u8]) = (b"ID\r\n", b"+redis_version:7\r\n:1\r\n");

/// Serve a store's connection until the first request with `command`. `queries`: last bytes of requests before it, and their answers.
fn serve_until_key_request(
    stream: &mut dyn Peer,
    queries: &[(&[u8], &[u8])],
    command: &[u8],
) -> io::Result<()> {
    let (mut request, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&buffer[..count]);
        let query = queries.iter().find(|(query, _)| request.ends_with(query));
        let has_command = request.windows(command.len()).any(|part| part == command);
        if let Some((_, answer)) = query {
            stream.write_all(answer)?;
            request.clear();
        } else if request.ends_with(b"\r\n") && has_command {
            return Ok(());
        }
    }
}

/// The greeting with the TLS flag.
fn greeting_with_tls() -> Vec<u8> {
    let mut greeting = greeting();
    let flags = greeting.windows(2).position(|pair| pair == b"\xff\xf7");
    greeting[flags.expect("the greeting has flags") + 1] = 0xff;
    greeting
}

/// TLS with a certificate that is not verified: the jobs request TLS without a server name.
fn server_config() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem"));
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.expect("the file is a certificate")],
                key.expect("the file is a key"),
            );
    Arc::new(config.expect("the key belongs to the certificate"))
}

fn complete_handshake(
    stream: &mut UnixStream,
    config: &Arc<ServerConfig>,
) -> io::Result<ServerConnection> {
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(stream)?;
    }
    Ok(tls)
}

/// One attack of a list on one protocol, in clear text or over TLS, with two connections under epoll or eight over a ring.
struct Case {
    script: &'static Script,
    is_encrypted: bool,
    has_ring: bool,
    /// The attack's index in its list.
    attack_index: usize,
    name: String,
}

impl Case {
    /// The cases of all scripts, whose attacks `attack_names` lists. In clear text under epoll, all attacks are tested; over a ring with
    /// TLS, which is slow without optimisation, only the first; otherwise the first two, or all in a thorough run.
    fn all(attack_names: impl Fn(&Script) -> Vec<String>) -> Vec<Case> {
        let mut cases = Vec::new();
        for script in &SCRIPTS {
            for (channel, is_encrypted, has_ring) in [
                ("clear", false, false),
                ("tls", true, false),
                ("ring", false, true),
                ("tls-ring", true, true),
            ] {
                if is_encrypted && script.before_tls.is_none()
                    || has_ring && make_ring_job(&(script.job)("")).is_none()
                {
                    continue;
                }
                let max_attacks = match (is_encrypted, has_ring) {
                    (true, true) => 1,
                    (false, false) => usize::MAX,
                    _ if is_thorough() => usize::MAX,
                    _ => 2,
                };
                let names = attack_names(script).into_iter().enumerate();
                cases.extend(names.take(max_attacks).map(|(attack_index, name)| Case {
                    script,
                    is_encrypted,
                    has_ring,
                    attack_index,
                    name: format!("{}-{channel}-{name}", script.name),
                }));
            }
        }
        cases
    }

    fn job(&self, path: &str) -> Value {
        let mut job = (self.script.job)(path);
        if self.is_encrypted {
            job["session"] = json!({"tls": {}});
        }
        if self.has_ring {
            job = make_ring_job(&job).expect("a ring is available");
        }
        job
    }

    /// A server that calls `attack` at the first request of each connection.
    fn start_server(
        &self,
        attack: impl Fn(&mut dyn Peer) -> io::Result<()> + Send + Sync + Clone + 'static,
    ) -> FakeServer {
        if self.is_encrypted {
            return self.start_tls_server(move |tls, stream| {
                attack(&mut rustls::Stream::new(tls, stream))
            });
        }
        let serve_login = self.script.serve_login;
        rogue_server(&self.name, move |stream| {
            serve_login(stream, false)?;
            attack(stream)
        })
    }

    /// A server that calls `attack` with the TLS session at the first request of each connection.
    fn start_tls_server(
        &self,
        attack: impl Fn(&mut ServerConnection, &mut UnixStream) -> io::Result<()>
        + Send
        + Sync
        + Clone
        + 'static,
    ) -> FakeServer {
        let before_tls = self.script.before_tls.expect("the protocol has TLS");
        let (serve_login, config) = (self.script.serve_login, server_config());
        rogue_server(&self.name, move |stream| {
            before_tls(stream)?;
            let mut tls = complete_handshake(stream, &config)?;
            serve_login(&mut rustls::Stream::new(&mut tls, stream), true)?;
            attack(&mut tls, stream)
        })
    }

    /// A server that calls `attack` where TLS begins; with a ring only from the third connection on, the first that a worker opens.
    fn start_handshake_server(
        &self,
        attack: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
    ) -> FakeServer {
        let before_tls = self.script.before_tls.expect("the protocol has TLS");
        let (serve_login, config) = (self.script.serve_login, server_config());
        let served_connections = if self.has_ring { 2 } else { 0 };
        let connections = Arc::new(AtomicU32::new(0));
        rogue_server(&self.name, move |stream| {
            before_tls(stream)?;
            if connections.fetch_add(1, Ordering::Relaxed) >= served_connections {
                return attack(stream);
            }
            let mut tls = complete_handshake(stream, &config)?;
            serve_login(&mut rustls::Stream::new(&mut tls, stream), true)?;
            send_and_wait(stream, b"")
        })
    }

    /// Check that the job ends with one of these codes except `connect`, since its logins succeed.
    fn check_failure(&self, fake: &FakeServer, codes: &[&str]) {
        let codes: Vec<&str> = codes
            .iter()
            .copied()
            .filter(|code| *code != "connect")
            .collect();
        check_failure(&self.name, &self.job(&fake.path), &codes, "");
    }
}

/// Whether `./test thorough` runs the tests.
fn is_thorough() -> bool {
    std::env::var_os("HOWFAR_THOROUGH").is_some()
}

/// Numbers of bytes after which an answer is cut: all but its full length.
fn cut_names(script: &Script) -> Vec<String> {
    (0..(script.answer)().len())
        .map(|length| length.to_string())
        .collect()
}

#[test]
fn an_endless_answer_that_comes_byte_by_byte() {
    for case in Case::all(|_| vec!["slow".to_owned()]) {
        let (_, first_bytes, repeated) = (case.script.endless)().swap_remove(0);
        let bytes = [first_bytes, repeated].concat();
        let fake = case.start_server(move |stream| drip(stream, &bytes));
        case.check_failure(&fake, &["stalled"]);
    }
}

#[test]
fn an_endless_answer() {
    for case in Case::all(|script| {
        let answers = (script.endless)().into_iter();
        answers.map(|(name, ..)| name.to_owned()).collect()
    }) {
        let (_, first_bytes, repeated) = (case.script.endless)().swap_remove(case.attack_index);
        let fake = case.start_server(move |stream| {
            stream.write_all(&first_bytes)?;
            send_forever(stream, &repeated)
        });
        // A gigabyte may come within the limit; the bytes after it are then invalid.
        case.check_failure(&fake, &["stalled", "protocol"]);
    }
}

#[test]
fn an_answer_cut_anywhere() {
    // All channels have the same decoder: answers are cut at each byte in clear text under epoll, and at every fifth byte elsewhere.
    let cases = Case::all(cut_names).into_iter();
    for case in
        cases.filter(|case| case.attack_index % 5 == 0 || !(case.is_encrypted || case.has_ring))
    {
        let (answer, length) = ((case.script.answer)(), case.attack_index);
        let fake = case.start_server(move |stream| stream.write_all(&answer[..length]));
        case.check_failure(&fake, &["server_gone"]);
    }
}

#[test]
fn an_inconsistent_answer() {
    for case in Case::all(|script| {
        let answers = (script.inconsistent)().into_iter();
        answers.map(|(name, _)| name.to_owned()).collect()
    }) {
        let (_, answer) = (case.script.inconsistent)().swap_remove(case.attack_index);
        let fake = case.start_server(move |stream| {
            stream.write_all(&answer)?;
            // Wait until the engine closes the connection.
            stream.read(&mut [0; 512]).map(drop)
        });
        case.check_failure(&fake, &["protocol"]);
    }
}

/// A valid answer that no workload expects.
#[test]
fn a_server_that_requests_the_rows_of_a_copy() {
    for case in Case::all(|script| match script.name {
        "postgres" => vec!["copy-in".to_owned()],
        _ => Vec::new(),
    }) {
        let fake = case.start_server(|stream| {
            stream.write_all(&rogue_postgres::message(b'G', b"\0\0\0"))?;
            stream.read(&mut [0; 512]).map(drop)
        });
        case.check_failure(&fake, &["server_error"]);
    }
}

#[test]
fn bytes_after_the_end_of_an_answer() {
    for case in Case::all(|_| vec!["more".to_owned()]) {
        let answer = (case.script.answer)();
        let fake = case.start_server(move |stream| {
            stream.write_all(&answer.repeat(2))?;
            stream.read(&mut [0; 512]).map(drop)
        });
        case.check_failure(&fake, &["protocol"]);
    }
}

/// Malicious answers to Redis' HELLO; a valid answer is a map of a few hundred bytes.
#[test]
fn malicious_answers_to_hello() {
    for (name, first_bytes, repeated, code) in [
        ("map", &b"%1000000000\r\n"[..], &b"+x\r\n"[..], "protocol"),
        ("pushes", b"", b">1\r\n+x\r\n", "connect"),
        ("error", b"-", b"x", "protocol"),
        ("string", b"=1000000000\r\n", b"x", "protocol"),
    ] {
        let fake = rogue_server(name, move |stream| {
            stream.read(&mut [0; 512]).map(drop)?;
            stream.write_all(first_bytes)?;
            send_forever(stream, &repeated.repeat(10_000))
        });
        check_failure(name, &store(&fake.path, "resp3"), &[code], "");
    }
    let fake = rogue_server("slow-hello", |stream| {
        stream.read(&mut [0; 512]).map(drop)?;
        drip(stream, b"+")
    });
    let job = store(&fake.path, "resp3");
    check_failure("slow-hello", &job, &["connect"], "HELLO");
}

/// An attack on TLS after the handshake, and the codes with which the engine may end.
struct TlsAttack {
    name: &'static str,
    attack: fn(&mut ServerConnection, &mut UnixStream) -> io::Result<()>,
    codes: &'static [&'static str],
    fragment: &'static str,
}

/// Send bytes without TLS, then wait until the engine closes the connection.
fn send_and_wait(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    io::copy(stream, &mut io::sink()).map(drop)
}

static TLS_ATTACKS: [TlsAttack; 9] = [
    TlsAttack {
        name: "garbage",
        attack: |_, stream| {
            send_and_wait(
                stream,
                b"\x17\x03\x03\0\x20no record that anybody has sealed!!",
            )
        },
        codes: &["tls"],
        fragment: "TLS with",
    },
    TlsAttack {
        name: "long-record",
        attack: |_, stream| {
            stream.write_all(b"\x17\x03\x03\xff\xff")?;
            send_forever(stream, &[0; 60_000])
        },
        codes: &["tls"],
        fragment: "TLS with",
    },
    TlsAttack {
        name: "unknown-record",
        attack: |_, stream| send_and_wait(stream, b"\x63\x03\x03\0\x04abcd"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    TlsAttack {
        name: "renegotiation",
        attack: |_, stream| send_and_wait(stream, b"\x16\x03\x03\0\x04\0\0\0\0"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    TlsAttack {
        name: "alert-in-clear",
        attack: |_, stream| send_and_wait(stream, b"\x15\x03\x03\0\x02\x01\0"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    TlsAttack {
        name: "key-updates",
        attack: |tls, stream| {
            loop {
                tls.refresh_traffic_keys().map_err(io::Error::other)?;
                tls.write_tls(stream)?;
            }
        },
        codes: &["stalled", "connect", "tls"],
        fragment: "",
    },
    TlsAttack {
        name: "half-a-record",
        attack: |_, stream| {
            stream.write_all(b"\x17\x03\x03\x40\0")?;
            drip(stream, b"x")
        },
        codes: &["stalled", "connect"],
        fragment: "",
    },
    TlsAttack {
        name: "after-close",
        attack: |tls, stream| {
            tls.send_close_notify();
            tls.write_tls(stream)?;
            send_forever(stream, &[0; 60_000])
        },
        codes: &["tls", "server_gone"],
        fragment: "session",
    },
    TlsAttack {
        name: "closed-and-held",
        attack: |tls, stream| {
            tls.send_close_notify();
            tls.write_tls(stream)?;
            send_and_wait(stream, b"")
        },
        codes: &["server_gone"],
        fragment: "end of its TLS",
    },
];

/// One case over TLS for every protocol in a thorough run, else only for the protocols that start TLS differently: the others start it
/// as RESP2.
fn tls_cases(name: &str) -> Vec<Case> {
    let cases = Case::all(|_| vec![name.to_owned()]).into_iter();
    let is_selected =
        |case: &Case| is_thorough() || ["mysql", "postgres", "resp"].contains(&case.script.name);
    cases
        .filter(|case| case.is_encrypted && is_selected(case))
        .collect()
}

#[test]
fn attacks_on_tls_before_the_login() {
    for attack in &TLS_ATTACKS {
        for case in tls_cases(attack.name) {
            let (config, run_attack) = (server_config(), attack.attack);
            let fake = case.start_handshake_server(move |stream| {
                run_attack(&mut complete_handshake(stream, &config)?, stream)
            });
            let job = case.job(&fake.path);
            check_failure(&case.name, &job, attack.codes, attack.fragment);
        }
    }
}

#[test]
fn attacks_on_tls_under_load() {
    for attack in &TLS_ATTACKS {
        for case in tls_cases(attack.name) {
            let fake = case.start_tls_server(attack.attack);
            case.check_failure(&fake, attack.codes);
        }
    }
}

/// The TLS session ends in the middle of an answer, while the socket stays open.
#[test]
fn a_tls_session_that_ends_within_an_answer() {
    for case in tls_cases("within") {
        let answer = (case.script.answer)();
        let fake = case.start_tls_server(move |tls, stream| {
            tls.writer().write_all(&answer[..answer.len() - 1])?;
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(stream)?;
            }
            send_and_wait(stream, b"")
        });
        case.check_failure(&fake, &["server_gone"]);
    }
}

/// The server answers the handshake with other bytes.
#[test]
fn an_invalid_tls_handshake() {
    for (name, bytes, code) in [
        (
            "text",
            &b"no TLS at all, but long enough to be looked at"[..],
            "tls",
        ),
        ("packet", b"\x07\0\0\x02\0\0\0\x02\0\0\0", "tls"),
        ("long", b"\x16\x03\x03\xff\xff", "tls"),
        ("alert", b"\x15\x03\x03\0\x02\x02\x28", "tls"),
        ("begun", b"\x16\x03\x03\x10\0", "connect"),
    ] {
        for case in tls_cases(name) {
            let fake = case.start_handshake_server(move |stream| send_and_wait(stream, bytes));
            check_failure(&case.name, &case.job(&fake.path), &[code], "");
        }
    }
}

/// The server's messages of the handshake are cut, or come byte by byte.
#[test]
fn a_tls_handshake_cut_or_slow() {
    const CUTS: [usize; 7] = [0, 1, 5, 6, 90, 130, 300];
    for cut in CUTS.map(Some).into_iter().chain([None]) {
        for case in tls_cases(&format!("handshake-{cut:?}")) {
            let config = server_config();
            let fake = case.start_handshake_server(move |stream| {
                let flight = first_flight(stream, &config)?;
                let Some(cut) = cut else {
                    return drip(stream, &flight);
                };
                stream.write_all(&flight[..cut])?;
                stream.shutdown(Shutdown::Write)?;
                io::copy(stream, &mut io::sink()).map(drop)
            });
            let code = cut.map_or("connect", |_| "server_gone");
            let job = case.job(&fake.path);
            check_failure(&case.name, &job, &[code], "");
        }
    }
}

/// The server's answer to the client's first messages.
fn first_flight(stream: &mut UnixStream, config: &Arc<ServerConfig>) -> io::Result<Vec<u8>> {
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut flight = Vec::new();
    while flight.is_empty() {
        tls.read_tls(stream)?;
        tls.process_new_packets().map_err(io::Error::other)?;
        while tls.wants_write() {
            tls.write_tls(&mut flight)?;
        }
    }
    Ok(flight)
}
