//! One table of harm for each protocol, in clear and over TLS: answers that are slow, endless, cut, lying or followed by more; and
//! what a peer can do to TLS itself. Every case ends by the job's own limits, with a reason, little memory and little CPU time.
//!
//! Not here: harm that only MySQL's protocol has room for (`malice`).

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{RecvFlags, recv};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use serde_json::{Value, json};

use crate::fake::{Fake, greeting, packet};
use crate::malice::{drip, ends, flood_of, harmful, head_of_result, heard, hurried, until_queried};
use crate::rogue_postgres;
use crate::visitor::{read_request, record};

/// A connection, whatever lies between.
pub(crate) trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

/// A name, the bytes that begin an answer, and those that go on for ever.
type Endless = (&'static str, Vec<u8>, Vec<u8>);

/// A server of one protocol up to its first request, and what it may answer then.
struct Script {
    name: &'static str,
    /// What is said in clear before TLS begins. `None`: it never does.
    before_tls: Option<fn(&mut UnixStream) -> io::Result<()>>,
    /// All that is said before the first request, which is heard and not answered; over TLS or not.
    enter: fn(&mut dyn Peer, bool) -> io::Result<()>,
    answer: fn() -> Vec<u8>,
    /// How answers without an end begin and go on.
    endless: fn() -> Vec<Endless>,
    /// Answers that lie about themselves, and are found out at sight.
    lies: fn() -> Vec<(&'static str, Vec<u8>)>,
    job: fn(&str) -> Value,
}

static SCRIPTS: [Script; 5] = [
    Script {
        name: "mysql",
        before_tls: Some(|stream| {
            stream.write_all(&offering_tls())?;
            heard(stream).map(drop)
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
            rogue_postgres::first(stream)?;
            stream.write_all(b"S")?;
            // What follows is said in the handshake, and not in one breath with this.
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
        enter: |stream, _| {
            until_key_requested(stream, b"ID\r\n", b"+redis_version:7\r\n:1\r\n", b"GET")
        },
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
        name: "memcached",
        before_tls: Some(|_| Ok(())),
        enter: |stream, _| {
            until_key_requested(stream, b"version\r\n", b"VERSION 1.6.18\r\n", b"get ")
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
                "job": "page", "version": 2, "workers": 2, "seed": 1, "warmup_ns": 0, "measure_ns": 5_000_000_000_u64,
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

/// A store that names itself where that is requested, until a key is requested.
fn until_key_requested(
    stream: &mut dyn Peer,
    question: &[u8],
    answer: &[u8],
    command: &[u8],
) -> io::Result<()> {
    let (mut came, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        came.extend_from_slice(&buffer[..count]);
        if came.ends_with(question) {
            stream.write_all(answer)?;
            came.clear();
        } else if came.ends_with(b"\r\n") && came.windows(command.len()).any(|part| part == command)
        {
            return Ok(());
        }
    }
}

/// The greeting with the flag of TLS.
fn offering_tls() -> Vec<u8> {
    let mut offering = greeting();
    let flags = offering
        .windows(2)
        .position(|two| two == b"\xff\xf7")
        .expect("flags");
    offering[flags + 1] = 0xff;
    offering
}

/// Never verified: these jobs ask for TLS without a name.
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

/// One row of a table, against one protocol, in clear or over TLS.
struct Case {
    script: &'static Script,
    encrypted: bool,
    name: String,
}

impl Case {
    /// All of them that `of` names, in clear and over TLS.
    fn each(of: impl Fn(&Script) -> Vec<String>) -> Vec<Case> {
        let mut cases = Vec::new();
        for script in &SCRIPTS {
            for encrypted in [false, true] {
                if encrypted && script.before_tls.is_none() {
                    continue;
                }
                let channel = if encrypted { "tls" } else { "clear" };
                cases.extend(of(script).into_iter().map(|name| Case {
                    script,
                    encrypted,
                    name: format!("{}-{channel}-{name}", script.name),
                }));
            }
        }
        cases
    }

    fn job(&self, path: &str, patient: bool) -> Value {
        let mut job = (self.script.job)(path);
        if self.encrypted {
            job["session"] = json!({"tls": {}});
        }
        if patient {
            // What is told at sight must not be overtaken by the limits on a busy machine.
            job["connect_timeout_ns"] = 20_000_000_000_u64.into();
            job["stall_timeout_ns"] = 20_000_000_000_u64.into();
        }
        job
    }

    /// A server that does this to each first request.
    fn server(
        &self,
        harm: impl Fn(&mut dyn Peer) -> io::Result<()> + Send + Sync + Clone + 'static,
    ) -> Fake {
        let (enter, before_tls) = (self.script.enter, self.script.before_tls);
        let config = self.encrypted.then(certified);
        harmful(&self.name, move |stream| {
            let (Some(config), Some(before_tls)) = (&config, before_tls) else {
                enter(stream, false)?;
                return harm(stream);
            };
            before_tls(stream)?;
            let mut tls = shaken(stream, config)?;
            let mut stream = rustls::Stream::new(&mut tls, stream);
            enter(&mut stream, true)?;
            harm(&mut stream)
        })
    }

    /// It ends with one of these codes.
    fn ends(&self, fake: &Fake, patient: bool, codes: &[&str]) {
        ends(&self.name, &self.job(&fake.path, patient), codes, "");
    }
}

fn named<T>(parts: Vec<(&'static str, T)>) -> Vec<String> {
    parts.into_iter().map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn an_answer_that_comes_a_byte_at_a_time_for_ever() {
    for case in Case::each(|_| vec!["slow".to_owned()]) {
        let (_, begins, goes_on) = (case.script.endless)().swap_remove(0);
        let fake = case.server(move |stream| drip(stream, &[&begins[..], &goes_on].concat()));
        case.ends(&fake, false, &["stalled"]);
    }
}

#[test]
fn an_answer_without_an_end() {
    let of = |script: &Script| {
        (0..(script.endless)().len())
            .map(|at| at.to_string())
            .collect()
    };
    for case in Case::each(of) {
        let at: usize = case
            .name
            .rsplit('-')
            .next()
            .and_then(|at| at.parse().ok())
            .expect("a row");
        let (_, begins, goes_on) = (case.script.endless)().swap_remove(at);
        let fake = case.server(move |stream| {
            stream.write_all(&begins)?;
            flood_of(stream, &goes_on)
        });
        // A gigabyte may come within the limit; what goes on behind it is a lie.
        case.ends(&fake, false, &["stalled", "protocol"]);
    }
}

#[test]
fn an_answer_cut_anywhere() {
    for case in Case::each(|script| {
        (0..(script.answer)().len())
            .map(|at| at.to_string())
            .collect()
    }) {
        let at: usize = case
            .name
            .rsplit('-')
            .next()
            .and_then(|at| at.parse().ok())
            .expect("a cut");
        let answer = (case.script.answer)();
        let fake = case.server(move |stream| stream.write_all(&answer[..at]));
        case.ends(&fake, true, &["server_gone"]);
    }
}

#[test]
fn an_answer_that_lies_about_itself() {
    for case in Case::each(|script| named((script.lies)())) {
        let lies = (case.script.lies)();
        let lie = lies.into_iter().find(|(name, _)| case.name.ends_with(name));
        let (_, lie) = lie.expect("a row of the table");
        let fake = case.server(move |stream| {
            stream.write_all(&lie)?;
            // Until the engine has had enough.
            stream.read(&mut [0; 512]).map(drop)
        });
        case.ends(&fake, true, &["protocol"]);
    }
}

/// No lie, and nothing that a workload has.
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
        case.ends(&fake, true, &["server_error"]);
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
        case.ends(&fake, true, &["protocol"]);
    }
}

/// What a peer does to TLS once the handshake is over; with the code that the engine ends with.
struct Breach {
    name: &'static str,
    harm: fn(&mut ServerConnection, &mut UnixStream) -> io::Result<()>,
    /// It is found out at sight.
    at_sight: bool,
    codes: &'static [&'static str],
    fragment: &'static str,
}

/// Raw bytes, and then what the engine does about them.
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
        at_sight: true,
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "long-record",
        harm: |_, stream| {
            stream.write_all(b"\x17\x03\x03\xff\xff")?;
            flood_of(stream, &[0; 60_000])
        },
        at_sight: true,
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "unknown-record",
        harm: |_, stream| raw(stream, b"\x63\x03\x03\0\x04abcd"),
        at_sight: true,
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "renegotiation",
        harm: |_, stream| raw(stream, b"\x16\x03\x03\0\x04\0\0\0\0"),
        at_sight: true,
        codes: &["tls"],
        fragment: "TLS with",
    },
    Breach {
        name: "alert-in-clear",
        harm: |_, stream| raw(stream, b"\x15\x03\x03\0\x02\x01\0"),
        at_sight: true,
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
        at_sight: false,
        codes: &["stalled", "connect", "tls"],
        fragment: "",
    },
    Breach {
        name: "half-a-record",
        harm: |_, stream| {
            stream.write_all(b"\x17\x03\x03\x40\0")?;
            drip(stream, b"x")
        },
        at_sight: false,
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
        at_sight: true,
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
        at_sight: true,
        codes: &["server_gone"],
        fragment: "end of its TLS",
    },
];

/// Those that speak TLS, each with a row of what is done there.
fn over_tls(name: &str) -> Vec<Case> {
    let all = Case::each(|_| vec![name.to_owned()]);
    all.into_iter().filter(|case| case.encrypted).collect()
}

#[test]
fn what_breaks_tls_ends_the_load() {
    for breach in &BREACHES {
        for case in over_tls(breach.name) {
            let before_tls = case.script.before_tls.expect("it speaks TLS");
            let (config, harm) = (certified(), breach.harm);
            let fake = harmful(&case.name, move |stream| {
                before_tls(stream)?;
                let mut tls = shaken(stream, &config)?;
                harm(&mut tls, stream)
            });
            let job = case.job(&fake.path, breach.at_sight);
            ends(&case.name, &job, breach.codes, breach.fragment);
        }
    }
}

/// The answer begins, and the session is over before it ends; the socket is not.
#[test]
fn the_end_of_a_tls_session_within_an_answer() {
    for case in over_tls("within") {
        let (enter, answer) = (case.script.enter, (case.script.answer)());
        let before_tls = case.script.before_tls.expect("it speaks TLS");
        let config = certified();
        let fake = harmful(&case.name, move |stream| {
            before_tls(stream)?;
            let mut tls = shaken(stream, &config)?;
            enter(&mut rustls::Stream::new(&mut tls, stream), true)?;
            tls.writer().write_all(&answer[..answer.len() - 1])?;
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(stream)?;
            }
            raw(stream, b"")
        });
        case.ends(&fake, true, &["server_gone"]);
    }
}

/// What comes where the server's side of the handshake should.
#[test]
fn a_handshake_that_is_none() {
    for (name, bytes, at_sight, codes) in [
        (
            "text",
            &b"no TLS at all, but long enough to be looked at"[..],
            true,
            "tls",
        ),
        ("packet", b"\x07\0\0\x02\0\0\0\x02\0\0\0", true, "tls"),
        ("long", b"\x16\x03\x03\xff\xff", true, "tls"),
        ("alert", b"\x15\x03\x03\0\x02\x02\x28", true, "tls"),
        ("begun", b"\x16\x03\x03\x10\0", false, "connect"),
    ] {
        for case in over_tls(name) {
            let before_tls = case.script.before_tls.expect("it speaks TLS");
            let fake = harmful(&case.name, move |stream| {
                before_tls(stream)?;
                raw(stream, bytes)
            });
            ends(&case.name, &case.job(&fake.path, at_sight), &[codes], "");
        }
    }
}

/// The server's true side of the handshake, cut, or a byte at a time.
#[test]
fn a_tls_handshake_cut_or_slow() {
    const CUTS: [Option<usize>; 8] = [
        Some(0),
        Some(1),
        Some(5),
        Some(6),
        Some(90),
        Some(130),
        Some(300),
        None,
    ];
    for cut in CUTS {
        for case in over_tls(&format!("handshake-{cut:?}")) {
            let before_tls = case.script.before_tls.expect("it speaks TLS");
            let config = certified();
            let fake = harmful(&case.name, move |stream| {
                before_tls(stream)?;
                let mut tls =
                    ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
                let mut flight = Vec::new();
                while flight.is_empty() {
                    tls.read_tls(stream)?;
                    tls.process_new_packets().map_err(io::Error::other)?;
                    while tls.wants_write() {
                        tls.write_tls(&mut flight)?;
                    }
                }
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
            ends(
                &case.name,
                &case.job(&fake.path, cut.is_some()),
                &[code],
                "",
            );
        }
    }
}
