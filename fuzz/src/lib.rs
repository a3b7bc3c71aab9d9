//! What a fuzzer drives. `wire`, `keyvalue` and `fastcgi` hold the checks of the codecs, which the tests of `howfar-wire` replay as well;
//! the one of the null server lives with it, because what it drives is private.

pub mod fastcgi;
pub mod keyvalue;
pub mod wire;
