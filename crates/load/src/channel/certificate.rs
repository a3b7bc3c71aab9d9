//! Parses a certificate of any version of X.509. `webpki` reads only version 3; servers use others, and clients accept them.

use std::net::IpAddr;

use ring::digest;
use rustls::pki_types::SignatureVerificationAlgorithm;

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
pub(super) const KEY_USAGE: &[u8] = &[0x55, 0x1D, 15];
pub(super) const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1D, 17];
pub(super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1D, 19];
pub(super) const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1D, 30];
pub(super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1D, 37];
const SERVER_AUTH: &[u8] = &[0x2B, 6, 1, 5, 5, 7, 3, 1];

const DAY_SECONDS: i64 = 86_400;

/// A sequence of DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value's tag and content; `None` at the end or if malformed.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        if tag & 0x1F == 0x1F {
            return None; // tags of several bytes are not used in certificates
        }
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                let length = digits
                    .iter()
                    .fold(0, |number, &digit| number << 8 | usize::from(digit));
                if digits[0] == 0 || length < 0x80 {
                    return None; // not the shortest form
                }
                (length, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The next value if it has this tag; otherwise nothing is consumed.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        match self.next() {
            Some((next_tag, content)) if next_tag == tag => Some(content),
            _ => {
                self.0 = before;
                None
            }
        }
    }

    /// The next value with its tag and length.
    fn take_encoded(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        self.take(tag)?;
        Some(&before[..before.len() - self.0.len()])
    }
}

/// Parts of a certificate as encoded. Names and algorithm identifiers are without their outer tag and length, as in a trust anchor.
#[derive(Debug)]
pub(super) struct Certificate<'a> {
    pub(super) der: &'a [u8],
    signed_part: &'a [u8],
    /// Version of X.509: 1 to 3.
    pub(super) version: u8,
    pub(super) issuer: &'a [u8],
    validity: &'a [u8],
    pub(super) subject: &'a [u8],
    /// The public key, with its tag and length.
    pub(super) key: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    pub(super) extensions: Vec<Extension<'a>>,
}

#[derive(Debug)]
pub(super) struct Extension<'a> {
    pub(super) id: &'a [u8],
    pub(super) is_critical: bool,
    value: &'a [u8],
}

/// Times in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

/// A name in a certificate, to compare with the server's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name<'a> {
    Host(&'a [u8]),
    Address(IpAddr),
}

