//! Malicious servers of every protocol, in clear and over TLS: answers that are slow, endless, cut, inconsistent or followed by more;
//! and attacks on TLS itself; with two connections under epoll and eight over a ring. Every case ends within the job's own limits,
//! with a reason, little memory and little CPU time.
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

use crate::drivers::over_a_ring;
use crate::fake::{Fake, greeting, packet};
use crate::malice::{
    drip, ends, expect_packet, flood_of, harmful, head_of_result, hurried, until_queried,
};
use crate::rogue_postgres;
use crate::visitor::{read_request, record};

/// A connection, in clear or over TLS.
pub(crate) trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

/// A name, the bytes that begin an answer, and those that then repeat endlessly.
type Endless = (&'static str, Vec<u8>, Vec<u8>);

/// A server of one protocol up to its first request, and what it may answer then.
struct Script {
    name: &'static str,
    /// The exchange in clear before TLS begins; `None` if the protocol has no TLS here.
    before_tls: Option<fn(&mut UnixStream) -> io::Result<()>>,
    /// The exchange up to the first request, which is read but not answered; over TLS or not.
    enter: fn(&mut dyn Peer, bool) -> io::Result<()>,
    answer: fn() -> Vec<u8>,
    /// How endless answers begin and continue.
    endless: fn() -> Vec<Endless>,
    /// Inconsistent answers that are detected at once.
    lies: fn() -> Vec<(&'static str, Vec<u8>)>,
    job: fn(&str) -> Value,
}

static SCRIPTS: [Script; 7] = [
    Script {
        name: "mysql",
        before_tls: Some(|stream| {
            stream.write_all(&offering_tls())?;
            expect_packet(stream).map(drop)
        }),
        enter: |stream, encrypted| {
            if !encrypted {
                stream.write_all(&greeting())?;
            }
            until_queried(stream, 2 + u8::from(encrypted))
        },
        answer: || [head_of_result(), packet(4, b"\x01a"), packet(5, EOF)].concat(),
        endless: || {
            let round = (0..=255_u8).flat_map(|number| packet(number.wrapping_add(4), b"\x01a"));
            vec![("rows", head_of_result(), round.collect())]
        },
        lies: || {
            vec![
                ("misnumbered", packet(9, b"\0\0\0\x02\0\0\0")),
                ("many-columns", packet(1, b"\xfd\0\0\x10")),
            ]
        },
        job: hurried,
    },
    Script {
        name: "postgres",
        before_tls: Some(|stream| {
            rogue_postgres::read_body(stream)?;
            stream.write_all(b"S")?;
            // Wait for the client's handshake, so that what follows is not sent together with this.
            recv(stream, &mut [0; 1][..], RecvFlags::PEEK)?;
            Ok(())
        }),
        enter: |stream, _| rogue_postgres::until_bound(stream),
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
        lies: || {
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
        job: rogue_postgres::hurried_job,
    },
    Script {
        name: "resp",
        before_tls: Some(|_| Ok(())),
        enter: |stream, _| until_key_requested(stream, &[REDIS], b"GET"),
        answer: || b"$3\r\nabc\r\n".to_vec(),
        endless: || {
            vec![
                ("string", b"$1000000000\r\n".to_vec(), vec![b'x'; 60_000]),
                ("pushes", Vec::new(), b">1\r\n+x\r\n".repeat(5000)),
                ("attributes", Vec::new(), b"|1\r\n+x\r\n+y\r\n".repeat(5000)),
            ]
        },
        lies: || {
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
        enter: |stream, _| {
            let hello = (&b"HELLO\r\n$1\r\n3\r\n"[..], &b"%1\r\n+proto\r\n:3\r\n"[..]);
            until_key_requested(stream, &[hello, REDIS], b"GET")
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
        lies: || {
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
        enter: |stream, _| {
            let version = (&b"version\r\n"[..], &b"VERSION 1.6.18\r\n"[..]);
            until_key_requested(stream, &[version], b"get ")
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
        lies: || {
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
        enter: |stream, _| {
            let version = (&b"version\r\nmn\r\n"[..], &b"VERSION 1.6.18\r\nMN\r\n"[..]);
            until_key_requested(stream, &[version], b"mg ")
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
        lies: || {
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
        enter: |stream, _| read_request(stream),
        answer: page,
        endless: || {
            let body = record(6, &[b'x'; 200]).repeat(300);
            vec![
                ("page", record(6, b"\r\n"), body),
                ("errors", Vec::new(), record(7, &[b'x'; 200]).repeat(300)),
            ]
        },
        lies: || {
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
    let mut job = hurried(path);
    for account in ["user", "password", "database"] {
        job[account] = "".into();
    }
    job["workload"] = json!({"kind": "key_value", "protocol": protocol, "get": 1, "set": 0});
    job
}

/// The request for Redis' version and connection number, and its answer.
const REDIS: (&[u8], &[u8]) = (b"ID\r\n", b"+redis_version:7\r\n:1\r\n");

/// Serve a store's connection: answer these questions until a key is requested.
fn until_key_requested(
    stream: &mut dyn Peer,
    questions: &[(&[u8], &[u8])],
    command: &[u8],
) -> io::Result<()> {
    let (mut came, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        came.extend_from_slice(&buffer[..count]);
        if let Some((_, answer)) = questions.iter().find(|(asks, _)| came.ends_with(asks)) {
            stream.write_all(answer)?;
            came.clear();
        } else if came.ends_with(b"\r\n") && came.windows(command.len()).any(|part| part == command)
        {
            return Ok(());
        }
    }
}

/// The greeting with the TLS flag.
fn offering_tls() -> Vec<u8> {
    let mut offering = greeting();
    let flags = offering
        .windows(2)
        .position(|two| two == b"\xff\xf7")
        .expect("flags");
    offering[flags + 1] = 0xff;
    offering
}

/// A certificate that is never verified: these jobs request TLS without a server name.
fn certified() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem"));
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.expect("a certificate")],
                key.expect("its key"),
            );
    Arc::new(config.expect("they belong together"))
}

fn shaken(stream: &mut UnixStream, config: &Arc<ServerConfig>) -> io::Result<ServerConnection> {
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(stream)?;
    }
    Ok(tls)
}

/// One row of a table, against one protocol, in clear or over TLS, with two connections under epoll or eight over a ring.
struct Case {
    script: &'static Script,
    encrypted: bool,
    ring: bool,
    row: usize,
    name: String,
}

impl Case {
    /// All rows that `of` names in clear under epoll; the first two elsewhere, or all in a thorough run; always only the first over a
    /// ring with TLS, which is slow without optimisation.
    fn each(of: impl Fn(&Script) -> Vec<String>) -> Vec<Case> {
        let mut cases = Vec::new();
        for script in &SCRIPTS {
            for (channel, encrypted, ring) in [
                ("clear", false, false),
                ("tls", true, false),
                ("ring", false, true),
                ("tls-ring", true, true),
            ] {
                if encrypted && script.before_tls.is_none()
                    || ring && over_a_ring(&(script.job)("")).is_none()
                {
                    continue;
                }
                let most = match (encrypted, ring) {
                    (true, true) => 1,
                    (false, false) => usize::MAX,
                    _ => {
                        if thorough() {
                            usize::MAX
                        } else {
                            2
                        }
                    }
                };
                let rows = of(script).into_iter().enumerate().take(most);
                cases.extend(rows.map(|(row, name)| Case {
                    script,
                    encrypted,
                    ring,
                    row,
                    name: format!("{}-{channel}-{name}", script.name),
                }));
            }
        }
        cases
    }

    fn job(&self, path: &str) -> Value {
        let mut job = (self.script.job)(path);
        if self.encrypted {
            job["session"] = json!({"tls": {}});
        }
        if self.ring {
            job = over_a_ring(&job).expect("a ring");
        }
        job
    }

    /// A server that runs `harm` at the first request of each connection.
    fn server(
        &self,
        harm: impl Fn(&mut dyn Peer) -> io::Result<()> + Send + Sync + Clone + 'static,
    ) -> Fake {
        if self.encrypted {
            return self.breached(move |tls, stream| harm(&mut rustls::Stream::new(tls, stream)));
        }
        let enter = self.script.enter;
        harmful(&self.name, move |stream| {
            enter(stream, false)?;
            harm(stream)
        })
    }

    /// A server that runs `harm` on the TLS session at the first request of each connection.
    fn breached(
        &self,
        harm: impl Fn(&mut ServerConnection, &mut UnixStream) -> io::Result<()>
        + Send
        + Sync
        + Clone
        + 'static,
    ) -> Fake {
        let before_tls = self.script.before_tls.expect("it speaks TLS");
        let (enter, config) = (self.script.enter, certified());
        harmful(&self.name, move |stream| {
            before_tls(stream)?;
            let mut tls = shaken(stream, &config)?;
            enter(&mut rustls::Stream::new(&mut tls, stream), true)?;
            harm(&mut tls, stream)
        })
    }

    /// A server that runs `harm` where TLS begins; with a ring only from the third connection on, the first that a worker opens.
    fn opening(
        &self,
        harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
    ) -> Fake {
        let before_tls = self.script.before_tls.expect("it speaks TLS");
        let (enter, config) = (self.script.enter, certified());
        let (let_in, come) = (if self.ring { 2 } else { 0 }, Arc::new(AtomicU32::new(0)));
        harmful(&self.name, move |stream| {
            before_tls(stream)?;
            if come.fetch_add(1, Ordering::Relaxed) >= let_in {
                return harm(stream);
            }
            let mut tls = shaken(stream, &config)?;
            enter(&mut rustls::Stream::new(&mut tls, stream), true)?;
            raw(stream, b"")
        })
    }

    /// Check that the job ends with one of these codes, after logins that succeed.
    fn ends(&self, fake: &Fake, codes: &[&str]) {
        let codes: Vec<&str> = codes
            .iter()
            .copied()
            .filter(|code| *code != "connect")
            .collect();
        ends(&self.name, &self.job(&fake.path), &codes, "");
    }
}

/// Whether `./test thorough` runs the tests.
fn thorough() -> bool {
    std::env::var_os("HOWFAR_THOROUGH").is_some()
}

fn named<T>(parts: Vec<(&'static str, T)>) -> Vec<String> {
    parts.into_iter().map(|(name, _)| name.to_owned()).collect()
}

/// Numbers of bytes after which an answer is cut: all but its full length.
fn cuts(script: &Script) -> Vec<String> {
    (0..(script.answer)().len())
        .map(|at| at.to_string())
        .collect()
}

#[test]
fn an_answer_that_comes_a_byte_at_a_time_for_ever() {
    for case in Case::each(|_| vec!["slow".to_owned()]) {
        let (_, begins, goes_on) = (case.script.endless)().swap_remove(0);
        let fake = case.server(move |stream| drip(stream, &[&begins[..], &goes_on].concat()));
        case.ends(&fake, &["stalled"]);
    }
}

#[test]
fn an_answer_without_an_end() {
    for case in Case::each(|script| {
        let rows = (script.endless)().into_iter();
        rows.map(|(name, ..)| name.to_owned()).collect()
    }) {
        let (_, begins, goes_on) = (case.script.endless)().swap_remove(case.row);
        let fake = case.server(move |stream| {
            stream.write_all(&begins)?;
            flood_of(stream, &goes_on)
        });
        // A gigabyte may come within the limit; what follows it is then invalid.
        case.ends(&fake, &["stalled", "protocol"]);
    }
}

#[test]
fn an_answer_cut_anywhere() {
    // One decoder serves every channel: answers are cut at each byte in clear under epoll, at every fifth elsewhere.
    let all = Case::each(cuts).into_iter();
    for case in all.filter(|case| case.row % 5 == 0 || !(case.encrypted || case.ring)) {
        let (answer, at) = ((case.script.answer)(), case.row);
        let fake = case.server(move |stream| stream.write_all(&answer[..at]));
        case.ends(&fake, &["server_gone"]);
    }
}

#[test]
fn an_answer_that_lies_about_itself() {
    for case in Case::each(|script| named((script.lies)())) {
        let (_, lie) = (case.script.lies)().swap_remove(case.row);
        let fake = case.server(move |stream| {
            stream.write_all(&lie)?;
            // Wait until the engine closes the connection.
            stream.read(&mut [0; 512]).map(drop)
        });
        case.ends(&fake, &["protocol"]);
    }
}

/// A valid answer, but one that no workload expects.
#[test]
fn a_server_that_asks_for_the_rows_of_a_copy() {
    for case in Case::each(|script| match script.name {
        "postgres" => vec!["copy-in".to_owned()],
        _ => Vec::new(),
    }) {
        let fake = case.server(|stream| {
            stream.write_all(&rogue_postgres::message(b'G', b"\0\0\0"))?;
            stream.read(&mut [0; 512]).map(drop)
        });
        case.ends(&fake, &["server_error"]);
    }
}

#[test]
fn more_behind_the_end_of_an_answer() {
    for case in Case::each(|_| vec!["more".to_owned()]) {
        let answer = (case.script.answer)();
        let fake = case.server(move |stream| {
            stream.write_all(&answer.repeat(2))?;
            stream.read(&mut [0; 512]).map(drop)
        });
        case.ends(&fake, &["protocol"]);
    }
}

/// Bad answers to Redis' HELLO; a good one is a map of some hundred bytes.
#[test]
fn a_hello_that_does_not_end_well() {
    for (name, begins, goes_on, code) in [
        ("map", &b"%1000000000\r\n"[..], &b"+x\r\n"[..], "protocol"),
        ("pushes", b"", b">1\r\n+x\r\n", "connect"),
        ("error", b"-", b"x", "protocol"),
        ("string", b"=1000000000\r\n", b"x", "protocol"),
    ] {
        let fake = harmful(name, move |stream| {
            stream.read(&mut [0; 512]).map(drop)?;
            stream.write_all(begins)?;
            flood_of(stream, &goes_on.repeat(10_000))
        });
        ends(name, &store(&fake.path, "resp3"), &[code], "");
    }
    let fake = harmful("slow-hello", |stream| {
        stream.read(&mut [0; 512]).map(drop)?;
        drip(stream, b"+")
    });
    let job = store(&fake.path, "resp3");
    ends("slow-hello", &job, &["connect"], "HELLO");
}

/// An attack on TLS after the handshake, and the codes with which the engine may end.
struct Breach {
    name: &'static str,
    harm: fn(&mut ServerConnection, &mut UnixStream) -> io::Result<()>,
    codes: &'static [&'static str],
    fragment: &'static str,
}

/// Send raw bytes, then wait until the engine closes the connection.
fn raw(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    io::copy(stream, &mut io::sink()).map(drop)
}

static BREACHES: [Breach; 9] = [
    Breach {
        name: "garbage",
        harm: |_, stream| {
            raw(
                stream,
                b"\x17\x03\x03\0\x20no record that anybody has sealed!!",
            )
        },
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "long-record",
        harm: |_, stream| {
            stream.write_all(b"\x17\x03\x03\xff\xff")?;
            flood_of(stream, &[0; 60_000])
        },
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "unknown-record",
        harm: |_, stream| raw(stream, b"\x63\x03\x03\0\x04abcd"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "renegotiation",
        harm: |_, stream| raw(stream, b"\x16\x03\x03\0\x04\0\0\0\0"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "alert-in-clear",
        harm: |_, stream| raw(stream, b"\x15\x03\x03\0\x02\x01\0"),
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "key-updates",
        harm: |tls, stream| {
            loop {
                tls.refresh_traffic_keys().map_err(io::Error::other)?;
                tls.write_tls(stream)?;
            }
        },
        codes: &["stalled", "connect", "tls"],
        fragment: "",
    },
    Breach {
        name: "half-a-record",
        harm: |_, stream| {
            stream.write_all(b"\x17\x03\x03\x40\0")?;
            drip(stream, b"x")
        },
        codes: &["stalled", "connect"],
        fragment: "",
    },
    Breach {
        name: "after-close",
        harm: |tls, stream| {
            tls.send_close_notify();
            tls.write_tls(stream)?;
            flood_of(stream, &[0; 60_000])
        },
        codes: &["tls", "server_gone"],
        fragment: "session",
    },
    Breach {
        name: "closed-and-held",
        harm: |tls, stream| {
            tls.send_close_notify();
            tls.write_tls(stream)?;
            raw(stream, b"")
        },
        codes: &["server_gone"],
        fragment: "end of its TLS",
    },
];

/// One case over TLS for every protocol in a thorough run, else only for those that start TLS differently: the rest start it as RESP2
/// does.
fn over_tls(name: &str) -> Vec<Case> {
    let all = Case::each(|_| vec![name.to_owned()]).into_iter();
    let own = |case: &Case| thorough() || ["mysql", "postgres", "resp"].contains(&case.script.name);
    all.filter(|case| case.encrypted && own(case)).collect()
}

#[test]
fn what_breaks_tls_before_the_login() {
    for breach in &BREACHES {
        for case in over_tls(breach.name) {
            let (config, harm) = (certified(), breach.harm);
            let fake = case.opening(move |stream| harm(&mut shaken(stream, &config)?, stream));
            let job = case.job(&fake.path);
            ends(&case.name, &job, breach.codes, breach.fragment);
        }
    }
}

#[test]
fn what_breaks_tls_under_load() {
    for breach in &BREACHES {
        for case in over_tls(breach.name) {
            let fake = case.breached(breach.harm);
            case.ends(&fake, breach.codes);
        }
    }
}

/// The TLS session ends in the middle of an answer, while the socket stays open.
#[test]
fn the_end_of_a_tls_session_within_an_answer() {
    for case in over_tls("within") {
        let answer = (case.script.answer)();
        let fake = case.breached(move |tls, stream| {
            tls.writer().write_all(&answer[..answer.len() - 1])?;
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(stream)?;
            }
            raw(stream, b"")
        });
        case.ends(&fake, &["server_gone"]);
    }
}

/// Other bytes in place of the server's side of the handshake.
#[test]
fn a_handshake_that_is_none() {
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
        for case in over_tls(name) {
            let fake = case.opening(move |stream| raw(stream, bytes));
            ends(&case.name, &case.job(&fake.path), &[code], "");
        }
    }
}

/// The server's genuine side of the handshake, cut, or a byte at a time.
#[test]
fn a_tls_handshake_cut_or_slow() {
    const CUTS: [usize; 7] = [0, 1, 5, 6, 90, 130, 300];
    for cut in CUTS.map(Some).into_iter().chain([None]) {
        for case in over_tls(&format!("handshake-{cut:?}")) {
            let config = certified();
            let fake = case.opening(move |stream| {
                let flight = first_flight(stream, &config)?;
                let Some(cut) = cut else {
                    return drip(stream, &flight);
                };
                stream.write_all(&flight[..cut])?;
                stream.shutdown(Shutdown::Write)?;
                io::copy(stream, &mut io::sink()).map(drop)
            });
            let code = if cut.is_some() {
                "server_gone"
            } else {
                "connect"
            };
            let job = case.job(&fake.path);
            ends(&case.name, &job, &[code], "");
        }
    }
}

/// All that a server sends in answer to the client's first messages.
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
