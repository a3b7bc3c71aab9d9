//! The client side of Memcached's protocols that are text: the classic one and the meta commands. Not here: the binary protocol, UDP.
//!
//! [`request`] encodes commands, [`Replies`] follows the replies to a request.

mod replies;
pub mod request;

pub use replies::Replies;
pub use request::Dialect;
