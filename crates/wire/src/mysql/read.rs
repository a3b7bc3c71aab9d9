//! Reads fields from the front of a packet. Every read is checked: a packet may end anywhere.

use super::Malformed;

/// The part of a packet that is still to be read. Errors name the field, here `name`, before which the packet ended.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, name: &'static str) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed::Short(name))?;
        self.0 = tail;
        Ok(head)
    }

    /// A little-endian integer of `width` bytes, at most eight.
    pub fn integer(&mut self, width: usize, name: &'static str) -> Result<u64, Malformed> {
        let bytes = self.take(width, name)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, &byte| (value << 8) | u64::from(byte)))
    }

    pub fn byte(&mut self, name: &'static str) -> Result<u8, Malformed> {
        Ok(self.take(1, name)?[0])
    }

    /// A length-encoded integer; `None` is SQL's NULL.
    pub fn length(&mut self, name: &'static str) -> Result<Option<u64>, Malformed> {
        match self.byte(name)? {
            0xFB => Ok(None),
            0xFC => self.integer(2, name).map(Some),
            0xFD => self.integer(3, name).map(Some),
            0xFE => self.integer(8, name).map(Some),
            0xFF => Err(Malformed::Unexpected("0xFF is no length")),
            small => Ok(Some(u64::from(small))),
        }
    }

    /// A length-encoded string; `None` is SQL's NULL.
    pub fn string(&mut self, name: &'static str) -> Result<Option<&'a [u8]>, Malformed> {
        match self.length(name)? {
            None => Ok(None),
            Some(length) => {
                let length = usize::try_from(length).map_err(|_| Malformed::Short(name))?;
                self.take(length, name).map(Some)
            }
        }
    }

    /// A string up to a zero byte, which is consumed too.
    pub fn terminated_string(&mut self, name: &'static str) -> Result<&'a [u8], Malformed> {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(Malformed::Short(name))?;
        let text = self.take(end, name)?;
        self.0 = &self.0[1..];
        Ok(text)
    }
}
