//! Checks of the codecs on any bytes. Each panics when something is wrong; not here: the fuzzer, and where the bytes come from.
//!
//! The first bytes of the input say how (settings, sizes of the pieces); the rest is what a server is supposed to have sent.

use std::cell::RefCell;

use howfar_wire::mysql::auth::{self, Channel, Exchange, KeySource, Secrecy};
use howfar_wire::mysql::compress::{Algorithm, Codec, FRAME_HEADER_LEN, Unpacker};
use howfar_wire::mysql::handshake::{Account, AuthSwitch, Greeting, RequestedFeatures};
use howfar_wire::mysql::reply::{self, OkPacket, Prepared};
use howfar_wire::mysql::row::{self, RowHandling};
use howfar_wire::mysql::{Answer, Framer, Malformed, Outcome, ServerError};

/// Settings, sizes of two pieces that take turns, and the stream. `None` where the input is too short for that.
fn split(data: &[u8]) -> Option<(u8, [usize; 2], &[u8])> {
    let (&[settings, one, other], stream) = data.split_first_chunk::<3>()?;
    Some((
        settings,
        [one, other].map(|size| usize::from(size) + 1),
        stream,
    ))
}

/// Give `stream` to `take` in pieces until it ends or says that it is done.
fn pieces<T>(
    mut stream: &[u8],
    sizes: [usize; 2],
    mut take: impl FnMut(&[u8]) -> Option<T>,
) -> Option<T> {
    for &size in sizes.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (piece, rest) = stream.split_at(size.min(stream.len()));
        stream = rest;
        if let Some(end) = take(piece) {
            return Some(end);
        }
    }
    None
}

/// What an answer came to: its end, or what is wrong with it. Whole is only what ends with the stream.
type Ended = Option<Result<Outcome, Malformed>>;

fn outcome_of(stream: &[u8], sizes: [usize; 2], settings: u8, handling: &mut RowHandling) -> Ended {
    let mut answer = Answer::new(settings & 1 != 0);
    answer.begin(settings & 2 != 0);
    let types = &[3, 254, 8, 12, 5, 4, 1, 2][..usize::from(settings >> 5)];
    let mut left = stream.len();
    pieces(stream, sizes, |piece| {
        left -= piece.len();
        match answer.feed(piece, types, handling) {
            Ok(None) => None,
            Ok(Some(_)) if left > 0 => Some(Err(Malformed::Unexpected(
                "bytes follow the end of an answer",
            ))),
            Ok(Some(outcome)) => Some(Ok(outcome)),
            Err(error) => Some(Err(error)),
        }
    })
}

thread_local! {
    static WORKS: RefCell<[RowHandling; 3]> = RefCell::new([RowHandling::Skip, RowHandling::touch(), RowHandling::Decode]);
}

/// Any split of an answer means the same, whatever is done with its rows.
pub fn answer(data: &[u8]) {
    let Some((settings, sizes, stream)) = split(data) else {
        return;
    };
    WORKS.with_borrow_mut(|works| {
        let [skipped, touched, decoded] = works.each_mut().map(|handling| {
            let whole = outcome_of(stream, [stream.len().max(1); 2], settings, handling);
            let split = outcome_of(stream, sizes, settings, handling);
            assert_eq!(whole, split, "a split changes the answer");
            whole
        });
        assert_eq!(skipped, touched, "copying rows changes the answer");
        // Decoding sees more of what is wrong, and nothing else.
        if let Some(Ok(_)) = decoded {
            assert_eq!(skipped, decoded, "decoding rows changes the answer");
        }
    });
}

