//! Latency histograms in nanoseconds, with three significant digits and a range from 1 ns to the longest possible job.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram as Hdr;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

use crate::events::Histogram;

/// Highest value that a histogram can record. Connecting, warm-up, measured window and stall take at most `LONGEST_NS` each.
const MAX_NS: u64 = 4 * crate::LONGEST_NS;
const DIGITS: u8 = 3;

/// A latency histogram. Recording a value does not allocate memory.
#[derive(Debug, Clone)]
pub struct Latency(Hdr<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    pub fn new() -> Self {
        Self(
            Hdr::new_with_bounds(1, MAX_NS, DIGITS)
                .expect("the bounds are constants that HDR accepts"),
        )
    }

    /// Record a latency in nanoseconds. A latency above the maximum is recorded as the maximum.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Add all values that `other` has recorded.
    pub fn add(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency in nanoseconds at `quantile` (0 to 1), or 0 if the histogram is empty.
    pub fn value_at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// The highest recorded latency in nanoseconds, to three significant digits, or 0 if the histogram is empty.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Convert the histogram to the form in which events contain it.
    pub fn to_event(&self, kind: &str) -> Histogram {
        let mut packed = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.0, &mut packed)
            .expect("writing to memory cannot fail");
        Histogram {
            kind: kind.to_owned(),
            count: self.count(),
            min_ns: if self.0.is_empty() { 0 } else { self.0.min() },
            mean_ns: self.0.mean(),
            p50_ns: self.value_at(0.50),
            p95_ns: self.value_at(0.95),
            p99_ns: self.value_at(0.99),
            max_ns: self.max(),
            data: STANDARD.encode(packed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;

    #[test]
    fn an_encoded_histogram_can_be_decoded() {
        let mut latency = Latency::new();
        for ns in [0, 900, 12_345, 40_000_000, u64::MAX] {
            latency.record(ns);
        }
        let event = latency.to_event("transaction");
        assert_eq!(event.count, 5);
        let bytes = STANDARD.decode(event.data).expect("the data is base64");
        let decoded: Hdr<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .expect("the data is an HDR histogram");
        assert_eq!(decoded.len(), 5);
        assert_eq!(decoded.value_at_quantile(0.5), latency.value_at(0.5));
    }

    #[test]
    fn a_latency_of_hours_is_recorded_exactly() {
        for ns in [3_600_000_000_000, crate::LONGEST_NS, 3 * crate::LONGEST_NS] {
            let mut latency = Latency::new();
            latency.record(ns);
            let deviation = latency.max().abs_diff(ns) as f64 / ns as f64;
            assert!(deviation < 0.001, "{ns} ns became {}", latency.max());
        }
    }

    #[test]
    fn an_empty_histogram_is_all_zero() {
        let event = Latency::new().to_event("begin");
        assert_eq!(
            (event.count, event.min_ns, event.p99_ns, event.max_ns),
            (0, 0, 0, 0)
        );
    }
}
