//! Splits a stream that arrives in arbitrary pieces into records, whatever their content means.

use super::{HEADER_LEN, Malformed, REQUEST_ID, VERSION};

/// The record being received.
#[derive(Debug, Default)]
pub(super) struct Records {
    header: [u8; HEADER_LEN],
    /// Bytes of the header that have come.
    header_len: usize,
    /// Bytes of content still to come.
    content_left: usize,
    /// Bytes of padding still to come.
    padding_left: usize,
}

/// The next part of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// A record of this type and length begins.
    Begin(u8, u16),
    /// The type of a record, and some of its content.
    Content(u8, &'a [u8]),
    /// All content of a record of this type has come.
    End(u8),
}

impl Records {
    /// Take the next part from `input`; `None` if `input` is used up.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Part<'a>>, Malformed> {
        if self.header_len < HEADER_LEN {
            // Padding belongs to the previous record.
            let (_, rest) = input.split_at(input.len().min(self.padding_left));
            self.padding_left -= input.len() - rest.len();
            let (part, rest) = rest.split_at(rest.len().min(HEADER_LEN - self.header_len));
            *input = rest;
            self.header[self.header_len..self.header_len + part.len()].copy_from_slice(part);
            self.header_len += part.len();
            return if self.header_len == HEADER_LEN {
                self.parse_header().map(Some)
            } else {
                Ok(None)
            };
        }
        let kind = self.header[1];
        if self.content_left == 0 {
            self.header_len = 0;
            return Ok(Some(Part::End(kind)));
        }
        let (part, rest) = input.split_at(input.len().min(self.content_left));
        *input = rest;
        self.content_left -= part.len();
        Ok((!part.is_empty()).then_some(Part::Content(kind, part)))
    }

    fn parse_header(&mut self) -> Result<Part<'static>, Malformed> {
        let [version, kind, request @ .., padding, _] = self.header;
        let [request, length] =
            [[request[0], request[1]], [request[2], request[3]]].map(u16::from_be_bytes);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if request != REQUEST_ID {
            return Err(Malformed::Request(request));
        }
        self.content_left = usize::from(length);
        self.padding_left = usize::from(padding);
        Ok(Part::Begin(kind, length))
    }

    /// Whether bytes of padding are still due.
    pub(super) fn has_padding_left(&self) -> bool {
        self.padding_left > 0
    }
}
