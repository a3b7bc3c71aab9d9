//! Parses an application's answer in the format of CGI: headers, an empty line, a body. Only the beginning and the end of the body
//! are kept.

use super::Malformed;
use crate::keyvalue::parse_unsigned;

/// Maximum bytes of all headers.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Maximum bytes kept of a body's beginning and of the error stream: 200 characters of any encoding.
pub const MAX_EXCERPT_BYTES: usize = 800;
/// The header in which a page reports figures about itself.
const PAGE_HEADER: &[u8] = b"x-howfar-page";
const MAX_NAME_BYTES: usize = 40;

/// The contents of the headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// The status header; without one, 302 if there is a location, else 200.
    pub status: u16,
    /// The figures that the page reports about itself, in the order sent; each name occurs once.
    pub reported: Vec<(String, u64)>,
    has_location: bool,
}

/// A response being received.
#[derive(Debug)]
pub(super) struct Cgi {
    response: Response,
    /// All headers have come.
    is_complete: bool,
    /// Bytes of headers so far.
    header_bytes: usize,
    /// The part of the current header line that has come.
    line: Vec<u8>,
    body_start: Vec<u8>,
    body_end: Vec<u8>,
    /// How many of the body's last bytes are requested.
    end_bytes: usize,
    body_bytes: u64,
}

impl Cgi {
    pub(super) fn new(end_bytes: usize) -> Self {
        Self {
            response: Response::default(),
            is_complete: false,
            header_bytes: 0,
            line: Vec::new(),
            body_start: Vec::new(),
            body_end: Vec::new(),
            end_bytes,
            body_bytes: 0,
        }
    }

    /// Prepare for the next response; its memory is kept.
    pub(super) fn clear(&mut self) {
        self.response.status = 0;
        self.response.reported.clear();
        self.response.has_location = false;
        self.is_complete = false;
        self.header_bytes = 0;
        self.line.clear();
        self.body_start.clear();
        self.body_end.clear();
        self.body_bytes = 0;
    }

    /// The headers, once they are complete.
    pub(super) fn response(&self) -> Option<&Response> {
        self.is_complete.then_some(&self.response)
    }

    /// Bytes of the body so far.
    pub(super) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// The beginning of the body.
    pub(super) fn body_start(&self) -> &[u8] {
        &self.body_start
    }

    /// The last bytes of the body, as many as are requested.
    pub(super) fn body_end(&self) -> &[u8] {
        &self.body_end[self.body_end.len().saturating_sub(self.end_bytes)..]
    }

    /// Consume all bytes of `input`, which are headers or parts of the body.
    pub(super) fn feed(&mut self, mut input: &[u8]) -> Result<(), Malformed> {
        while !self.is_complete && !input.is_empty() {
            self.feed_header(&mut input)?;
        }
        self.body_bytes += input.len() as u64;
        let space = MAX_EXCERPT_BYTES - self.body_start.len();
        self.body_start
            .extend_from_slice(&input[..input.len().min(space)]);
        let tail = &input[input.len().saturating_sub(self.end_bytes)..];
        // The buffer holds up to twice the requested bytes, so that small pieces do not move its contents each time.
        if self.body_end.len() + tail.len() > 2 * self.end_bytes {
            let kept_bytes = self.body_end.len().min(self.end_bytes);
            self.body_end.drain(..self.body_end.len() - kept_bytes);
        }
        self.body_end.extend_from_slice(tail);
        Ok(())
    }

    /// Consume a header line, or the part of it that has come.
    fn feed_header(&mut self, input: &mut &[u8]) -> Result<(), Malformed> {
        let end = input.iter().position(|&byte| byte == b'\n');
        let (part, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        *input = rest;
        self.header_bytes += part.len();
        if self.header_bytes > MAX_HEADER_BYTES {
            return Err(Malformed::LongHeaders);
        }
        self.line.extend_from_slice(part);
        if end.is_none() {
            return Ok(());
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            self.is_complete = true;
            self.response.set_default_status();
        } else {
            self.response.handle_header(line)?;
        }
        self.line.clear();
        Ok(())
    }
}

impl Response {
    fn handle_header(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let colon = line.iter().position(|&byte| byte == b':');
        let Some((name, value)) = colon.map(|at| (&line[..at], line[at + 1..].trim_ascii())) else {
            return Err(Malformed::Unexpected("a header without a colon"));
        };
        let is_visible = |&byte: &u8| byte.is_ascii_graphic();
        if name.is_empty() || !name.iter().all(is_visible) {
            return Err(Malformed::Unexpected(
                "a header whose name is empty or holds a blank",
            ));
        }
        if name.eq_ignore_ascii_case(b"status") {
            if self.status != 0 {
                return Err(Malformed::Unexpected("a second status"));
            }
            self.status = parse_status(value)?;
        } else if name.eq_ignore_ascii_case(b"location") {
            self.has_location = true;
        } else if name.eq_ignore_ascii_case(PAGE_HEADER) {
            if !self.reported.is_empty() {
                return Err(Malformed::Unexpected("a second X-Howfar-Page"));
            }
            self.parse_figures(value)?;
        }
        Ok(())
    }

