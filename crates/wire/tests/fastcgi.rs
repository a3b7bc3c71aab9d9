//! The split of a FastCGI reply into pieces and records does not change its meaning; a request contains its parameters; garbage never
//! causes a panic.

use howfar_wire::fastcgi::{End, Malformed, ProtocolStatus, Reply, write_request};
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
        assert!(
            !ended || stream.is_empty(),
            "the reply ends with the last piece"
        );
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
    fn the_records_and_pieces_of_a_reply_do_not_change_its_content(
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
            let (part, tail) = rest.split_at(size.min(rest.len()));
            record(&mut stream, 6, padding, part);
            rest = tail;
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
        // The reply is read twice: no state of the first request may be left in the second.
        for _ in 0..2 {
            reply.begin();
            prop_assert_eq!(feed(&mut reply, &stream, &sizes), Ok(true));
            let response = reply.response().expect("the headers have come");
            prop_assert_eq!(response.status, status.unwrap_or(200));
            prop_assert_eq!(&response.reported, &reported);
            prop_assert_eq!(reply.body_bytes(), body.len() as u64);
            prop_assert_eq!(reply.body_start(), &body[..body.len().min(800)]);
            prop_assert_eq!(reply.body_end(), &body[body.len().saturating_sub(tail)..]);
            prop_assert!(reply.errors_start().starts_with(&errors));
            let end = End { protocol: ProtocolStatus::Complete, application };
            prop_assert_eq!(reply.end(), Some(end));
        }
    }

    #[test]
    fn garbage_never_panics(stream in prop::collection::vec(any::<u8>(), 0..400), sizes in sizes()) {
        check_any_pieces(&stream, &sizes)?;
    }

    /// Records of any type and content with valid or nearly valid headers, cut anywhere.
    #[test]
    fn records_of_garbage_never_panic(
        records in prop::collection::vec((0_u8..12, any::<u8>(), garbage()), 0..12),
        flipped in prop::option::of((any::<prop::sample::Index>(), 0_u8..8)),
        kept_share in 0.0..1.2_f64,
        sizes in sizes(),
    ) {
        let mut stream = Vec::new();
        for (kind, padding, content) in &records {
            // Half of the records belong to the response stream.
            record(&mut stream, if *kind < 6 { 6 } else { kind - 4 }, *padding, content);
        }
        stream.truncate((stream.len() as f64 * kept_share) as usize);
        if let Some((at, bit)) = flipped.filter(|_| !stream.is_empty()) {
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
        }
        check_any_pieces(&stream, &sizes)?;
    }

    #[test]
    fn a_request_contains_its_parameters(
        parameters in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..300)),
            0..20,
        ),
        long_value_bytes in 0_usize..200_000,
        keep_connection in any::<bool>(),
    ) {
        let mut parameters = parameters;
        parameters.push((b"LONG".to_vec(), vec![b'x'; long_value_bytes]));
        let mut out = Vec::new();
        let pairs = parameters.iter().map(|(name, value)| (&name[..], &value[..]));
        write_request(&mut out, pairs, keep_connection);
        prop_assert_eq!(read_request(&out), (keep_connection, parameters));
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

/// Check that one piece and many pieces have the same outcome: an end, an error, or a wait for more.
fn check_any_pieces(stream: &[u8], sizes: &[usize]) -> Result<(), TestCaseError> {
    let mut single = Reply::new(9);
    let single_outcome = single.feed(stream);
    let mut split = Reply::new(9);
    let (mut split_outcome, mut rest) = (Ok(false), stream);
    for &size in sizes.iter().cycle() {
        let (piece, tail) = rest.split_at(size.min(rest.len()));
        rest = tail;
        if piece.is_empty() || split_outcome.is_err() {
            break;
        }
        split_outcome = split.feed(piece);
    }
    prop_assert_eq!(&single_outcome, &split_outcome);
    if single_outcome.is_ok() {
        prop_assert_eq!(single.response(), split.response());
        prop_assert_eq!(single.body_end(), split.body_end());
        prop_assert_eq!(single.end(), split.end());
    }
    Ok(())
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Parse a request as an application does; returns whether the connection is kept, and the parameters.
fn read_request(mut stream: &[u8]) -> (bool, Pairs) {
    let mut records = Vec::new();
    while !stream.is_empty() {
        let (header, rest) = stream.split_at(8);
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        assert_eq!((header[0], &header[2..4]), (1, &[0, 1][..]));
        let (content, rest) = rest.split_at(length);
        records.push((header[1], content));
        stream = &rest[usize::from(header[6])..];
    }
    let (kind, begin) = records.remove(0);
    assert_eq!((kind, &begin[..2], begin.len()), (1, &[0, 1][..], 8));
    assert_eq!(records.pop(), Some((5, &[][..])), "the request has no body");
    assert_eq!(
        records.pop(),
        Some((4, &[][..])),
        "an empty record ends the parameters"
    );
    let mut content = Vec::new();
    for (kind, part) in records {
        assert!(kind == 4 && !part.is_empty());
        content.extend_from_slice(part);
    }
    let mut rest = &content[..];
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let name_bytes = read_length(&mut rest);
        let value_bytes = read_length(&mut rest);
        let (name, tail) = rest.split_at(name_bytes);
        let (value, tail) = tail.split_at(value_bytes);
        pairs.push((name.to_vec(), value.to_vec()));
        rest = tail;
    }
    (begin[2] & 1 == 1, pairs)
}

fn read_length(rest: &mut &[u8]) -> usize {
    let width = if rest[0] < 0x80 { 1 } else { 4 };
    let (length, tail) = rest.split_at(width);
    *rest = tail;
    match *length {
        [short] => usize::from(short),
        _ => {
            (u32::from_be_bytes(length.try_into().expect("the length has four bytes")) & !(1 << 31))
                as usize
        }
    }
}
