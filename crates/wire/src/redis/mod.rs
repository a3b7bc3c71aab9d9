//! The client side of Redis' protocol, RESP2 and RESP3.
//!
//! [`request`] encodes commands, [`Scanner`] cuts the bytes of replies into tokens, [`Replies`] follows the replies to a request at
//! the lowest cost, and [`Decoder`] turns them into [`Value`]s, for logins and queries about the server. Not implemented: clusters,
//! scripts, streamed strings (RESP3's `$?`, which no server sends).

mod replies;
pub mod request;
mod scanner;
mod value;

pub use replies::Replies;
pub use scanner::{Kind, MAX_DEPTH, Scanner, Token};
pub use value::{Decoder, Value};
