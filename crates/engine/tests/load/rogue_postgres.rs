//! The messages of a malicious PostgreSQL server, and tests of attacks that only this protocol allows.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::malice::{
    check_failure, drip, impatient_job, rogue_server, send_forever, with_needed_limits,
};

/// A message of this type.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[kind][..], &length, body].concat()
}

pub(crate) fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

/// The answer to a bind of a statement that returns one row.
pub(crate) fn answer() -> Vec<u8> {
    [
        message(b'2', b""),
        message(b'D', b"\0\x01\0\0\0\x01a"),
        message(b'C', b"SELECT 1\0"),
        ready(),
    ]
    .concat()
}

pub(crate) fn impatient_postgres_job(path: &str) -> Value {
    let mut job = impatient_job(path);
    job["protocol"] = "postgresql".into();
    job
}

/// Read a message without a type: the client's first message, or its request for TLS.
pub(crate) fn read_body(stream: &mut (impl Read + ?Sized)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn read_message(stream: &mut (impl Read + ?Sized)) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    Ok((kind[0], read_body(stream)?))
}

/// Serve from the startup to the first Sync after a Bind, which is read but not answered.
pub(crate) fn serve_until_sync(stream: &mut (impl Read + Write + ?Sized)) -> io::Result<()> {
    read_body(stream)?;
    stream.write_all(&message(b'R', &[0; 4]))?;
    stream.write_all(&ready())?;
    let mut bound = false;
    loop {
        match read_message(stream)?.0 {
            b'P' => stream.write_all(&message(b'1', b""))?,
            b'Q' => stream.write_all(&[message(b'C', b"SELECT 0\0"), ready()].concat())?,
            b'S' if bound => return Ok(()),
            b'S' => stream.write_all(&ready())?,
            b'B' => bound = true,
            _ => {}
        }
    }
}

/// As `check_failure`, for a server that calls `attack` with each connection.
#[track_caller]
fn check_rogue(
    (name, session): (&str, Value),
    code: &str,
    fragment: &str,
    attack: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = rogue_server(&format!("pg-{name}"), attack);
    let mut job = impatient_postgres_job(&fake.path);
    job["session"] = session;
    check_failure(name, &job, &[code], fragment);
}

/// An authentication message with this code.
fn authentication_message(code: u8, rest: &[u8]) -> Vec<u8> {
    message(b'R', &[&[0, 0, 0, code], rest].concat())
}

#[test]
fn malicious_logins() {
    let plain = || json!({});
    check_rogue(
        ("statuses", plain()),
        "protocol",
        "without an end",
        |stream| {
            read_body(stream)?;
            send_forever(stream, &message(b'S', b"a\0b\0").repeat(1000))
        },
    );
    check_rogue(
        ("notices", plain()),
        "protocol",
        "without an end",
        |stream| {
            read_body(stream)?;
            send_forever(stream, &message(b'N', b"\0").repeat(1000))
        },
    );
    check_rogue(("huge", plain()), "protocol", "accepted here", |stream| {
        read_body(stream)?;
        send_forever(stream, b"E\x3f\0\0\0")
    });
    check_rogue(
        ("ready-at-once", plain()),
        "protocol",
        "does not belong",
        |stream| {
            read_body(stream)?;
            stream.write_all(&ready())?;
            read_body(stream).map(drop)
        },
    );
    check_rogue(("dripping", plain()), "connect", "the login", |stream| {
        read_body(stream)?;
        stream.write_all(b"E\0\0\xff\0")?;
        drip(stream, b"S")
    });
}

#[test]
fn invalid_answers_to_the_request_for_tls() {
    check_rogue(
        ("silent-about-tls", json!({"tls": {}})),
        "connect",
        "request for TLS",
        |stream| {
            read_body(stream)?;
            read_message(stream).map(drop)
        },
    );
    check_rogue(
        ("more-than-s", json!({"tls": {}})),
        "protocol",
        "end of a step",
        |stream| {
            read_body(stream)?;
            stream.write_all(&[b"S".to_vec(), authentication_message(0, b"")].concat())?;
            read_message(stream).map(drop)
        },
    );
    check_rogue(
        ("no-tls", json!({"tls": {}})),
        "tls",
        "offers no TLS",
        |stream| {
            read_body(stream)?;
            stream.write_all(b"N")?;
            read_message(stream).map(drop)
        },
    );
}

