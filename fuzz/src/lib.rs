//! What a fuzzer drives. `wire`, `postgres`, `keyvalue` and `fastcgi` hold the checks of the codecs, which the tests of `howfar-wire` replay as well;
//! the one of the null server lives with it, because what it drives is private.

pub mod fastcgi;
pub mod keyvalue;
pub mod postgres;
pub mod recorded;
pub mod wire;