    fn parse_figures(&mut self, value: &[u8]) -> Result<(), Malformed> {
        for pair in value.split(|&byte| byte == b',') {
            let equals = pair.iter().position(|&byte| byte == b'=');
            let parts = equals.map(|at| (&pair[..at], &pair[at + 1..]));
            let (name, number) = parts
                .filter(|(name, _)| is_name(name))
                .ok_or(NOT_A_NUMBER)
                .map(|(name, digits)| (String::from_utf8_lossy(name).into_owned(), digits))?;
            let number = parse_unsigned(number, "")
                .ok()
                .filter(|&number| number < 1 << 63);
            if self.reported.iter().any(|(known, _)| *known == name) {
                return Err(Malformed::Unexpected("a name twice in X-Howfar-Page"));
            }
            self.reported.push((name, number.ok_or(NOT_A_NUMBER)?));
        }
        Ok(())
    }

    /// Set the status if no header gave one.
    fn set_default_status(&mut self) {
        if self.status == 0 {
            // A redirect may omit its status.
            self.status = if self.has_location { 302 } else { 200 };
        }
    }
}

const NOT_A_NUMBER: Malformed =
    Malformed::Unexpected("an X-Howfar-Page that is not name=integer,name=integer");

fn is_name(name: &[u8]) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .iter()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// Parse a status: three digits, then words that are ignored.
fn parse_status(value: &[u8]) -> Result<u16, Malformed> {
    let digits = value.split(|&byte| byte == b' ').next().unwrap_or(value);
    match digits {
        [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => Ok(digits
            .iter()
            .fold(0, |number, digit| number * 10 + u16::from(digit - b'0'))),
        _ => Err(Malformed::Unexpected("a status that is not 100 to 599")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(stream: &str) -> Result<Option<Response>, Malformed> {
        let mut cgi = Cgi::new(4);
        cgi.feed(stream.as_bytes())?;
        Ok(cgi.response().cloned())
    }

    #[test]
    fn header_lines_end_in_lf_or_crlf_and_names_ignore_case() {
        for (stream, status) in [
            ("Status: 500 Internal Server Error\r\n\r\n", 500),
            ("sTATUS:404\nContent-type: text/html\n\n", 404),
            ("Content-type: text/html; charset=UTF-8\r\n\r\nbody", 200),
            ("\n", 200),
            ("Location: elsewhere\r\n\r\n", 302),
            ("Location: elsewhere\r\nStatus: 201\r\n\r\n", 201),
        ] {
            let response = parse(stream)
                .expect("the headers are valid")
                .expect("the headers are complete");
            assert_eq!(response.status, status, "{stream:?}");
        }
        assert_eq!(parse("Status: 200 OK\r\nA: b\r\n"), Ok(None));
    }

    #[test]
    fn a_page_reports_names_with_numbers() {
        let stream = "x-howfar-page:  cpu_ns=12,hits=0,most=9223372036854775807 \r\n\r\n";
        let response = parse(stream)
            .expect("the headers are valid")
            .expect("the headers are complete");
        let pairs = [("cpu_ns", 12), ("hits", 0), ("most", i64::MAX as u64)];
        assert_eq!(
            response.reported,
            pairs.map(|(name, number)| (name.to_owned(), number))
        );
    }

    #[test]
    fn malformed_headers_are_refused() {
        let long_name = "n".repeat(MAX_NAME_BYTES + 1);
        for figures in [
            "",
            "a",
            "a=",
            "=1",
            "a=-1",
            "a=+1",
            "a=1.5",
            "a=1, b=2",
            "a=1,",
            "A=1",
            "a-b=1",
            "a=1,a=2",
            "a=9223372036854775808",
            "a=99999999999999999999",
            &format!("{long_name}=1"),
        ] {
            let stream = format!("X-Howfar-Page: {figures}\r\n\r\n");
            assert!(parse(&stream).is_err(), "{figures:?}");
        }
        for stream in [
            "no colon\r\n\r\n",
            " folded: line\r\n\r\n",
            ": no name\r\n\r\n",
            "Status: OK\r\n\r\n",
            "Status: 20\r\n\r\n",
            "Status: 2000\r\n\r\n",
            "Status: 600\r\n\r\n",
            "Status: 200\r\nstatus: 200\r\n\r\n",
            "X-Howfar-Page: a=1\r\nX-Howfar-Page: b=1\r\n\r\n",
        ] {
            assert!(parse(stream).is_err(), "{stream:?}");
        }
    }

    #[test]
    fn headers_without_an_end_are_refused_in_bounded_memory() {
        for line in ["A: b\r\n", "no end"] {
            let mut cgi = Cgi::new(0);
            let mut fed = 0;
            let error = loop {
                match cgi.feed(line.as_bytes()) {
                    Ok(()) => fed += line.len(),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Malformed::LongHeaders);
            assert!(fed <= MAX_HEADER_BYTES && cgi.line.capacity() <= 2 * MAX_HEADER_BYTES);
        }
    }

    #[test]
    fn the_beginning_and_the_end_of_a_long_body_are_kept() {
        let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        for (size, end_bytes) in [(1, 4), (3, 4), (1000, 4), (100_000, 200), (7, 0)] {
            let mut cgi = Cgi::new(end_bytes);
            cgi.feed(b"\r\n")
                .expect("an empty list of headers is valid");
            for piece in body.chunks(size) {
                cgi.feed(piece).expect("any body is valid");
            }
            assert_eq!(cgi.body_bytes(), 100_000);
            assert_eq!(cgi.body_start(), &body[..MAX_EXCERPT_BYTES]);
            assert_eq!(cgi.body_end(), &body[body.len() - end_bytes..]);
            assert!(cgi.body_end.capacity() < 1000);
        }
    }
}
