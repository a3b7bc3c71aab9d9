//! Servers that mean harm: whatever they send, and however slowly, the engine ends within its limits, says what was wrong, and
//! needs little memory.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use howfar_wire::mysql::compress::{Algorithm, Codec};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use serde_json::{Value, json};

use crate::fake::{Fake, error, greeting, no_status, packet, read_packet};
use crate::peak::bounded_failure;
use crate::process::job;

/// Two connections with short limits.
fn hurried(path: &str) -> Value {
    let mut job = job(path);
    job["connections"] = 2.into();
    job["connect_timeout_ns"] = 300_000_000.into();
    job["stall_timeout_ns"] = 300_000_000.into();
    job["measure_ns"] = 5_000_000_000_u64.into();
    job["interval_ns"] = 1_000_000_000.into();
    job
}

/// Does its harm to each connection; the socket closes behind it.
fn harmful(
    name: &str,
    harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) -> Fake {
    Fake::listening(name, move |mut stream| {
        let harm = harm.clone();
        // An engine that has gone away is what is waited for.
        thread::spawn(move || drop(harm(&mut stream)));
    })
}

#[track_caller]
fn ends(name: &str, job: &Value, code: &str, fragment: &str) -> Value {
    let failed = bounded_failure(name, job);
    assert_eq!(failed["code"], code, "{name}: {failed}");
    let message = failed["message"].as_str().expect("a text");
    assert!(message.contains(fragment), "{name}: {failed}");
    assert!(!failed["advice"].as_str().expect("a text").is_empty());
    failed
}

/// As [`ends`], for a server that does harm to everybody.
#[track_caller]
fn harm_ends(
    name: &str,
    code: &str,
    fragment: &str,
    harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = harmful(name, harm);
    let mut job = hurried(&fake.path);
    if !matches!(code, "connect" | "stalled") {
        // What is told at sight must not be overtaken by the limits on a busy machine.
        job["connect_timeout_ns"] = 20_000_000_000_u64.into();
        job["stall_timeout_ns"] = 20_000_000_000_u64.into();
    }
    ends(name, &job, code, fragment);
}

fn heard(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    read_packet(stream).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

/// Greeting and OK.
fn let_in(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&greeting())?;
    heard(stream)?;
    stream.write_all(&packet(2, OK))
}

