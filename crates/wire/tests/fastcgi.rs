//! A reply over FastCGI means the same in any split and in any records; a request contains its parameters; garbage never causes a
//! panic.

use howfar_wire::fastcgi::{End, Malformed, ProtocolStatus, Reply, Response, request};
use proptest::prelude::*;

fn record(out: &mut Vec<u8>, kind: u8, padding: u8, content: &[u8]) {
    let [high, low] = (content.len() as u16).to_be_bytes();
    out.extend_from_slice(&[1, kind, 0, 1, high, low, padding, 0]);
    out.extend_from_slice(content);
    out.resize(out.len() + usize::from(padding), 0xA5);
}

/// Feed `stream` in pieces of the given sizes, repeated as needed; returns whether the reply has ended.
fn feed(reply: &mut Reply, mut stream: &[u8], sizes: &[usize]) -> Result<bool, Malformed> {
    let mut ended = false;
    for &size in sizes.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (piece, rest) = stream.split_at(size.min(stream.len()));
        stream = rest;
        ended = reply.feed(piece)?;
        assert!(!ended || stream.is_empty(), "the reply ended early");
    }
    Ok(ended)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..60, 1..8)
}

fn reported() -> impl Strategy<Value = Vec<(String, u64)>> {
    prop::collection::btree_map("[a-z0-9_]{1,40}", 0_u64..1 << 63, 0..8)
        .prop_map(|map| map.into_iter().collect())
}

/// The headers of a response, with `end` as the line ending.
fn headers(status: Option<u16>, reported: &[(String, u64)], end: &str) -> String {
    let mut lines = vec!["Content-type: text/html; charset=UTF-8".to_owned()];
    lines.extend(status.map(|status| format!("Status: {status} Some Words")));
    if !reported.is_empty() {
        let pairs: Vec<String> = reported
            .iter()
            .map(|(name, number)| format!("{name}={number}"))
            .collect();
        lines.push(format!("X-Howfar-Page: {}", pairs.join(",")));
    }
    lines.join(end) + end + end
}

proptest! {
    #[test]
    fn a_reply_is_read_whatever_its_records_and_its_pieces(
        status in prop::option::of(100_u16..600),
        reported in reported(),
        end in prop_oneof![Just("\r\n"), Just("\n")],
        body in prop::collection::vec(any::<u8>(), 0..2000),
        errors in prop::collection::vec(any::<u8>(), 0..20),
        parts in prop::collection::vec((1_usize..300, any::<u8>()), 1..8),
        tail in 0_usize..100,
        sizes in sizes(),
        application in any::<u32>(),
    ) {
        let mut content = headers(status, &reported, end).into_bytes();
        content.extend_from_slice(&body);
        let mut stream = Vec::new();
        let mut rest = &content[..];
        for &(size, padding) in parts.iter().cycle() {
            let (part, behind) = rest.split_at(size.min(rest.len()));
            record(&mut stream, 6, padding, part);
            rest = behind;
            if part.is_empty() {
                break;
            }
            if !errors.is_empty() {
                record(&mut stream, 7, padding, &errors);
            }
        }
        let mut last = application.to_be_bytes().to_vec();
        last.resize(8, 0);
        record(&mut stream, 3, parts[0].1, &last);

        let mut reply = Reply::new(tail);
        // Twice: no state of the first request may be left in the second.
        for _ in 0..2 {
            reply.begin();
            prop_assert_eq!(feed(&mut reply, &stream, &sizes), Ok(true));
            let Response { status: read, reported: heard, .. } = reply.response().expect("headers").clone();
            prop_assert_eq!(read, status.unwrap_or(200));
            prop_assert_eq!(&heard, &reported);
            prop_assert_eq!(reply.body_bytes(), body.len() as u64);
            prop_assert_eq!(reply.body_begins(), &body[..body.len().min(800)]);
            prop_assert_eq!(reply.body_ends(), &body[body.len().saturating_sub(tail)..]);
            prop_assert!(reply.errors_begin().starts_with(&errors));
            let end = End { protocol: ProtocolStatus::Complete, application };
            prop_assert_eq!(reply.end(), Some(end));
        }
    }

    #[test]
    fn garbage_never_panics(stream in prop::collection::vec(any::<u8>(), 0..400), sizes in sizes()) {
        in_any_pieces(&stream, &sizes)?;
    }

    /// Records with valid or nearly valid heads and any content, of any type, cut anywhere.
    #[test]
    fn records_of_garbage_never_panic(
        records in prop::collection::vec((0_u8..12, any::<u8>(), garbage()), 0..12),
        flipped in prop::option::of((any::<prop::sample::Index>(), 0_u8..8)),
        kept in 0.0..1.2_f64,
        sizes in sizes(),
    ) {
        let mut stream = Vec::new();
        for (kind, padding, content) in &records {
            // Half of them on the stream of the response.
            record(&mut stream, if *kind < 6 { 6 } else { kind - 4 }, *padding, content);
        }
        stream.truncate((stream.len() as f64 * kept) as usize);
        if let Some((at, bit)) = flipped.filter(|_| !stream.is_empty()) {
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
        }
        in_any_pieces(&stream, &sizes)?;
    }

    #[test]
    fn a_request_holds_its_parameters(
        parameters in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..300)),
            0..20,
        ),
        long in 0_usize..200_000,
        keep in any::<bool>(),
    ) {
        let mut parameters = parameters;
        parameters.push((b"LONG".to_vec(), vec![b'x'; long]));
        let mut out = Vec::new();
        let pairs = parameters.iter().map(|(name, value)| (&name[..], &value[..]));
        request(&mut out, pairs, keep);
        prop_assert_eq!(read_request(&out), (keep, parameters));
    }
}

