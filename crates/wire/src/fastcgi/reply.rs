//! An application's reply to one request, up to its end.

use super::cgi::{Cgi, MAX_EXCERPT_BYTES, Response};
use super::record::{Part, Records};
use super::{END_REQUEST, Malformed, STDERR, STDOUT};

/// Content bytes of the record that ends a request.
const END_BYTES: usize = 8;

/// How the protocol layer of the application handled a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolStatus {
    Complete,
    /// The application takes only one request at a time over a connection.
    OneAtATime,
    /// The application has run out of a resource.
    Overloaded,
    /// The application is not a responder.
    UnknownRole,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub protocol: ProtocolStatus,
    /// The application's exit status; 0 is success.
    pub application: u32,
}

/// Parses the replies to successive requests, cut anywhere. Memory does not grow with their size.
#[derive(Debug)]
pub struct Reply {
    records: Records,
    cgi: Cgi,
    /// The response stream was closed.
    is_closed: bool,
    /// The beginning of the error stream.
    errors: Vec<u8>,
    /// Bytes of the error stream.
    errors_bytes: u64,
    end_content: [u8; END_BYTES],
    end_len: usize,
    end: Option<End>,
}

impl Reply {
    /// `end_bytes`: how many of the body's last bytes are to be kept.
    pub fn new(end_bytes: usize) -> Self {
        Self {
            records: Records::default(),
            cgi: Cgi::new(end_bytes),
            is_closed: false,
            errors: Vec::new(),
            errors_bytes: 0,
            end_content: [0; END_BYTES],
            end_len: 0,
            end: None,
        }
    }

    /// Prepare for the reply to the next request; memory is kept.
    pub fn begin(&mut self) {
        self.records = Records::default();
        self.cgi.clear();
        self.is_closed = false;
        self.errors.clear();
        self.errors_bytes = 0;
        self.end_len = 0;
        self.end = None;
    }

    /// Consume received bytes; true when the request has ended and nothing more is due.
    ///
    /// # Errors
    /// If the input does not follow the protocol.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<bool, Malformed> {
        while let Some(part) = self.records.next(&mut input)? {
            match part {
                Part::Begin(..) if self.end.is_some() => {
                    return Err(Malformed::Unexpected("a record behind the end"));
                }
                Part::Begin(STDOUT, 0) => self.is_closed = true,
                Part::Begin(STDOUT, _) if self.is_closed => {
                    return Err(Malformed::Unexpected("more of a response that was closed"));
                }
                Part::Begin(STDOUT | STDERR, _) => {}
                Part::Begin(END_REQUEST, length) => {
                    if usize::from(length) != END_BYTES {
                        return Err(Malformed::End(length));
                    }
                }
                Part::Begin(kind, _) => return Err(Malformed::Kind(kind)),
                Part::Content(STDOUT, content) => self.cgi.feed(content)?,
                Part::Content(STDERR, content) => self.keep_error(content),
                Part::Content(_, content) => {
                    let to = self.end_len + content.len();
                    self.end_content[self.end_len..to].copy_from_slice(content);
                    self.end_len = to;
                }
                Part::End(END_REQUEST) => self.end = Some(parse_end(self.end_content)?),
                Part::End(_) => {}
            }
        }
        Ok(self.end.is_some() && !self.records.has_padding_left())
    }

    fn keep_error(&mut self, content: &[u8]) {
        self.errors_bytes += content.len() as u64;
        let space = MAX_EXCERPT_BYTES - self.errors.len();
        self.errors
            .extend_from_slice(&content[..content.len().min(space)]);
    }

    /// How the request ended; `None` before.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The headers; `None` before all of them have come.
    pub fn response(&self) -> Option<&Response> {
        self.cgi.response()
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> u64 {
        self.cgi.body_bytes()
    }

    /// The beginning of the body, at most [`MAX_EXCERPT_BYTES`](super::MAX_EXCERPT_BYTES) bytes.
    pub fn body_start(&self) -> &[u8] {
        self.cgi.body_start()
    }

    /// The body's last bytes, as many as were requested.
    pub fn body_end(&self) -> &[u8] {
        self.cgi.body_end()
    }

    /// Bytes of the error stream.
    pub fn errors_bytes(&self) -> u64 {
        self.errors_bytes
    }

    /// The beginning of the error stream, at most [`MAX_EXCERPT_BYTES`](super::MAX_EXCERPT_BYTES) bytes.
    pub fn errors_start(&self) -> &[u8] {
        &self.errors
    }
}

