//! A server's error as a small number, into which the codes of every protocol fit.

use std::fmt;

use crate::keyvalue::ErrorWord;

/// MySQL's number, a SQLSTATE, or the first word of a key-value store's error. It is stored as a number and displayed as its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorCode(u32);

/// The two highest bits give the kind of the code; neither is set in a MySQL number.
const SQLSTATE_KIND: u32 = 1 << 30;
const WORD_KIND: u32 = 2 << 30;
const VALUE_MASK: u32 = (1 << 30) - 1;

impl ErrorCode {
    /// Make a code from a SQLSTATE of five digits or capital letters, packed in base 36; None for any other text.
    pub fn from_sqlstate(text: [u8; 5]) -> Option<Self> {
        let packed = text.iter().try_fold(0, |packed, &byte| {
            let is_allowed = byte.is_ascii_digit() || byte.is_ascii_uppercase();
            let digit = char::from(byte).to_digit(36).filter(|_| is_allowed)?;
            Some(packed * 36 + digit)
        })?;
        Some(Self(SQLSTATE_KIND | packed))
    }

    pub(crate) fn from_word_index(index: u16) -> Self {
        Self(WORD_KIND | u32::from(index))
    }

    /// MySQL's number, if the code is one.
    pub fn number(self) -> Option<u16> {
        u16::try_from(self.0).ok()
    }
}

impl From<u16> for ErrorCode {
    fn from(number: u16) -> Self {
        Self(number.into())
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 & VALUE_MASK;
        match self.0 & !VALUE_MASK {
            0 => write!(out, "{value}"),
            WORD_KIND => out.write_str(ErrorWord::name_at(value as usize)),
            _ => (0..5).rev().try_for_each(|exponent| {
                let digit = char::from_digit(value / 36_u32.pow(exponent) % 36, 36).unwrap_or('0');
                write!(out, "{}", digit.to_ascii_uppercase())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_all_protocols_keep_their_text() {
        let text = |code: Option<ErrorCode>| code.expect("the code is valid").to_string();
        assert_eq!(text(Some(1062.into())), "1062");
        assert_eq!(
            text(Some(ErrorWord::from_line(b"OOM no memory").code())),
            "OOM"
        );
        for state in [*b"40001", *b"00000", *b"ZZZZZ", *b"XX000"] {
            let code = ErrorCode::from_sqlstate(state);
            assert_eq!(text(code).as_bytes(), state);
            assert_eq!(code.and_then(ErrorCode::number), None);
        }
        assert_eq!(ErrorCode::from_sqlstate(*b"4000a"), None);
        assert_eq!(ErrorCode::from(1213).number(), Some(1213));
    }
}