/// The server requests the password in ways that the protocol does not allow.
#[test]
fn malicious_requests_for_the_password() {
    let plain = || json!({});
    check_rogue(("impostor", plain()), "auth", "did not prove", |stream| {
        read_body(stream)?;
        stream.write_all(&authentication_message(10, b"SCRAM-SHA-256\0\0"))?;
        read_message(stream)?;
        stream.write_all(&authentication_message(0, b""))?;
        read_message(stream).map(drop)
    });
    check_rogue(("busy", plain()), "auth", "4294967295 rounds", |stream| {
        read_body(stream)?;
        stream.write_all(&authentication_message(10, b"SCRAM-SHA-256\0\0"))?;
        let (_, body) = read_message(stream)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let nonce = text.split("r=").nth(1).unwrap_or_default();
        let challenge = format!("r={nonce}x,s=c2FsdA==,i=4294967295");
        stream.write_all(&authentication_message(11, challenge.as_bytes()))?;
        read_message(stream).map(drop)
    });
    check_rogue(
        ("again", plain()),
        "protocol",
        "out of its order",
        |stream| {
            read_body(stream)?;
            loop {
                stream.write_all(&authentication_message(5, b"salt"))?;
                read_message(stream)?;
            }
        },
    );
    check_rogue(("kerberos", plain()), "auth", "Kerberos V5", |stream| {
        read_body(stream)?;
        stream.write_all(&authentication_message(2, b""))?;
        read_message(stream).map(drop)
    });
}

/// The connection is closed after each number of bytes of the messages that complete a login.
#[test]
fn a_login_cut_anywhere() {
    let login_end = [
        authentication_message(0, b""),
        message(b'K', &[0; 8]),
        ready(),
    ]
    .concat();
    for cut in 0..login_end.len() {
        let login_end = login_end.clone();
        let fake = rogue_server(&format!("pg-cut-{cut}"), move |stream| {
            read_body(stream)?;
            stream.write_all(&login_end[..cut])
        });
        let job = impatient_postgres_job(&fake.path);
        check_failure("a cut login", &job, &["server_gone"], "closed");
    }
}

/// Messages that a server may send unrequested are accepted wherever they come.
#[test]
fn unrequested_notices_are_accepted() {
    let unrequested = || {
        [
            message(b'N', b"SNOTICE\0\0"),
            message(b'S', b"TimeZone\0UTC\0"),
            message(b'A', b"\0\0\0\x01c\0\0"),
        ]
        .concat()
    };
    let fake = rogue_server("pg-notices", move |stream| {
        read_body(stream)?;
        let login_end = [
            authentication_message(0, b""),
            unrequested(),
            ready(),
            unrequested(),
        ];
        stream.write_all(&login_end.concat())?;
        loop {
            let reply = match read_message(stream)?.0 {
                b'P' => message(b'1', b""),
                b'Q' => [message(b'C', b"SELECT 0\0"), ready()].concat(),
                b'B' => message(b'2', b""),
                b'E' => message(b'C', b"SELECT 0\0"),
                b'S' => ready(),
                _ => return Ok(()),
            };
            stream.write_all(&[unrequested(), reply, unrequested()].concat())?;
        }
    });
    let mut job = impatient_postgres_job(&fake.path);
    // Long enough for a busy machine to complete a transaction.
    job["measure_ns"] = 2_000_000_000_u64.into();
    let events = crate::process::success(&with_needed_limits(&job, &[]));
    let finished = events.last().expect("the engine writes events");
    assert!(finished["transactions"].as_u64() > Some(0), "{finished}");
}
