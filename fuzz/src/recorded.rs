//! Any conversation can be recorded. The first bytes of each piece say who speaks, how long and how much of it was not kept.

use howfar_record::{Conversation, Dialect, Direction, Salt, digest};

/// Nothing panics, and no byte is counted twice.
pub fn conversation(data: &[u8]) {
    let salt = Salt::default();
    for dialect in [
        Dialect::Mysql { backslash: true },
        Dialect::Postgres { backslash: false },
    ] {
        digest(data, dialect, &salt);
    }
    let mut conversation = Conversation::new(0, true);
    let (mut rest, mut bytes, mut counted, mut now) = (data, 0, 0, 0);
    let mut count = |one: Option<howfar_record::RoundTrip>| {
        counted += one.map_or(0, |one| one.bytes_to_server + one.bytes_to_client);
    };
    while let Some((&[head, skipped], tail)) = rest.split_first_chunk::<2>() {
        let (piece, tail) = tail.split_at(usize::from(head & 0x7F).min(tail.len()));
        rest = tail;
        let skipped = if skipped > 200 {
            usize::from(skipped)
        } else {
            0
        };
        if piece.is_empty() && skipped == 0 {
            continue;
        }
        now += 1;
        bytes += (piece.len() + skipped) as u64;
        let direction = if head & 0x80 == 0 {
            Direction::ToServer
        } else {
            Direction::ToClient
        };
        count(conversation.feed(direction, now, piece, skipped, &salt));
    }
    count(conversation.close());
    assert!(counted <= bytes, "{counted} of {bytes} bytes");
}
