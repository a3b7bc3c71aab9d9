//! Memcached: commands on keys, in either dialect. A connection is closed without a goodbye, as clients do.

use howfar_contract::Failed;
use howfar_wire::keyvalue::{CommandCounts, ExpectReplies};
use howfar_wire::memcached::{Dialect, Replies};
use howfar_wire::mysql::row::RowHandling;

use super::{commands_outcome, encode_commands, key_value_login};
use crate::connection_error::ConnectionError;
use crate::session::{Handshake, LoginParameters, Outcome, Protocol, Request};
use crate::workload::commands::Commands;

impl Protocol for Replies {
    fn login(
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Box<dyn Handshake>, Failed> {
        let dialect = parameters.program.commands().and_then(Commands::dialect);
        let replies =
            crate::session::Replies::Memcached(Self::new(dialect.unwrap_or(Dialect::Text)));
        key_value_login(replies, parameters, out)
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
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, ConnectionError> {
        commands_outcome(self.feed(input, |part| handling.handle_bytes(part)))
    }

    fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(bytes);
    }

    fn commands(&mut self) -> Option<&mut dyn ExpectReplies> {
        Some(self)
    }

    #[inline]
    fn counts(&self) -> Option<&CommandCounts> {
        Some(self.counts())
    }

    fn allows_unsolicited(&self) -> bool {
        true
    }
}