/// All that comes before the load; gives back with the first query sent and unanswered.
fn until_queried(stream: &mut UnixStream) -> io::Result<()> {
    let_in(stream)?;
    loop {
        let command = heard(stream)?;
        match command.first() {
            Some(0x16) => stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?,
            Some(0x03) if command.starts_with(b"\x03SHOW") => stream.write_all(&no_status())?,
            // BEGIN and COMMIT: the harm is done where rows are expected.
            Some(0x03 | 0x17) => return Ok(()),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The same payload for ever, rightly numbered.
fn flood(stream: &mut UnixStream, first: u8, payload: &[u8]) -> io::Result<()> {
    let round: Vec<u8> = (0..=255_u8)
        .flat_map(|number| packet(first.wrapping_add(number), payload))
        .collect();
    loop {
        stream.write_all(&round)?;
    }
}

/// One byte each 10 ms, for ever.
fn drip(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes.iter().cycle() {
        stream.write_all(&[*byte])?;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

const DEFINITION: &[u8] = b"\x03def\0\0\0\x01a\0\x0c\x2d\0\0\x01\0\0\xfd\0\0\0\0\0";
const END: &[u8] = b"\xfe\0\0\x02\0";

/// A result of one column, up to its first row, which has number 4.
fn head_of_result() -> Vec<u8> {
    [packet(1, b"\x01"), packet(2, DEFINITION), packet(3, END)].concat()
}

#[test]
fn greetings_that_do_not_end_well() {
    harm_ends("huge-greeting", "protocol", "accepted here", |stream| {
        stream.write_all(b"\xff\xff\xff\0")?;
        flood(stream, 0, &[0x0a; 1000])
    });
    harm_ends("dripping-greeting", "connect", "its greeting", |stream| {
        stream.write_all(b"\xff\xff\x0f\0")?;
        drip(stream, b"\x0a")
    });
    harm_ends("misnumbered-login", "protocol", "number 7", |stream| {
        stream.write_all(&greeting())?;
        heard(stream)?;
        stream.write_all(&packet(7, OK))?;
        heard(stream).map(drop)
    });
    harm_ends("dripping-login", "connect", "the login", |stream| {
        stream.write_all(&greeting())?;
        heard(stream)?;
        stream.write_all(b"\xff\xff\x0f\x02")?;
        drip(stream, b"\0")
    });
}

/// Closed after every byte of the greeting and of the OK.
#[test]
fn a_handshake_cut_anywhere() {
    for cut in 0..=greeting().len() {
        let fake = harmful(&format!("cut-{cut}"), move |stream| {
            stream.write_all(&greeting()[..cut])?;
            stream.shutdown(std::net::Shutdown::Write)?;
            heard(stream).map(drop)
        });
        ends(
            "a cut greeting",
            &hurried(&fake.path),
            "server_gone",
            "closed",
        );
    }
    for cut in 0..packet(2, OK).len() {
        let fake = harmful(&format!("cut-ok-{cut}"), move |stream| {
            stream.write_all(&greeting())?;
            heard(stream)?;
            stream.write_all(&packet(2, OK)[..cut])
        });
        ends("a cut OK", &hurried(&fake.path), "server_gone", "closed");
    }
}

#[test]
fn logins_without_an_end() {
    harm_ends("switches", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        for number in 1.. {
            heard(stream)?;
            let switch = b"\xfemysql_native_password\x0001234567890123456789\0";
            stream.write_all(&packet(number * 2, switch))?;
        }
        Ok(())
    });
    harm_ends("more-data", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        heard(stream)?;
        let switch = b"\xfecaching_sha2_password\x0001234567890123456789\0";
        stream.write_all(&packet(2, switch))?;
        heard(stream)?;
        flood(stream, 4, b"\x01\x03")
    });
    harm_ends("huge-login-error", "protocol", "accepted here", |stream| {
        stream.write_all(&greeting())?;
        heard(stream)?;
        stream.write_all(&error(2, 1045, &"\x01".repeat((1 << 24) - 20)))
    });
}

#[test]
fn what_comes_before_the_load_without_an_end() {
    harm_ends("statuses", "protocol", "more rows than", |stream| {
        let_in(stream)?;
        while !heard(stream)?.starts_with(b"\x03SHOW") {
            stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?;
        }
        stream.write_all(&head_of_result())?;
        flood(stream, 4, b"\x01a\x01b")
    });
    harm_ends("prepares", "connect", "preparing", |stream| {
        let_in(stream)?;
        heard(stream)?;
        stream.write_all(&packet(1, b"\0\x01\0\0\0\xff\xff\xff\xff\0\0\0"))?;
        flood(stream, 2, &vec![0; 50_000])
    });
}

#[test]
fn results_without_an_end() {
    for (driver, work) in [
        ("epoll", "skip"),
        ("epoll", "touch"),
        ("epoll", "decode"),
        ("io_uring", "skip"),
    ] {
        for length in [0, 2, 60_000] {
            let name = format!("rows-{driver}-{work}-{length}");
            let row = vec![0; length];
            let fake = harmful(&name, move |stream| {
                until_queried(stream)?;
                stream.write_all(&head_of_result())?;
                flood(stream, 4, &row)
            });
            let mut job = hurried(&fake.path);
            job["client_work"] = work.into();
            job["driver"] = driver.into();
            let failure = bounded_failure(&name, &job);
            // Decoding finds that a row of zeros is longer than its column; a kernel may have no io_uring.
            let or = match (driver, work) {
                ("io_uring", _) => "interface",
                (_, "decode") => "protocol",
                _ => "stalled",
            };
            assert!(
                ["stalled", or].iter().any(|code| failure["code"] == *code),
                "{failure}"
            );
        }
    }
}

#[test]
fn answers_that_lie_about_themselves() {
    harm_ends("many-columns", "protocol", "impossible number", |stream| {
        until_queried(stream)?;
        stream.write_all(&packet(1, b"\xfd\0\0\x10"))?;
        flood(stream, 2, DEFINITION)
    });
    harm_ends(
        "definitions",
        "protocol",
        "not the one announced",
        |stream| {
            until_queried(stream)?;
            stream.write_all(&packet(1, b"\x02"))?;
            flood(stream, 2, DEFINITION)
        },
    );
    harm_ends("results", "stalled", "waited more than", |stream| {
        until_queried(stream)?;
        flood(stream, 1, b"\0\0\0\x0a\0\0\0")
    });
    harm_ends(
        "a-dripping-answer",
        "stalled",
        "waited more than",
        |stream| {
            until_queried(stream)?;
            stream.write_all(b"\xff\xff\x0f\x01")?;
            drip(stream, b"\0")
        },
    );
    harm_ends("a-huge-error", "protocol", "accepted here", |stream| {
        until_queried(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat((1 << 24) - 20)))
    });
    harm_ends("a-long-error", "server_error", "1064", |stream| {
        until_queried(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat(1 << 19)))
    });
    harm_ends("a-huge-ok", "protocol", "accepted here", |stream| {
        until_queried(stream)?;
        stream.write_all(&packet(1, &vec![0; (1 << 24) - 2]))
    });
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
fn server_tls() -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem"));
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.expect("a certificate")],
            key.expect("its key"),
        )
        .expect("they belong together")
}

