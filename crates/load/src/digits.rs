//! Strings of random characters: the `c` and `pad` columns of sysbench's tables, and texts of a requested compressibility.
//!
//! Pure: the same random numbers give the same characters. Sysbench draws each digit; here one number of 64 bits gives sixteen.

use howfar_contract::jobs::Alphabet;

use crate::random_stream::RandomStream;

/// Length of a value that [`write_c`] writes: 10 groups of 11 digits and the dashes between.
pub const C_LENGTH: usize = 119;
/// Length of a value that [`write_pad`] writes: 5 groups.
pub const PAD_LENGTH: usize = 59;

const GROUP_DIGITS: usize = 11;
/// Number of digits from one random number.
const DIGITS_PER_DRAW: usize = 16;
const DIGIT_VALUES: u64 = 10_u64.pow(DIGITS_PER_DRAW as u32);
/// Number of letters from one random number.
const LETTERS_PER_DRAW: u32 = 10;
const LETTER_VALUES: u64 = 26_u64.pow(LETTERS_PER_DRAW);

/// The phrase repeated in a compressible text: longer than zlib's minimum match of three bytes, shorter than its window.
const LETTER_PHRASE: &[u8] = b"thequickbrownfoxjumpsoverthelazydogs";
const DIGIT_PHRASE: &[u8] = b"31415926535897932384626433832795";

/// Append a value of column `c`.
pub fn write_c(random: &mut RandomStream, out: &mut Vec<u8>) {
    write_groups::<{ 7 * DIGITS_PER_DRAW }, 10>(random, out);
}

/// Append a value of column `pad`.
pub fn write_pad(random: &mut RandomStream, out: &mut Vec<u8>) {
    write_groups::<{ 4 * DIGITS_PER_DRAW }, 5>(random, out);
}

/// Append `length` characters. A share of about `compressible` repeats one phrase; the rest is random.
pub fn write_text(
    random: &mut RandomStream,
    length: usize,
    alphabet: Alphabet,
    compressible: f64,
    out: &mut Vec<u8>,
) {
    let repeated_chars = (length as f64 * compressible.clamp(0.0, 1.0)).round() as usize;
    let phrase = match alphabet {
        Alphabet::Letters => LETTER_PHRASE,
        Alphabet::Digits => DIGIT_PHRASE,
    };
    let end = out.len() + length;
    out.extend(phrase.iter().cycle().take(repeated_chars));
    while out.len() < end {
        let missing_chars = end - out.len();
        match alphabet {
            Alphabet::Digits => {
                let digits = sixteen_digits(random);
                out.extend_from_slice(&digits[..missing_chars.min(DIGITS_PER_DRAW)]);
            }
            Alphabet::Letters => {
                let letters = ten_letters(random);
                out.extend_from_slice(&letters[..missing_chars.min(letters.len())]);
            }
        }
    }
}

/// Draw `DIGITS` random digits and append the first `GROUPS` groups of them.
#[inline]
fn write_groups<const DIGITS: usize, const GROUPS: usize>(
    random: &mut RandomStream,
    out: &mut Vec<u8>,
) {
    const { assert!(DIGITS >= GROUPS * GROUP_DIGITS) };
    let mut digits = [0; DIGITS];
    for sixteen in digits.chunks_exact_mut(DIGITS_PER_DRAW) {
        sixteen.copy_from_slice(&sixteen_digits(random));
    }
    out.reserve(GROUPS * (GROUP_DIGITS + 1));
    for group in digits.chunks_exact(GROUP_DIGITS).take(GROUPS) {
        out.extend_from_slice(group);
        out.push(b'-');
    }
    // No dash after the last group.
    out.pop();
}

/// Sixteen random digits.
#[inline]
fn sixteen_digits(random: &mut RandomStream) -> [u8; DIGITS_PER_DRAW] {
    let number = scale(random.bits(), DIGIT_VALUES);
    let (high, low) = (number / 100_000_000, number % 100_000_000);
    let mut digits = [0; DIGITS_PER_DRAW];
    digits[..8].copy_from_slice(&eight_digits(high));
    digits[8..].copy_from_slice(&eight_digits(low));
    digits
}

/// Ten random letters.
fn ten_letters(random: &mut RandomStream) -> [u8; LETTERS_PER_DRAW as usize] {
    let mut number = scale(random.bits(), LETTER_VALUES);
    std::array::from_fn(|_| {
        let letter = b'a' + (number % 26) as u8;
        number /= 26;
        letter
    })
}

