//! Values that MySQL's clients send in binary form: attributes of a statement, and parameters of a prepared one.

use crate::salt::Salt;

/// Flag of an execution: the number of values comes first, as attributes may be among them.
const PARAMETER_COUNT_AVAILABLE: u8 = 8;
const MAX_VALUES: usize = 65_535;

/// The header of a row of values.
struct RowHead<'a> {
    count: usize,
    /// A bit for each value; set if it is NULL, and so has no bytes.
    nulls: &'a [u8],
    /// Types of the values; None if they are those sent before.
    types: Option<Vec<u8>>,
}

/// The statement behind the attributes of a `COM_QUERY`; None if `body` does not have that form.
pub(crate) fn strip_attributes(body: &[u8]) -> Option<&[u8]> {
    let mut rest = body;
    let count = read_length(&mut rest)?;
    if read_length(&mut rest)? != 1 {
        return None;
    }
    let head = parse_head(&mut rest, count, true)?;
    head.skip(&mut rest, count)?;
    Some(rest)
}

/// A hash of the parameters in a `COM_STMT_EXECUTE`, whose `body` begins behind the statement's number, which has `parameter_count`
/// parameters. `is_named`: both sides support attributes, which follow the parameters. None if the parameters cannot be located.
pub(crate) fn hash_parameters(
    body: &[u8],
    parameter_count: u16,
    is_named: bool,
    salt: &Salt,
) -> Option<u64> {
    // Flags, and the iteration count.
    let (flags, mut rest) = (*body.first()?, body.get(5..)?);
    let parameter_count = usize::from(parameter_count);
    let count = if is_named && flags & PARAMETER_COUNT_AVAILABLE != 0 {
        read_length(&mut rest)?
    } else {
        parameter_count
    };
    let head = parse_head(&mut rest, count, is_named)?;
    let mut values = rest;
    if count != parameter_count {
        head.skip(&mut rest, parameter_count)?;
        values = &values[..values.len() - rest.len()];
    }
    let mut keys = salt.hasher();
    for at in 0..parameter_count {
        keys.add_number(head.is_null(at).into());
    }
    keys.add(values);
    Some(keys.finish())
}

fn parse_head<'a>(rest: &mut &'a [u8], count: usize, is_named: bool) -> Option<RowHead<'a>> {
    if count > MAX_VALUES {
        return None;
    }
    let nulls = take(rest, count.div_ceil(8))?;
    let has_types = count > 0 && take(rest, 1)? == [1];
    let types = has_types.then(|| {
        let kinds = (0..count).map(|_| {
            let kind = take(rest, 2)?[0];
            if is_named {
                read_string(rest)?;
            }
            Some(kind)
        });
        kinds.collect::<Option<Vec<u8>>>()
    });
    Some(RowHead {
        count,
        nulls,
        types: match types {
            Some(types) => Some(types?),
            None => None,
        },
    })
}

impl RowHead<'_> {
    fn is_null(&self, at: usize) -> bool {
        self.nulls[at / 8] & (1 << (at % 8)) != 0
    }

    /// Skip the first `count` values.
    fn skip(&self, rest: &mut &[u8], count: usize) -> Option<()> {
        if count > self.count {
            return None;
        }
        for at in (0..count).filter(|&at| !self.is_null(at)) {
            match self.types.as_ref()?[at] {
                0x06 => &[],
                0x01 => take(rest, 1)?,
                0x02 | 0x0D => take(rest, 2)?,
                0x03 | 0x04 | 0x09 => take(rest, 4)?,
                0x05 | 0x08 => take(rest, 8)?,
                // Dates and times, without trailing zeros.
                0x07 | 0x0A..=0x0C => {
                    let count = usize::from(take(rest, 1)?[0]);
                    take(rest, count)?
                }
                _ => read_string(rest)?,
            };
        }
        Some(())
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    Some(head)
}