impl<'a> Certificate<'a> {
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut outer = Der(der);
        let mut parts = Der(outer.take(SEQUENCE)?);
        let signed_part = parts.take_encoded(SEQUENCE)?;
        let algorithm = parts.take(SEQUENCE)?;
        let signature = bit_string_bytes(parts.take(BIT_STRING)?)?;
        if !parts.0.is_empty() || !outer.0.is_empty() {
            return None;
        }
        let mut fields = Der(Der(signed_part).take(SEQUENCE)?);
        let version = match fields.take(0xA0) {
            None => 1,
            Some(version) => match Der(version).take(INTEGER)? {
                [number @ 0..=2] => number + 1,
                _ => return None,
            },
        };
        fields.take(INTEGER)?; // the serial number
        if fields.take(SEQUENCE)? != algorithm {
            return None;
        }
        let issuer = fields.take(SEQUENCE)?;
        let validity = fields.take(SEQUENCE)?;
        let subject = fields.take(SEQUENCE)?;
        let key = fields.take_encoded(SEQUENCE)?;
        fields.take(0x81);
        fields.take(0x82);
        let extensions = match fields.take(0xA3) {
            None => Vec::new(),
            Some(list) => parse_extensions(Der(list).take(SEQUENCE)?)?,
        };
        if !fields.0.is_empty() || (version < 3 && !extensions.is_empty()) {
            return None;
        }
        Some(Self {
            der,
            signed_part,
            version,
            issuer,
            validity,
            subject,
            key,
            algorithm,
            signature,
            extensions,
        })
    }

    pub(super) fn validity(&self) -> Option<Validity> {
        let mut times = Der(self.validity);
        Some(Validity {
            not_before: parse_time(times.next()?)?,
            not_after: parse_time(times.next()?)?,
        })
    }

    /// The first common name of the subject.
    pub(super) fn common_name(&self) -> Option<&'a [u8]> {
        let mut sets = Der(self.subject);
        while let Some(set) = sets.take(SET) {
            let mut pairs = Der(set);
            while let Some(pair) = pairs.take(SEQUENCE) {
                let mut pair = Der(pair);
                if pair.take(OBJECT)? == COMMON_NAME {
                    return pair.next().map(|(_, value)| value);
                }
            }
        }
        None
    }

    /// The hosts and addresses among the alternative names.
    pub(super) fn alternative_names(&self) -> Vec<Name<'a>> {
        let mut names = Vec::new();
        let Some(list) = self.extension(ALTERNATIVE_NAMES) else {
            return names;
        };
        let mut list = Der(Der(list).take(SEQUENCE).unwrap_or_default());
        while let Some((tag, value)) = list.next() {
            match tag {
                0x82 => names.push(Name::Host(value)),
                0x87 => names.extend(parse_address(value).map(Name::Address)),
                _ => {}
            }
        }
        names
    }

    fn extension(&self, id: &[u8]) -> Option<&'a [u8]> {
        let mut extensions = self.extensions.iter();
        let extension = extensions.find(|extension| extension.id == id);
        extension.map(|extension| extension.value)
    }

    pub(super) fn has_extension(&self, id: &[u8]) -> bool {
        self.extension(id).is_some()
    }

    /// How many other authorities may be below this one; `None` if the certificate is not marked as an authority's.
    pub(super) fn max_authorities_below(&self) -> Option<u8> {
        let mut fields = Der(Der(self.extension(BASIC_CONSTRAINTS)?).take(SEQUENCE)?);
        if fields.take(BOOLEAN)? != [0xFF] {
            return None;
        }
        match fields.take(INTEGER) {
            None => Some(u8::MAX),
            Some([limit @ 0..=0x7F]) => Some(*limit),
            Some(_) => Some(0), // longer than any path here, or malformed
        }
    }

    /// Whether the certificate's key may be used for one of the purposes in `mask`, which has RFC 5280's bits, the first one highest. True
    /// if no extension limits the purposes.
    pub(super) fn may_use_key(&self, mask: u8) -> bool {
        let Some(usage) = self.extension(KEY_USAGE) else {
            return true;
        };
        let bits = Der(usage).take(BIT_STRING).unwrap_or_default();
        bits.get(1).is_some_and(|first| first & mask != 0)
    }

    /// Whether a TLS server may use the certificate. True if no extension limits its use.
    pub(super) fn may_serve(&self) -> bool {
        let Some(purposes) = self.extension(EXTENDED_KEY_USAGE) else {
            return true;
        };
        let mut purposes = Der(Der(purposes).take(SEQUENCE).unwrap_or_default());
        while let Some(purpose) = purposes.take(OBJECT) {
            if purpose == SERVER_AUTH {
                return true;
            }
        }
        false
    }

    /// The public key without tag and length, as in a trust anchor.
    pub(super) fn bare_key(&self) -> &'a [u8] {
        Der(self.key).take(SEQUENCE).unwrap_or_default()
    }

    /// Whether the owner of the bare `key` signed the certificate.
    pub(super) fn is_signed_by(
        &self,
        key: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> bool {
        let mut candidates = algorithms
            .iter()
            .filter(|candidate| candidate.signature_alg_id().as_ref() == self.algorithm);
        candidates
            .any(|&candidate| is_valid_signature(key, candidate, self.signed_part, self.signature))
    }

    /// The certificate's digest for `tls-server-end-point` (RFC 5929). Its hash is that of the signature, with SHA-256 in place of MD5 and
    /// SHA-1. `None` if the signature algorithm has no fixed hash (Ed25519, RSA-PSS).
    pub(super) fn end_point_digest(&self) -> Option<digest::Digest> {
        const RSA: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1];
        const ECDSA: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 4];
        let id = Der(self.algorithm).take(OBJECT)?;
        let hash = match (id.strip_prefix(RSA), id.strip_prefix(ECDSA)) {
            (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => &digest::SHA256,
            (Some([12]), _) | (_, Some([3, 3])) => &digest::SHA384,
            (Some([13]), _) | (_, Some([3, 4])) => &digest::SHA512,
            _ => return None,
        };
        Some(digest::digest(hash, self.der))
    }
}