/// Lets the client in as far as TLS goes.
fn encrypted(stream: &mut UnixStream, config: &Arc<ServerConfig>) -> io::Result<ServerConnection> {
    stream.write_all(&offering_tls())?;
    heard(stream)?;
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(stream)?;
    }
    Ok(tls)
}

#[test]
fn the_end_of_a_tls_session_is_the_end() {
    let config = Arc::new(server_tls());
    for (name, more, code, words) in [
        ("after-close", true, "tls", "after ending"),
        (
            "closed-and-held",
            false,
            "server_gone",
            "the end of its TLS",
        ),
    ] {
        let config = Arc::clone(&config);
        let fake = harmful(name, move |stream| {
            let mut tls = encrypted(stream, &config)?;
            tls.send_close_notify();
            tls.write_tls(stream)?;
            if more {
                flood(stream, 0, b"more, and more")
            } else {
                // The socket stays open until the engine has closed it.
                io::copy(stream, &mut io::sink()).map(drop)
            }
        });
        let mut job = hurried(&fake.path);
        job["session"] = json!({"tls": {}});
        job["connect_timeout_ns"] = 20_000_000_000_u64.into();
        job["stall_timeout_ns"] = 20_000_000_000_u64.into();
        ends(name, &job, code, words);
    }
}

#[test]
fn garbage_where_tls_should_begin() {
    let offering = offering_tls();
    for (name, garbage, fragment) in [
        (
            "garbage",
            &b"no TLS at all, but long enough to be looked at"[..],
            "TLS with",
        ),
        ("a-packet", b"\x07\0\0\x02\0\0\0\x02\0\0\0", "TLS with"),
    ] {
        let offering = offering.clone();
        let fake = harmful(name, move |stream| {
            stream.write_all(&offering)?;
            heard(stream)?;
            stream.write_all(garbage)?;
            thread::sleep(Duration::from_secs(2));
            Ok(())
        });
        let mut job = hurried(&fake.path);
        job["session"] = json!({"tls": {}});
        ends(name, &job, "tls", fragment);
    }
}

/// Pass by the next command's frame.
fn heard_framed(stream: &mut UnixStream) -> io::Result<()> {
    // Three bytes of length, one of number, three of the length before compression.
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let mut framed = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut framed)
}

#[test]
fn compressed_frames_that_lie_or_swell() {
    let mut codec = Codec::new(Algorithm::Zlib { level: 6 }).expect("a codec");
    let mut lie = Vec::new();
    codec.frame(1, &packet(1, &[b'a'; 500]), &mut lie);
    lie[4..7].copy_from_slice(&[0xff; 3]);
    // Rows without bytes: 16 MiB of them in 16 KiB, a whole round of frames' numbers.
    let mut head = Vec::new();
    codec.frame(1, &head_of_result(), &mut head);
    let mut swelling = Vec::new();
    codec.frame(0, &vec![0; 0xFF_FFFC], &mut swelling);
    let rounds: Vec<u8> = (0..=255_u8)
        .flat_map(|number| {
            swelling[3] = number.wrapping_add(2);
            swelling.clone()
        })
        .collect();
    let (lie, swell) = (lie.leak(), [head, rounds].concat().leak());
    for (name, sent, code, fragment) in [
        ("a-lie", &*lie, "protocol", "compressed frame"),
        ("a-bomb", &*swell, "stalled", "waited more than"),
    ] {
        let fake = harmful(name, move |stream| {
            let mut codec = Codec::new(Algorithm::Zlib { level: 6 })?;
            let_in(stream)?;
            // The status of the session is requested, then the first statement comes.
            heard_framed(stream)?;
            let mut answer = Vec::new();
            codec.frame(1, &no_status(), &mut answer);
            stream.write_all(&answer)?;
            heard_framed(stream)?;
            stream.write_all(sent)?;
            heard_framed(stream)
        });
        let mut job = hurried(&fake.path);
        job["session"] = json!({"compression": {"algorithm": "zlib"}});
        job["client_work"] = "skip".into();
        job["workload"] = json!({"kind": "oltp_read_only", "db_ps_mode": "disable"});
        ends(name, &job, code, fragment);
    }
}