/// Scale 64 random bits to a number in `0..bound` (Lemire 2019). The probabilities of any two values differ by a factor of at most
/// 1 + 2^-10, because `bound` is below 2^54.
#[inline]
fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// The eight digits of a number below 10^8. The digits are halved three times within one word: into 4 + 4, four times 2, eight times 1.
#[inline]
fn eight_digits(number: u64) -> [u8; 8] {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    // x * 10486 >> 20 is x / 100 for x below 10^4, and x * 103 >> 10 is x / 10 for x below 100.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((twos * 103) >> 10) & 0x000F_000F_000F_000F;
    let ones = tens | ((twos - tens * 10) << 8);
    (ones | 0x3030_3030_3030_3030).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn collect_output(write: impl Fn(&mut RandomStream, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = b"before".to_vec();
        write(&mut RandomStream::new(1, 2, 3), &mut out);
        assert!(out.starts_with(b"before"));
        out.split_off(6)
    }

    fn has_groups(value: &[u8], count: usize) -> bool {
        let text = std::str::from_utf8(value).expect("ASCII");
        let groups: Vec<&str> = text.split('-').collect();
        groups.len() == count
            && groups.iter().all(|group| {
                group.len() == GROUP_DIGITS && group.bytes().all(|byte| byte.is_ascii_digit())
            })
    }

    #[test]
    fn columns_have_their_format() {
        let (wide, narrow) = (collect_output(write_c), collect_output(write_pad));
        assert_eq!((wide.len(), narrow.len()), (C_LENGTH, PAD_LENGTH));
        assert!(has_groups(&wide, 10) && has_groups(&narrow, 5));
        assert_eq!(
            wide,
            collect_output(write_c),
            "the same random numbers give the same value"
        );
    }

    #[test]
    fn eight_digits_are_those_of_the_number() {
        let mut numbers: Vec<u64> = (0..100_000).map(|step| step * 1_000).collect();
        numbers.extend((0..10_000).chain(99_990_000..100_000_000));
        for number in numbers {
            assert_eq!(eight_digits(number), format!("{number:08}").as_bytes());
        }
    }

    /// Counts of the 10 digits at each of 110 positions: chi-square with 9 degrees (mean 9, variance 18). The mean of the statistics
    /// over the positions has standard deviation sqrt(18 / 110) = 0.40; six of these are allowed, and 50 at the worst position.
    #[test]
    fn digits_are_uniform_at_every_position() {
        let rows = 20_000;
        let mut counts = [[0_u32; 10]; C_LENGTH];
        let mut value = Vec::new();
        for row in 0..rows {
            value.clear();
            write_c(&mut RandomStream::new(5, 1, row), &mut value);
            for (position, digit) in value.iter().enumerate().filter(|(_, byte)| **byte != b'-') {
                counts[position][usize::from(digit - b'0')] += 1;
            }
        }
        let expected = rows as f64 / 10.0;
        let statistics: Vec<f64> = counts
            .iter()
            .filter(|position| position.iter().any(|&count| count > 0))
            .map(|position| {
                position
                    .iter()
                    .map(|&count| (f64::from(count) - expected).powi(2) / expected)
                    .sum()
            })
            .collect();
        assert_eq!(statistics.len(), 110);
        let mean = statistics.iter().sum::<f64>() / 110.0;
        assert!((mean - 9.0).abs() < 6.0 * 0.40, "{mean}");
        assert!(
            statistics.iter().all(|&statistic| statistic < 50.0),
            "{statistics:?}"
        );
    }

    fn compression_ratio(alphabet: Alphabet, compressible: f64) -> f64 {
        let mut plain = Vec::new();
        write_text(
            &mut RandomStream::new(9, 0, 0),
            100_000,
            alphabet,
            compressible,
            &mut plain,
        );
        assert_eq!(plain.len(), 100_000);
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&plain).expect("memory suffices");
        encoder.finish().expect("memory suffices").len() as f64 / plain.len() as f64
    }

    /// A random letter has an entropy of log2(26) = 4.70 bits out of 8, a digit 3.32: no coder needs less, zlib needs up to a tenth
    /// more. A repeated phrase needs almost nothing.
    #[test]
    fn the_compression_ratio_follows_the_compressible_share() {
        for (alphabet, entropy) in [(Alphabet::Letters, 0.588), (Alphabet::Digits, 0.415)] {
            let random = compression_ratio(alphabet, 0.0);
            assert!(
                random > entropy && random < entropy * 1.2,
                "{alphabet:?}: {random}"
            );
            for share in [0.25, 0.5, 0.75, 1.0] {
                let ratio = compression_ratio(alphabet, share);
                assert!(
                    (ratio - random * (1.0 - share)).abs() < 0.02,
                    "{alphabet:?} {share}: {ratio} of {random}"
                );
            }
        }
    }

    #[test]
    fn a_text_has_the_requested_length_and_alphabet() {
        for length in [1, 2, 15, 16, 17, 500] {
            for compressible in [0.0, 0.3, 1.0] {
                let letters = collect_output(|random, out| {
                    write_text(random, length, Alphabet::Letters, compressible, out);
                });
                assert!(letters.len() == length && letters.iter().all(u8::is_ascii_lowercase));
                let digits = collect_output(|random, out| {
                    write_text(random, length, Alphabet::Digits, compressible, out);
                });
                assert!(digits.len() == length && digits.iter().all(u8::is_ascii_digit));
            }
        }
    }
}