/// Contents of records: arbitrary bytes, or something close to the headers of a page.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "Status: [0-9]{0,6} ?[a-z]{0,3}",
        "X-Howfar-Page: [a-z_=0-9, ]{0,60}",
        "[A-Za-z-]{0,9}:? ?[ -~]{0,20}",
        Just(String::new()),
    ];
    let end = prop_oneof![Just("\r\n"), Just("\n"), Just("\r")];
    let lines = prop::collection::vec((line, end), 0..6).prop_map(|lines| {
        let lines = lines.into_iter().map(|(line, end)| line + end);
        lines.collect::<String>().into_bytes()
    });
    prop_oneof![
        lines,
        prop::collection::vec(any::<u8>(), 0..60),
        Just(vec![0; 8])
    ]
}

/// Check that one piece and many have the same outcome: an end, an error, or a wait for more.
fn in_any_pieces(stream: &[u8], sizes: &[usize]) -> Result<(), TestCaseError> {
    let mut one = Reply::new(9);
    let whole = one.feed(stream);
    let mut many = Reply::new(9);
    let (mut ended, mut rest) = (Ok(false), stream);
    for &size in sizes.iter().cycle() {
        let (piece, behind) = rest.split_at(size.min(rest.len()));
        rest = behind;
        if piece.is_empty() || ended.is_err() {
            break;
        }
        ended = many.feed(piece);
    }
    prop_assert_eq!(&whole, &ended);
    if whole.is_ok() {
        prop_assert_eq!(one.response(), many.response());
        prop_assert_eq!(one.body_ends(), many.body_ends());
        prop_assert_eq!(one.end(), many.end());
    }
    Ok(())
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Parse a request as an application does.
fn read_request(mut stream: &[u8]) -> (bool, Pairs) {
    let mut records = Vec::new();
    while !stream.is_empty() {
        let (head, rest) = stream.split_at(8);
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        assert_eq!((head[0], &head[2..4]), (1, &[0, 1][..]));
        let (content, rest) = rest.split_at(length);
        records.push((head[1], content));
        stream = &rest[usize::from(head[6])..];
    }
    let (kind, begin) = records.remove(0);
    assert_eq!((kind, &begin[..2], begin.len()), (1, &[0, 1][..], 8));
    assert_eq!(records.pop(), Some((5, &[][..])), "no body");
    assert_eq!(records.pop(), Some((4, &[][..])), "the parameters end");
    let mut content = Vec::new();
    for (kind, part) in records {
        assert!(kind == 4 && !part.is_empty());
        content.extend_from_slice(part);
    }
    let mut rest = &content[..];
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let name = length(&mut rest);
        let value = length(&mut rest);
        let (name, behind) = rest.split_at(name);
        let (value, behind) = behind.split_at(value);
        pairs.push((name.to_vec(), value.to_vec()));
        rest = behind;
    }
    (begin[2] & 1 == 1, pairs)
}

fn length(rest: &mut &[u8]) -> usize {
    let bytes = if rest[0] < 0x80 { 1 } else { 4 };
    let (length, behind) = rest.split_at(bytes);
    *rest = behind;
    match *length {
        [short] => usize::from(short),
        _ => (u32::from_be_bytes(length.try_into().expect("four")) & !(1 << 31)) as usize,
    }
}
