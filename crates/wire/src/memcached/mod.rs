//! The client side of Memcached's protocols that are text: the classic one and the meta commands. Not here: the binary protocol, UDP.
//!
//! [`request`] encodes commands, [`Replies`] follows the replies to a request.

mod replies;
pub mod request;

pub use replies::Replies;
pub use request::Dialect;

/// Longest key; neither protocol lets one hold a blank or a control character.
pub const LONGEST_KEY: usize = 250;

/// True when the protocols can carry `key`.
pub fn is_key(key: &[u8]) -> bool {
    (1..=LONGEST_KEY).contains(&key.len()) && key.iter().all(|byte| (0x21..0x7F).contains(byte))
}