fn parse_end(bytes: [u8; END_BYTES]) -> Result<End, Malformed> {
    let [application @ .., status, _, _, _] = bytes;
    let protocol = match status {
        0 => ProtocolStatus::Complete,
        1 => ProtocolStatus::OneAtATime,
        2 => ProtocolStatus::Overloaded,
        3 => ProtocolStatus::UnknownRole,
        _ => return Err(Malformed::Status(status)),
    };
    Ok(End {
        protocol,
        application: u32::from_be_bytes(application),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, padding: u8, content: &[u8]) -> Vec<u8> {
        let [high, low] = (content.len() as u16).to_be_bytes();
        let mut out = vec![1, kind, 0, 1, high, low, padding, 0];
        out.extend_from_slice(content);
        out.resize(out.len() + usize::from(padding), 0xEE);
        out
    }

    fn feed(stream: &[u8]) -> (Reply, Result<bool, Malformed>) {
        let mut reply = Reply::new(4);
        let ended = reply.feed(stream);
        (reply, ended)
    }

    #[test]
    fn a_reply_is_read_to_its_end() {
        let stream = [
            record(STDOUT, 3, b"X-Howfar-Page: a=1\r\n\r\nsome "),
            record(STDERR, 0, b"PHP Warning"),
            record(STDOUT, 255, b"body"),
            record(STDOUT, 0, b""),
            record(END_REQUEST, 5, &[0, 0, 1, 2, 0, 0, 0, 0]),
        ]
        .concat();
        let (mut reply, ended) = feed(&stream);
        assert_eq!(ended, Ok(true));
        assert_eq!(
            reply.response().expect("the headers have come").reported,
            [("a".to_owned(), 1)]
        );
        assert_eq!(
            (reply.body_start(), reply.body_end(), reply.body_bytes()),
            (&b"some body"[..], &b"body"[..], 9)
        );
        assert_eq!(
            (reply.errors_start(), reply.errors_bytes()),
            (&b"PHP Warning"[..], 11)
        );
        assert_eq!(
            reply.end(),
            Some(End {
                protocol: ProtocolStatus::Complete,
                application: 258
            })
        );
        reply.begin();
        assert_eq!(reply.feed(&record(STDOUT, 0, b"\n")), Ok(false));
        assert_eq!(
            reply.response().expect("the headers have come").reported,
            []
        );
        assert_eq!((reply.end(), reply.errors_bytes()), (None, 0));
    }

    #[test]
    fn a_reply_ends_when_the_padding_of_its_end_has_come() {
        let stream = record(END_REQUEST, 2, &[0; 8]);
        for (count, ended) in [(15, false), (16, false), (17, false), (18, true)] {
            assert_eq!(feed(&stream[..count]).1, Ok(ended), "{count} bytes");
        }
    }

    #[test]
    fn each_protocol_status_is_recognised() {
        for (status, protocol) in [
            (1, ProtocolStatus::OneAtATime),
            (2, ProtocolStatus::Overloaded),
            (3, ProtocolStatus::UnknownRole),
        ] {
            let stream = record(END_REQUEST, 0, &[0, 0, 0, 0, status, 0, 0, 0]);
            let (reply, ended) = feed(&stream);
            assert_eq!(ended, Ok(true));
            assert_eq!(reply.end().expect("the reply has ended").protocol, protocol);
        }
    }

    #[test]
    fn malformed_records_are_refused() {
        let good_end = record(END_REQUEST, 0, &[0; 8]);
        let mut other_request = record(STDOUT, 0, b"x");
        other_request[3] = 2;
        for (stream, error) in [
            (
                b"HTTP/1.1 400 Bad Request".to_vec(),
                Malformed::Version(b'H'),
            ),
            (record(11, 0, b"12345678"), Malformed::Kind(11)),
            (other_request, Malformed::Request(2)),
            (record(END_REQUEST, 0, &[0; 7]), Malformed::End(7)),
            (
                record(END_REQUEST, 0, &[0, 0, 0, 0, 4, 0, 0, 0]),
                Malformed::Status(4),
            ),
            (
                [good_end.clone(), record(STDOUT, 0, b"x")].concat(),
                Malformed::Unexpected("a record behind the end"),
            ),
            (
                [record(STDOUT, 0, b""), record(STDOUT, 0, b"x")].concat(),
                Malformed::Unexpected("more of a response that was closed"),
            ),
        ] {
            assert_eq!(feed(&stream).1, Err(error));
        }
    }

    #[test]
    fn errors_without_an_end_take_bounded_memory() {
        let mut reply = Reply::new(0);
        let stream = record(STDERR, 0, &[b'x'; 1000]);
        for _ in 0..100 {
            assert_eq!(reply.feed(&stream), Ok(false));
        }
        assert_eq!(reply.errors_bytes(), 100_000);
        assert!(reply.errors.capacity() <= 2 * MAX_EXCERPT_BYTES);
    }
}