fn read_length(rest: &mut &[u8]) -> Option<usize> {
    let first = take(rest, 1)?[0];
    let width = match first {
        0xFC => 2,
        0xFD => 3,
        0xFE => 8,
        small => return (small < 0xFB).then_some(usize::from(small)),
    };
    let bytes = take(rest, width)?;
    let number = |sum: u64, &byte: &u8| (sum << 8) | u64::from(byte);
    usize::try_from(bytes.iter().rev().fold(0, number)).ok()
}

fn read_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let count = read_length(rest)?;
    take(rest, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(text: &[u8]) -> Vec<u8> {
        [&[text.len() as u8], text].concat()
    }

    /// A number, a string, a time and a NULL.
    fn typed(which: u8) -> (u8, Vec<u8>) {
        match which {
            0 => (0x03, vec![1, 2, 3, 4]),
            1 => (0xFE, short(b"SELECT 1")),
            2 => (0x0C, short(&[0xE8, 7, 1, 2])),
            _ => (0x06, Vec::new()),
        }
    }

    fn row(kinds: &[u8], names: &[&[u8]]) -> Vec<u8> {
        let all: Vec<(u8, Vec<u8>)> = kinds.iter().map(|&which| typed(which)).collect();
        let mut nulls = vec![0; all.len().div_ceil(8)];
        for (at, (kind, _)) in all.iter().enumerate() {
            nulls[at / 8] |= u8::from(*kind == 0x06) << (at % 8);
        }
        let types = all.iter().zip(names);
        let types = types.flat_map(|((kind, _), name)| [&[*kind, 0][..], &short(name)].concat());
        let mut out = nulls;
        out.extend((!all.is_empty()).then_some(1));
        out.extend(types.collect::<Vec<u8>>());
        out.extend(all.iter().flat_map(|(_, value)| value.clone()));
        out
    }

    proptest! {
        // [cap-7]
        #[test]
        fn a_statement_is_found_behind_any_attributes(kinds in prop::collection::vec(0..4_u8, 0..20)) {
            let names = vec![&b"traceparent"[..]; kinds.len()];
            let body = [&[kinds.len() as u8, 1][..], &row(&kinds, &names), b"SELECT 2"].concat();
            prop_assert_eq!(strip_attributes(&body), Some(&b"SELECT 2"[..]));
        }

        #[test]
        fn attributes_are_no_part_of_the_keys(own in prop::collection::vec(0..4_u8, 0..10), more in prop::collection::vec(0..4_u8, 0..10)) {
            let salt = Salt::default();
            let all = [own.clone(), more.clone()].concat();
            let names: Vec<&[u8]> = (0..all.len()).map(|at| if at < own.len() { &b""[..] } else { b"a" }).collect();
            let plain = [&[0, 1, 0, 0, 0][..], &row(&own, &names)].concat();
            let with = [&[PARAMETER_COUNT_AVAILABLE, 1, 0, 0, 0, all.len() as u8][..], &row(&all, &names)].concat();
            let count = own.len() as u16;
            prop_assert_eq!(hash_parameters(&plain, count, true, &salt), hash_parameters(&with, count, true, &salt));
            prop_assert!(hash_parameters(&with, count, true, &salt).is_some());
        }

        #[test]
        fn any_bytes_may_come(body in prop::collection::vec(any::<u8>(), 0..60), own in 0..20_u16, is_named in any::<bool>()) {
            strip_attributes(&body);
            hash_parameters(&body, own, is_named, &Salt::default());
        }
    }

    /// Types come only with the first execution.
    #[test]
    fn equal_values_have_equal_keys_with_and_without_types() {
        let salt = Salt::default();
        let first = hash_parameters(b"\0\x01\0\0\0\0\x01\x03\0\x07\0\0\0", 1, false, &salt);
        assert_eq!(
            first,
            hash_parameters(b"\0\x01\0\0\0\0\0\x07\0\0\0", 1, false, &salt)
        );
        assert_ne!(
            first,
            hash_parameters(b"\0\x01\0\0\0\0\0\x08\0\0\0", 1, false, &salt)
        );
    }
}
