//! Finds values that MySQL's clients send in binary form: attributes of a statement, and parameters of a prepared statement.

use howfar_wire::mysql::Fields;

use crate::salt::Salt;

/// Flag of an execution: the number of values precedes them, because attributes may be among them.
const PARAMETER_COUNT_AVAILABLE: u8 = 8;
const MAX_VALUES: usize = 65_535;

/// The header of a row of values.
struct RowHeader<'a> {
    count: usize,
    /// A bit for each value; set if the value is NULL, which has no bytes.
    nulls: &'a [u8],
    /// Types of the values; None if an earlier execution sent them.
    types: Option<Vec<u8>>,
}

/// The statement after the attributes of a `COM_QUERY`; None if `body` does not have that form.
pub(crate) fn strip_attributes(body: &[u8]) -> Option<&[u8]> {
    let mut fields = Fields(body);
    let count = read_length(&mut fields)?;
    if read_length(&mut fields)? != 1 {
        return None;
    }
    let header = parse_header(&mut fields, count, true)?;
    header.skip_values(&mut fields, count)?;
    Some(fields.0)
}

/// Hash the parameters in a `COM_STMT_EXECUTE` of a statement with `parameter_count` parameters; `body` begins after the statement's
/// id. `supports_attributes`: client and server support attributes, which follow the parameters. None if the parameters cannot be
/// located.
pub(crate) fn hash_parameters(
    body: &[u8],
    parameter_count: u16,
    supports_attributes: bool,
    salt: &Salt,
) -> Option<u64> {
    // The flags and the iteration count come first.
    let (flags, mut fields) = (*body.first()?, Fields(body.get(5..)?));
    let parameter_count = usize::from(parameter_count);
    let count = if supports_attributes && flags & PARAMETER_COUNT_AVAILABLE != 0 {
        read_length(&mut fields)?
    } else {
        parameter_count
    };
    let header = parse_header(&mut fields, count, supports_attributes)?;
    let mut values = fields.0;
    if count != parameter_count {
        header.skip_values(&mut fields, parameter_count)?;
        values = &values[..values.len() - fields.0.len()];
    }
    let mut keys = salt.hasher();
    for index in 0..parameter_count {
        keys.add_number(header.is_null(index).into());
    }
    keys.add(values);
    Some(keys.finish())
}

/// Parse the header of `count` values, with their names if `has_names`.
fn parse_header<'a>(
    fields: &mut Fields<'a>,
    count: usize,
    has_names: bool,
) -> Option<RowHeader<'a>> {
    if count > MAX_VALUES {
        return None;
    }
    let nulls = take(fields, count.div_ceil(8))?;
    let types = if count > 0 && take(fields, 1)? == [1] {
        let types = (0..count).map(|_| {
            let kind = take(fields, 2)?[0];
            if has_names {
                read_string(fields)?;
            }
            Some(kind)
        });
        Some(types.collect::<Option<Vec<u8>>>()?)
    } else {
        None
    };
    Some(RowHeader {
        count,
        nulls,
        types,
    })
}

impl RowHeader<'_> {
    fn is_null(&self, index: usize) -> bool {
        self.nulls[index / 8] & (1 << (index % 8)) != 0
    }

    /// Skip the first `count` values.
    fn skip_values(&self, fields: &mut Fields<'_>, count: usize) -> Option<()> {
        if count > self.count {
            return None;
        }
        for index in (0..count).filter(|&index| !self.is_null(index)) {
            match self.types.as_ref()?[index] {
                0x06 => &[],
                0x01 => take(fields, 1)?,
                0x02 | 0x0D => take(fields, 2)?,
                0x03 | 0x04 | 0x09 => take(fields, 4)?,
                0x05 | 0x08 => take(fields, 8)?,
                // Dates and times, without trailing zeros.
                0x07 | 0x0A..=0x0C => {
                    let length = usize::from(take(fields, 1)?[0]);
                    take(fields, length)?
                }
                _ => read_string(fields)?,
            };
        }
        Some(())
    }
}

fn take<'a>(fields: &mut Fields<'a>, count: usize) -> Option<&'a [u8]> {
    fields.take(count, "bytes").ok()
}

fn read_length(fields: &mut Fields<'_>) -> Option<usize> {
    usize::try_from(fields.length("length").ok()??).ok()
}

fn read_string<'a>(fields: &mut Fields<'a>) -> Option<&'a [u8]> {
    fields.string("string").ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_length(text: &[u8]) -> Vec<u8> {
        [&[text.len() as u8], text].concat()
    }

    /// Type and bytes of an example value: a number, a string, a time or a NULL.
    fn example_value(index: u8) -> (u8, Vec<u8>) {
        match index {
            0 => (0x03, vec![1, 2, 3, 4]),
            1 => (0xFE, with_length(b"SELECT 1")),
            2 => (0x0C, with_length(&[0xE8, 7, 1, 2])),
            _ => (0x06, Vec::new()),
        }
    }

    fn row(indices: &[u8], names: &[&[u8]]) -> Vec<u8> {
        let values: Vec<(u8, Vec<u8>)> =
            indices.iter().map(|&index| example_value(index)).collect();
        let mut nulls = vec![0; values.len().div_ceil(8)];
        for (index, (kind, _)) in values.iter().enumerate() {
            nulls[index / 8] |= u8::from(*kind == 0x06) << (index % 8);
        }
        let types = values.iter().zip(names);
        let types =
            types.flat_map(|((kind, _), name)| [&[*kind, 0][..], &with_length(name)].concat());
        let mut out = nulls;
        out.extend((!values.is_empty()).then_some(1));
        out.extend(types.collect::<Vec<u8>>());
        out.extend(values.iter().flat_map(|(_, value)| value.clone()));
        out
    }

    proptest! {
        // [cap-7]
        #[test]
        fn a_statement_is_found_after_any_attributes(indices in prop::collection::vec(0..4_u8, 0..20)) {
            let names = vec![&b"traceparent"[..]; indices.len()];
            let body = [&[indices.len() as u8, 1][..], &row(&indices, &names), b"SELECT 2"].concat();
            prop_assert_eq!(strip_attributes(&body), Some(&b"SELECT 2"[..]));
        }

        #[test]
        fn attributes_do_not_change_the_hash(parameters in prop::collection::vec(0..4_u8, 0..10), attributes in prop::collection::vec(0..4_u8, 0..10)) {
            let salt = Salt::default();
            let all = [parameters.clone(), attributes.clone()].concat();
            let names: Vec<&[u8]> = (0..all.len()).map(|index| if index < parameters.len() { &b""[..] } else { b"a" }).collect();
            let plain = [&[0, 1, 0, 0, 0][..], &row(&parameters, &names)].concat();
            let extended = [&[PARAMETER_COUNT_AVAILABLE, 1, 0, 0, 0, all.len() as u8][..], &row(&all, &names)].concat();
            let count = parameters.len() as u16;
            let hash = hash_parameters(&extended, count, true, &salt);
            prop_assert_eq!(hash_parameters(&plain, count, true, &salt), hash);
            prop_assert!(hash.is_some());
        }

        #[test]
        fn no_bytes_cause_a_panic(body in prop::collection::vec(any::<u8>(), 0..60), count in 0..20_u16, supports_attributes in any::<bool>()) {
            strip_attributes(&body);
            hash_parameters(&body, count, supports_attributes, &Salt::default());
        }
    }

    /// Types are sent only with the first execution.
    #[test]
    fn equal_values_have_equal_hashes_with_and_without_types() {
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
