//! The split of the replies of Redis and Memcached does not change their meaning, and no bytes make the codecs panic.

use howfar_wire::keyvalue::{CommandCounts, ExpectReplies as _, Expected, Malformed};
use howfar_wire::memcached::{self, Dialect};
use howfar_wire::redis::{self, Decoder, Value};
use proptest::prelude::*;

/// `bytes` in pieces of the given sizes, repeated as needed.
fn cut<'a>(mut bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    sizes.iter().cycle().map_while(move |&size| {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..40, 1..8)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop::collection::vec(any::<u8>(), 0..60)
}

// ---------------------------------------------------------------- values

fn value() -> impl Strategy<Value = Value> {
    let word = "[a-zA-Z0-9 ]{0,20}".prop_map(String::into_bytes);
    let leaf = prop_oneof![
        Just(Value::Null),
        word.clone().prop_map(Value::Simple),
        word.prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        any::<bool>().prop_map(Value::Boolean),
        (-1e300_f64..1e300).prop_map(Value::Double),
        "-?[1-9][0-9]{0,40}".prop_map(|digits| Value::BigNumber(digits.into_bytes())),
        bytes().prop_map(Value::Bulk),
        (any::<[u8; 3]>(), bytes()).prop_map(|(kind, text)| Value::Verbatim(kind, text)),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        let elements = prop::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            elements.clone().prop_map(Value::Array),
            elements.prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    let mut line = |first: char, text: &[u8]| {
        out.push(first as u8);
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    match value {
        Value::Null => line('_', b""),
        Value::Simple(text) => line('+', text),
        Value::Error(text) => line('-', text),
        Value::Integer(number) => line(':', number.to_string().as_bytes()),
        Value::Boolean(boolean) => line('#', if *boolean { b"t" } else { b"f" }),
        Value::Double(number) => line(',', number.to_string().as_bytes()),
        Value::BigNumber(digits) => line('(', digits),
        Value::Bulk(text) => {
            line('$', text.len().to_string().as_bytes());
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Value::Verbatim(kind, text) => {
            line('=', (text.len() + 4).to_string().as_bytes());
            out.extend_from_slice(kind);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Value::Array(values) | Value::Set(values) | Value::Push(values) => {
            let first = match value {
                Value::Array(_) => '*',
                Value::Set(_) => '~',
                _ => '>',
            };
            line(first, values.len().to_string().as_bytes());
            for element in values {
                write_value(element, out);
            }
        }
        Value::Map(pairs) => {
            line('%', pairs.len().to_string().as_bytes());
            for (key, value) in pairs {
                write_value(key, out);
                write_value(value, out);
            }
        }
    }
}

fn decode_all<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Value>, Option<Malformed>) {
    let (mut decoder, mut found) = (Decoder::new(1 << 20), Vec::new());
    for mut piece in pieces {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(value)) => found.push(value),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

// ---------------------------------------------------------------- replies to a request

/// A command and the result of its reply.
#[derive(Debug, Clone)]
enum Exchange {
    Get(Option<Vec<u8>>),
    MultiGet(Vec<Option<Vec<u8>>>),
    Write,
    Refused(Expected),
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let value = prop::option::of(bytes());
    prop_oneof![
        value.clone().prop_map(Exchange::Get),
        prop::collection::vec(value, 1..5).prop_map(Exchange::MultiGet),
        Just(Exchange::Write),
        prop_oneof![
            Just(Expected::Get),
            Just(Expected::MultiGet(2)),
            Just(Expected::Write)
        ]
        .prop_map(Exchange::Refused),
    ]
}

impl Exchange {
    fn expected_reply(&self) -> Expected {
        match self {
            Self::Get(_) => Expected::Get,
            Self::MultiGet(keys) => Expected::MultiGet(keys.len() as u16),
            Self::Write => Expected::Write,
            Self::Refused(request) => *request,
        }
    }

    fn values(&self) -> &[Option<Vec<u8>>] {
        match self {
            Self::Get(value) => std::slice::from_ref(value),
            Self::MultiGet(values) => values,
            _ => &[],
        }
    }

    /// Write the reply in RESP2 or RESP3.
    fn write_resp(&self, is_resp3: bool, out: &mut Vec<u8>) {
        if let Self::MultiGet(values) = self {
            out.extend_from_slice(format!("*{}\r\n", values.len()).as_bytes());
        }
        for value in self.values() {
            match value {
                Some(value) => write_value(&Value::Bulk(value.clone()), out),
                None => out.extend_from_slice(if is_resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            }
        }
        match self {
            Self::Write => out.extend_from_slice(b"+OK\r\n"),
            Self::Refused(_) => out.extend_from_slice(b"-MOVED 7 h:1\r\n"),
            _ => {}
        }
    }

    /// Write the reply in a dialect of Memcached.
    fn write_memcached(&self, dialect: Dialect, out: &mut Vec<u8>) {
        let is_text = dialect == Dialect::Text;
        for value in self.values().iter().flatten() {
            let header = if is_text {
                format!("VALUE k 0 {}\r\n", value.len())
            } else {
                format!("VA {} kk\r\n", value.len())
            };
            out.extend_from_slice(header.as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(match (self, is_text) {
            (Self::Get(_) | Self::MultiGet(_), true) => b"END\r\n",
            (Self::Get(None), false) => b"EN\r\n",
            (Self::Get(Some(_)), false) => b"",
            (Self::MultiGet(_), false) => b"MN\r\n",
            (Self::Write, true) => b"STORED\r\n",
            (Self::Write, false) => b"HD\r\n",
            (Self::Refused(Expected::MultiGet(_)), false) => b"SERVER_ERROR busy\r\nMN\r\n",
            (Self::Refused(_), _) => b"SERVER_ERROR busy\r\n",
        });
    }
}

/// The totals of exchanges: counts of reading commands, writing commands, keys found and keys not found; errors; the values' bytes.
type Totals = ([u32; 4], usize, Vec<u8>);

fn expected_totals(exchanges: &[Exchange]) -> Totals {
    let (mut counts, mut errors, mut bytes) = ([0; 4], 0, Vec::new());
    for exchange in exchanges {
        match exchange {
            Exchange::Get(_) | Exchange::MultiGet(_) => counts[0] += 1,
            Exchange::Write => counts[1] += 1,
            Exchange::Refused(_) => errors += 1,
        }
        for value in exchange.values() {
            counts[if value.is_some() { 2 } else { 3 }] += 1;
            bytes.extend(value.iter().flatten());
        }
    }
    (counts, errors, bytes)
}

fn counted_totals(counts: &CommandCounts, bytes: Vec<u8>) -> Totals {
    let sums = [counts.reads, counts.writes, counts.hits, counts.misses];
    (sums, counts.errors.len(), bytes)
}

proptest! {
    #[test]
    fn written_values_are_decoded_in_any_split(values in prop::collection::vec(value(), 1..5), sizes in sizes()) {
        let mut stream = Vec::new();
        for value in &values {
            write_value(value, &mut stream);
        }
        prop_assert_eq!(decode_all(cut(&stream, &sizes)), (values, None));
    }

    #[test]
    fn replies_of_redis_are_counted_in_any_split(
        exchanges in prop::collection::vec(exchange(), 1..8), is_resp3 in any::<bool>(), sizes in sizes(),
    ) {
        let (mut stream, mut replies) = (Vec::new(), redis::Replies::default());
        replies.begin();
        for exchange in &exchanges {
            exchange.write_resp(is_resp3, &mut stream);
            replies.expect(exchange.expected_reply());
        }
        let (mut bytes, mut bytes_left) = (Vec::new(), stream.len());
        for piece in cut(&stream, &sizes) {
            bytes_left -= piece.len();
            let ended = replies.feed(piece, |part| bytes.extend_from_slice(part)).expect("the replies are valid");
            prop_assert_eq!(ended, bytes_left == 0);
        }
        prop_assert_eq!(counted_totals(replies.counts(), bytes), expected_totals(&exchanges));
    }

    #[test]
    fn replies_of_memcached_are_counted_in_any_split(
        exchanges in prop::collection::vec(exchange(), 1..8), is_meta in any::<bool>(), sizes in sizes(),
    ) {
        let dialect = if is_meta { Dialect::Meta } else { Dialect::Text };
        let (mut stream, mut replies) = (Vec::new(), memcached::Replies::new(dialect));
        replies.begin();
        for exchange in &exchanges {
            exchange.write_memcached(dialect, &mut stream);
            replies.expect(exchange.expected_reply());
        }
        let (mut bytes, mut bytes_left) = (Vec::new(), stream.len());
        for piece in cut(&stream, &sizes) {
            bytes_left -= piece.len();
            let ended = replies.feed(piece, |part| bytes.extend_from_slice(part)).expect("the replies are valid");
            prop_assert_eq!(ended, bytes_left == 0);
        }
        prop_assert_eq!(counted_totals(replies.counts(), bytes), expected_totals(&exchanges));
    }

    #[test]
    fn the_split_of_any_bytes_does_not_change_their_values(
        stream in "([+:$*_#,(!=~%|>-]?(-?[0-9]{0,3}|VA|VALUE k 0|END|MN)( [0-9])?(\r\n|\n)?){0,20}", sizes in sizes(),
    ) {
        let stream = stream.as_bytes();
        prop_assert_eq!(decode_all(cut(stream, &[stream.len().max(1)])), decode_all(cut(stream, &sizes)));
    }
}