/// Whether the owner of the bare `key` signed `message` with `signature`. False if the key does not fit the algorithm.
pub(super) fn is_valid_signature(
    key: &[u8],
    algorithm: &dyn SignatureVerificationAlgorithm,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let mut parts = Der(key);
    let key_algorithm = parts.take(SEQUENCE);
    let key_bytes = parts.take(BIT_STRING).and_then(bit_string_bytes);
    let (Some(key_algorithm), Some(key_bytes)) = (key_algorithm, key_bytes) else {
        return false;
    };
    key_algorithm == algorithm.public_key_alg_id().as_ref()
        && algorithm
            .verify_signature(key_bytes, message, signature)
            .is_ok()
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    ipv4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// The bytes of a bit string; `None` if it does not consist of complete bytes.
fn bit_string_bytes(value: &[u8]) -> Option<&[u8]> {
    match value {
        [0, bytes @ ..] => Some(bytes),
        _ => None,
    }
}

fn parse_extensions(list: &[u8]) -> Option<Vec<Extension<'_>>> {
    let mut list = Der(list);
    let mut extensions: Vec<Extension<'_>> = Vec::new();
    while let Some(extension) = list.take(SEQUENCE) {
        let mut fields = Der(extension);
        let id = fields.take(OBJECT)?;
        let is_critical = fields.take(BOOLEAN).is_some_and(|value| value != [0]);
        let value = fields.take(OCTET_STRING)?;
        // With a duplicate extension it would be ambiguous which one applies.
        if extensions.iter().any(|known| known.id == id) {
            return None;
        }
        extensions.push(Extension {
            id,
            is_critical,
            value,
        });
    }
    list.0.is_empty().then_some(extensions)
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` as seconds since 1970.
fn parse_time((tag, text): (u8, &[u8])) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = digits.get(from..to)?;
        Some(
            digits
                .iter()
                .fold(0, |number, digit| number * 10 + i64::from(digit - b'0')),
        )
    };
    let (year, month_start) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(0, 2)?;
            (year + if year < 50 { 2000 } else { 1900 }, 2)
        }
        (GENERALIZED_TIME, 14) => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |index: usize| number(month_start + 2 * index, month_start + 2 * index + 2);
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    Some(days_since_1970(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second)
}

/// The number of days from 1970-01-01 to a Gregorian date. Years are counted from March, so that the leap day is the last of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month < 3 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_follow_the_calendar() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (GENERALIZED_TIME, "20500101000000+0100", None),
        ] {
            assert_eq!(parse_time((tag, text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn lengths_have_their_shortest_form() {
        assert_eq!(Der(&[4, 1, 7]).next(), Some((4, &[7][..])));
        assert_eq!(Der(&[4, 0x81, 1, 7]).next(), None);
        assert_eq!(Der(&[4, 0x80, 7, 0, 0]).next(), None);
        assert_eq!(Der(&[4, 2, 7]).next(), None);
        assert_eq!(Der(&[0x1F, 0x81, 1, 7]).next(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_certificate_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(certificate) = Certificate::parse(&bytes) {
                let _ = (certificate.validity(), certificate.common_name(), certificate.alternative_names(), certificate.max_authorities_below());
            }
        }
    }
}
