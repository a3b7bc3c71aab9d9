//! Encodes requests without a body.

use super::{BEGIN_REQUEST, MAX_CONTENT_BYTES, PARAMS, REQUEST_ID, STDIN, VERSION};

const RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;
/// Maximum bytes of a name or value.
const MAX_FIELD_BYTES: usize = (1 << 31) - 1;

/// Append a request with these parameters. `keep_connection`: ask the application to leave the connection open.
///
/// # Panics
/// If a name or a value has 2 GiB or more.
pub fn write_request<'a>(
    out: &mut Vec<u8>,
    parameters: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    keep_connection: bool,
) {
    let flags = if keep_connection { KEEP_CONNECTION } else { 0 };
    write_record(out, BEGIN_REQUEST, &[0, RESPONDER, flags, 0, 0, 0, 0, 0]);
    let mut pairs = Vec::new();
    for (name, value) in parameters {
        write_length(&mut pairs, name.len());
        write_length(&mut pairs, value.len());
        pairs.extend_from_slice(name);
        pairs.extend_from_slice(value);
    }
    // The parameters form a stream: a pair may span two records.
    for part in pairs.chunks(MAX_CONTENT_BYTES) {
        write_record(out, PARAMS, part);
    }
    write_record(out, PARAMS, &[]);
    write_record(out, STDIN, &[]);
}

/// Append a length in one byte or, from 128 on, in four with the first bit set.
fn write_length(out: &mut Vec<u8>, length: usize) {
    assert!(
        length <= MAX_FIELD_BYTES,
        "names and values are shorter than 2 GiB"
    );
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | (1 << 31)).to_be_bytes()),
    }
}

fn write_record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [request_high, request_low] = REQUEST_ID.to_be_bytes();
    let [high, low] = (content.len() as u16).to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, request_high, request_low, high, low, 0, 0]);
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        let pairs: [(&[u8], &[u8]); 2] = [(b"A", b"bc"), (b"EMPTY", b"")];
        write_request(&mut out, pairs, true);
        assert_eq!(
            out,
            [
                &[1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0][..],
                &[1, 4, 0, 1, 0, 12, 0, 0],
                b"\x01\x02Abc\x05\x00EMPTY",
                &[1, 4, 0, 1, 0, 0, 0, 0],
                &[1, 5, 0, 1, 0, 0, 0, 0],
            ]
            .concat()
        );
        out.clear();
        write_request(&mut out, [], false);
        assert_eq!(out[10], 0, "the flag KEEP_CONNECTION is clear");
    }

    #[test]
    fn lengths_from_128_on_take_four_bytes() {
        for (count, bytes) in [
            (127, &[127][..]),
            (128, &[0x80, 0, 0, 128]),
            (70_000, &[0x80, 1, 0x11, 0x70]),
        ] {
            let mut out = Vec::new();
            write_length(&mut out, count);
            assert_eq!(out, bytes);
        }
    }
}
