//! Memcached: commands on keys, in either dialect. A connection is closed without a goodbye, as clients do.

use howfar_contract::Failed;
use howfar_wire::keyvalue::{CommandCounts, Expects};
use howfar_wire::memcached::{Dialect, Replies};
use howfar_wire::mysql::row::Work;

use super::{
    Handshake, Outcome, Protocol, Request, encode_commands, ended_commands, key_value_login,
};
use crate::connection::Broken;
use crate::login::Entry;
use crate::workload::commands::Commands;

impl Protocol for Replies {
    fn login(entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<Box<dyn Handshake>, Failed> {
        let dialect = entry.program.commands().and_then(Commands::dialect);
        let replies = super::Replies::Memcached(Self::new(dialect.unwrap_or(Dialect::Text)));
        key_value_login(replies, entry, out)
    }

    #[inline]
    fn encode(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> u64 {
        encode_commands(request, out, self)
    }

    #[inline]
    fn decode(
        &mut self,
        input: &[u8],
        _types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, Broken> {
        ended_commands(self.feed(input, |part| work.bytes(part)))
    }

    fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(bytes);
    }

    fn commands(&mut self) -> Option<&mut dyn Expects> {
        Some(self)
    }

    #[inline]
    fn counts(&self) -> Option<&CommandCounts> {
        Some(self.counts())
    }

    fn may_go_on(&self) -> bool {
        true
    }
}
