//! Decodes the parts of HTTP/1 that identify pages: the method and path of each request, and whether the server failed.

use std::sync::Arc;

use crate::{DecoderReport, Request, known_name};

const METHODS: &[&str] = &[
    "get", "head", "post", "put", "delete", "patch", "options", "propfind", "report",
];
/// Maximum bytes of a request line that are examined.
const MAX_LINE_BYTES: usize = 2048;
/// Maximum characters of a page's name.
const MAX_NAME_CHARS: usize = 120;
/// Bytes of an answer up to the first digit of the status: `HTTP/1.1 5`.
const STATUS_BYTES: usize = 10;
const MAX_METHOD_BYTES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Http {
    /// The query parameters, and the parts of the path (with a leading `/`), that page names keep.
    pub(crate) page_keys: Arc<[String]>,
    line: Vec<u8>,
    /// The request line has been read; headers and body follow.
    has_line: bool,
    answer: Vec<u8>,
}

impl Http {
    pub(crate) fn begin_round_trip(&mut self) {
        // After `100 Continue` the client sends the body of the same request.
        self.has_line = self.has_line && self.answer.ends_with(b" 1");
        if !self.has_line {
            self.line.clear();
        }
        self.answer.clear();
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        report: &mut DecoderReport,
    ) {
        if self.has_line {
            return;
        }
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        let space = MAX_LINE_BYTES - self.line.len();
        self.line
            .extend_from_slice(&piece[..piece.len().min(space)]);
        if end.is_some() || skipped > 0 || self.line.len() == MAX_LINE_BYTES {
            self.has_line = true;
            report
                .requests
                .extend(parse_request(&self.line, &self.page_keys));
        }
    }

    pub(crate) fn handle_server_bytes(&mut self, bytes: &[u8], report: &mut DecoderReport) {
        let space = STATUS_BYTES - self.answer.len();
        self.answer
            .extend_from_slice(&bytes[..bytes.len().min(space)]);
        report.failed |= self.answer.len() == STATUS_BYTES && self.answer.ends_with(b" 5");
    }
}

/// Whether a client's first bytes are of HTTP/1; None if there are too few.
pub(crate) fn is_start(bytes: &[u8]) -> Option<bool> {
    let method = bytes.split(|&byte| byte == b' ').next()?;
    let is_uppercase = method.iter().all(u8::is_ascii_uppercase);
    match bytes.get(method.len() + 1) {
        None => (!is_uppercase || method.len() > MAX_METHOD_BYTES).then_some(false),
        Some(b'/') => Some(is_uppercase && known_name(METHODS, method) != "other"),
        Some(_) => Some(false),
    }
}

/// Parse a request line like `GET /post/4711?token=x HTTP/1.1`. The request's digest is the path without its query and with `*` for
/// parts that have digits, except those that `page_keys` keeps.
fn parse_request(line: &[u8], page_keys: &[String]) -> Option<Request> {
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next()?, words.next()?);
    let command = known_name(METHODS, method);
    let is_cut = line.len() == MAX_LINE_BYTES;
    if is_start(line) != Some(true) || !(is_cut || line.windows(8).any(|word| word == b" HTTP/1."))
    {
        return None;
    }
    let target = target.split(|&byte| byte == b'#').next()?;
    let mut path_and_query = target.splitn(2, |&byte| byte == b'?');
    let path = path_and_query.next()?;
    let query = path_and_query.next().unwrap_or_default();
    let is_kept = |part: &[u8]| {
        let matches_part = |key: &String| key.as_bytes().strip_prefix(b"/") == Some(part);
        !part.iter().any(u8::is_ascii_digit) || page_keys.iter().any(matches_part)
    };
    let parts = path.split(|&byte| byte == b'/').map(|part| {
        if is_kept(part) {
            String::from_utf8_lossy(part)
        } else {
            "*".into()
        }
    });
    let path = parts.collect::<Vec<_>>().join("/");
    let pairs = query.split(|&byte| byte == b'&').filter(|pair| {
        let name = pair.split(|&byte| byte == b'=').next();
        page_keys.iter().any(|key| Some(key.as_bytes()) == name)
    });
    let kept_query = pairs
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join("&");
    let path = if kept_query.is_empty() {
        path
    } else {
        format!("{path}?{kept_query}")
    };
    let prefix = if command == "get" {
        String::new()
    } else {
        format!("{} ", command.to_uppercase())
    };
    Some(Request {
        digest: Some(
            format!("{prefix}{path}")
                .chars()
                .take(MAX_NAME_CHARS)
                .collect(),
        ),
        ..Request::new(command)
    })
}