/// The payloads of a stream, up to what is wrong with it.
fn payloads(stream: &[u8], sizes: [usize; 2]) -> (Vec<Vec<u8>>, Option<Malformed>) {
    let mut framer = Framer::new(1 << 20);
    let mut found = Vec::new();
    let wrong = pieces(stream, sizes, |mut piece| {
        loop {
            match framer.next(&mut piece) {
                Ok(Some(payload)) => found.push(payload.to_vec()),
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    });
    (found, wrong)
}

/// Any split of a stream holds the same packets, and any packet can be looked at as anything.
pub fn packets(data: &[u8]) {
    let Some((columns, sizes, stream)) = split(data) else {
        return;
    };
    let whole = payloads(stream, [stream.len().max(1); 2]);
    assert_eq!(
        whole,
        payloads(stream, sizes),
        "a split changes the packets"
    );
    for payload in &whole.0 {
        look(payload, columns);
    }
    look(stream, columns);
}

/// Read `payload` in every way.
fn look(payload: &[u8], columns: u8) {
    let _ = reply::parse_column_type(payload);
    let _ = reply::eof_status(payload);
    let _ = OkPacket::parse(payload);
    let _ = Prepared::parse(payload);
    if let Ok(error) = ServerError::parse(payload) {
        // Each byte that is no UTF-8 becomes a character of three.
        assert!(error.message.len() + error.state.len() <= 3 * payload.len());
    }
    let mut bytes = 0;
    let mut count = |value: row::Value<'_>| {
        if let row::Value::Bytes(value) = value {
            bytes += value.len();
        }
    };
    let _ = row::decode_text(payload, usize::from(columns), &mut count);
    let types: Vec<u8> = (0..columns).map(|at| at.wrapping_mul(7)).collect();
    let _ = row::decode_binary(payload, &types, &mut count);
    assert!(bytes <= 2 * payload.len(), "more came out than went in");
}

const PASSWORD: &str = "a password of some length";

/// The parts of a login: a greeting, a change of the way to log in, and what follows.
pub fn login(data: &[u8]) {
    let Some((&settings, stream)) = data.split_first() else {
        return;
    };
    let cut = stream.iter().position(|&byte| byte == b'|');
    let (first, second) = stream.split_at(cut.unwrap_or(stream.len()));
    let second = second.get(1..).unwrap_or_default();
    if let Ok(greeting) = Greeting::parse(first) {
        answer_greeting(&greeting, settings);
    }
    let channel = match (settings >> 4) & 7 {
        0 => Channel::Private,
        1 => open(KeySource::Fetch),
        2 => open(KeySource::Known("no key")),
        3 => open(KeySource::None),
        _ => Channel::Unverified,
    };
    let secrecy = Secrecy {
        channel,
        cleartext: settings >> 7 != 0,
    };
    let Ok(switch) = AuthSwitch::parse(first) else {
        return;
    };
    let begun = Exchange::with_plugin(&switch.plugin, PASSWORD, &switch.scramble, secrecy);
    let Ok((mut exchange, proof)) = begun else {
        return;
    };
    secret(
        &proof,
        secrecy.cleartext && exchange.plugin() == auth::CLEAR,
        channel,
    );
    let mut asked = false;
    for more in second.split(|&byte| byte == b'|').take(4) {
        match exchange.handle_more_data(more, PASSWORD, secrecy) {
            Ok(Some(sent)) => {
                let may = secrecy.cleartext || channel == Channel::Private;
                secret(&sent, may, channel);
                asked = true;
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    assert!(!asked || [auth::CACHING_SHA2, auth::PARSEC].contains(&exchange.plugin()));
}

fn open(key: KeySource<'_>) -> Channel<'_> {
    Channel::Open { key }
}

/// The password itself goes only by the ways that are meant to send it, and never where anybody can read it.
fn secret(sent: &[u8], may: bool, channel: Channel<'_>) {
    let shown = sent
        .windows(PASSWORD.len())
        .any(|part| part == PASSWORD.as_bytes());
    assert!(
        !shown || (may && !matches!(channel, Channel::Open { .. })),
        "the password leaves"
    );
}

fn answer_greeting(greeting: &Greeting, settings: u8) {
    let compression = match settings & 3 {
        0 => None,
        1 => Some(Algorithm::Zlib { level: 6 }),
        _ => Some(Algorithm::Zstd { level: 3 }),
    };
    let wish = RequestedFeatures {
        tls: settings & 4 != 0,
        compression,
        multi_statements: settings & 8 != 0,
    };
    let Ok(session) = greeting.session_with(wish) else {
        return;
    };
    let begun = Exchange::with_default_plugin(&greeting.plugin, PASSWORD, &greeting.scramble);
    let (exchange, proof) = begun.expect("a greeting holds a scramble");
    let account = Account {
        user: "u",
        password: PASSWORD,
        database: "d",
    };
    let mut out = Vec::new();
    let next = session.tls_request(&mut out, 1);
    session.login(&mut out, next, &account, exchange.plugin(), &proof);
    secret(&out, false, Channel::Private);
    assert!(payloads(&out[36..], [1, 2]).1.is_some(), "numbered from 2");
}

thread_local! {
    static CODECS: RefCell<[Codec; 2]> = RefCell::new(
        [Algorithm::Zlib { level: 6 }, Algorithm::Zstd { level: 3 }]
            .map(|algorithm| Codec::new(algorithm).expect("memory for a codec")),
    );
}

/// Any split of compressed frames holds the same packets, and never more than was said.
pub fn frames(data: &[u8]) {
    let Some((settings, sizes, stream)) = split(data) else {
        return;
    };
    let (stream, said) = small(stream);
    CODECS.with_borrow_mut(|codecs| {
        let codec = &mut codecs[usize::from(settings & 1)];
        let mut unpack = |sizes: [usize; 2]| {
            let mut unpacker = Unpacker::default();
            unpacker.expect_answers(u32::from((settings >> 1) & 3));
            let mut out = Vec::new();
            let wrong = pieces(&stream, sizes, |piece| {
                unpacker.feed(codec, piece, &mut out).err()
            });
            (out, wrong)
        };
        let whole = unpack([stream.len().max(1); 2]);
        assert!(whole.0.len() <= said, "more came out than was said");
        assert_eq!(whole, unpack(sizes), "a split changes the packets");
    });
}

/// The stream with the lengths before compression kept below 64 KiB, so that the time goes to the paths and not to memory, and
/// how much it may come to.
fn small(stream: &[u8]) -> (Vec<u8>, usize) {
    let mut stream = stream.to_vec();
    let (mut at, mut said) = (0, 0);
    while let Some(head) = stream.get_mut(at..at + FRAME_HEADER_LEN) {
        head[6] = 0;
        let length =
            usize::from(head[0]) | (usize::from(head[1]) << 8) | (usize::from(head[2]) << 16);
        let before = usize::from(head[4]) | (usize::from(head[5]) << 8);
        said += if before == 0 { length } else { before };
        at += FRAME_HEADER_LEN + length;
    }
    (stream, said)
}
