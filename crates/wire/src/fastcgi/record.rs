//! Splits a stream that arrives in arbitrary pieces into records. The meaning of their content is not handled here.

use super::{HEAD_LEN, Malformed, REQUEST_ID, VERSION};

/// The record being received.
#[derive(Debug, Default)]
pub(super) struct Records {
    head: [u8; HEAD_LEN],
    /// Bytes of the head that have come.
    head_len: usize,
    /// Bytes of content still to come.
    content_left: usize,
    /// Bytes of padding still to come.
    padding_left: usize,
}

/// The next part of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// A record of this type and length begins.
    Begins(u8, u16),
    /// Some of its content.
    Content(u8, &'a [u8]),
    /// All of its content has come.
    Ends(u8),
}

impl Records {
    /// The next part, taken from `input`; `None` when all of `input` is taken.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Part<'a>>, Malformed> {
        if self.head_len < HEAD_LEN {
            // Padding belongs to the record before.
            let (_, rest) = input.split_at(input.len().min(self.padding_left));
            self.padding_left -= input.len() - rest.len();
            let (part, rest) = rest.split_at(rest.len().min(HEAD_LEN - self.head_len));
            *input = rest;
            self.head[self.head_len..self.head_len + part.len()].copy_from_slice(part);
            self.head_len += part.len();
            return if self.head_len == HEAD_LEN {
                self.begin().map(Some)
            } else {
                Ok(None)
            };
        }
        let kind = self.head[1];
        if self.content_left == 0 {
            self.head_len = 0;
            return Ok(Some(Part::Ends(kind)));
        }
        let (part, rest) = input.split_at(input.len().min(self.content_left));
        *input = rest;
        self.content_left -= part.len();
        Ok((!part.is_empty()).then_some(Part::Content(kind, part)))
    }

    fn begin(&mut self) -> Result<Part<'static>, Malformed> {
        let [version, kind, request @ .., padding, _] = self.head;
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
        Ok(Part::Begins(kind, length))
    }

    /// Whether bytes of padding are still due.
    pub(super) fn has_padding_left(&self) -> bool {
        self.padding_left > 0
    }
}
