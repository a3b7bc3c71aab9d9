//! The client side of Memcached's text protocols: the classic one and the meta commands. Not implemented: the binary protocol, UDP.
//!
//! [`request`] encodes commands; [`Replies`] follows the replies to a request.

mod replies;
pub mod request;

pub use replies::Replies;
pub use request::Dialect;
