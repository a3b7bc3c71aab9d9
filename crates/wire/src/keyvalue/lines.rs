//! Splits a stream that is cut anywhere into lines.

use super::Malformed;

/// Maximum length of a line: servers put only short texts on a line (lengths, states, errors).
pub const MAX_LINE_BYTES: usize = 1 << 16;
/// Memory that is kept between lines that come in parts.
const MAX_IDLE_BUFFER: usize = 1 << 10;

/// The lines of a stream, with the part of the current line that has come so far.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial_line: Vec<u8>,
    /// The line in `partial_line` is complete and was returned.
    was_returned: bool,
}

impl Lines {
    /// The next line without its CRLF, taken from `input`; `None` when all of `input` is taken and no line is complete.
    #[inline]
    pub(crate) fn next<'a, 'b: 'a>(
        &'a mut self,
        input: &mut &'b [u8],
    ) -> Result<Option<&'a [u8]>, Malformed> {
        if std::mem::take(&mut self.was_returned) {
            self.partial_line.clear();
            self.partial_line.shrink_to(MAX_IDLE_BUFFER);
        }
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            self.append(input)?;
            *input = &[];
            return Ok(None);
        };
        let (line, rest) = (&input[..end], &input[end + 1..]);
        *input = rest;
        if self.partial_line.is_empty() {
            return check_line(line).map(Some);
        }
        self.append(line)?;
        self.was_returned = true;
        check_line(&self.partial_line).map(Some)
    }

    fn append(&mut self, part: &[u8]) -> Result<(), Malformed> {
        if self.partial_line.len() + part.len() > MAX_LINE_BYTES {
            return Err(Malformed::LongLine);
        }
        self.partial_line.extend_from_slice(part);
        Ok(())
    }
}

/// Check a line that came up to its LF, and remove its CR.
#[inline]
fn check_line(line: &[u8]) -> Result<&[u8], Malformed> {
    if line.len() > MAX_LINE_BYTES {
        return Err(Malformed::LongLine);
    }
    match line.split_last() {
        Some((b'\r', text)) if !text.contains(&b'\r') => Ok(text),
        _ => Err(Malformed::LineEnd),
    }
}

/// Parse a number without a sign, of digits only.
#[inline]
pub(crate) fn parse_unsigned(digits: &[u8], name: &'static str) -> Result<u64, Malformed> {
    if digits.is_empty() {
        return Err(Malformed::Number(name));
    }
    let mut number = 0_u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        number = number
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u64::from(digit)))
            .filter(|_| digit < 10)
            .ok_or(Malformed::Number(name))?;
    }
    Ok(number)
}

/// Append a number in decimal digits.
#[inline]
pub(crate) fn write_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_reassembled_from_any_parts() {
        let stream = b"one\r\n\r\nthree 3\r\n";
        for size in 1..stream.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for mut part in stream.chunks(size) {
                while let Some(line) = lines.next(&mut part).expect("well formed") {
                    found.push(line.to_vec());
                }
            }
            assert_eq!(found, [b"one".to_vec(), b"".to_vec(), b"three 3".to_vec()]);
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for bad in [&b"\n"[..], b"a\n", b"a\rb\r\n"] {
            assert_eq!(
                Lines::default().next(&mut &bad[..]),
                Err(Malformed::LineEnd)
            );
        }
        let long = [vec![b'x'; MAX_LINE_BYTES + 1], b"\r\n".to_vec()].concat();
        for part in [&long[..], &long[..=MAX_LINE_BYTES]] {
            assert_eq!(
                Lines::default().next(&mut &part[..]),
                Err(Malformed::LongLine)
            );
        }
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            let mut digits = Vec::new();
            write_decimal(&mut digits, number);
            assert_eq!(digits, number.to_string().into_bytes());
            assert_eq!(parse_unsigned(&digits, "it"), Ok(number));
        }
        for bad in ["", "-1", "+1", "1x", "18446744073709551616", " 1"] {
            assert!(parse_unsigned(bad.as_bytes(), "it").is_err(), "{bad}");
        }
    }
}
