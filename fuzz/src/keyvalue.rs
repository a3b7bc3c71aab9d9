//! Checks of the codecs of Redis and Memcached on any bytes. Each panics when something is wrong; not here: the fuzzer, and where the
//! bytes come from.
//!
//! The first bytes of the input say how (settings, sizes of the pieces); the rest is what a server is supposed to have sent.

use howfar_wire::keyvalue::{CommandCounts, ExpectReplies as _, Expected, Malformed};
use howfar_wire::memcached::{self, Dialect};
use howfar_wire::redis::{self, Decoder, Value};

/// What a request has asked, by the bits of the settings.
fn asked(settings: u8) -> Vec<Expected> {
    let one = |at: u8| match (settings >> (2 * at)) & 3 {
        0 => Expected::Get,
        1 => Expected::MultiGet(2),
        2 => Expected::Write,
        _ => Expected::MultiGet(u16::from(at)),
    };
    (0..3).map(one).collect()
}

/// Give `stream` to `take` in pieces until it ends or something is wrong.
fn pieces(
    mut stream: &[u8],
    sizes: [usize; 2],
    mut take: impl FnMut(&[u8]) -> Option<Malformed>,
) -> Option<Malformed> {
    for &size in sizes.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (piece, rest) = stream.split_at(size.min(stream.len()));
        stream = rest;
        if let Some(wrong) = take(piece) {
            return Some(wrong);
        }
    }
    None
}

/// Settings, sizes of two pieces that take turns, and the stream.
fn split(data: &[u8]) -> Option<(u8, [usize; 2], &[u8])> {
    let (&[settings, one, other], stream) = data.split_first_chunk::<3>()?;
    let sizes = [one, other].map(|size| usize::from(size % 64) + 1);
    Some((settings, sizes, stream))
}

/// What replies came to: counts, the bytes of values, and what is wrong. `feed` gives the counts so far.
type Followed = (Option<CommandCounts>, Vec<u8>, Option<Malformed>);

fn followed(
    stream: &[u8],
    sizes: [usize; 2],
    mut feed: impl FnMut(&[u8], &mut Vec<u8>) -> Result<Option<CommandCounts>, Malformed>,
) -> Followed {
    let (mut counts, mut seen) = (None, Vec::new());
    let wrong = pieces(stream, sizes, |piece| match feed(piece, &mut seen) {
        Ok(ended) => {
            counts = ended.or(counts.take());
            None
        }
        Err(wrong) => Some(wrong),
    });
    if wrong.is_some() {
        // How much was passed on before depends on how it came.
        return (None, Vec::new(), wrong);
    }
    (counts, seen, wrong)
}

fn values(stream: &[u8], sizes: [usize; 2]) -> (Vec<Value>, Option<Malformed>) {
    let (mut decoder, mut found) = (Decoder::new(1 << 16), Vec::new());
    let wrong = pieces(stream, sizes, |mut piece| {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(value)) => found.push(value),
                Ok(None) => return None,
                Err(wrong) => return Some(wrong),
            }
        }
    });
    (found, wrong)
}

/// Any split of Redis' replies means the same, as values and as counts; whoever counts and whoever decodes see the same replies.
pub fn redis(data: &[u8]) {
    let Some((settings, sizes, stream)) = split(data) else {
        return;
    };
    let whole = [stream.len().max(1); 2];
    let decoded = values(stream, whole);
    // Not compared as values: a number that is none is not equal to itself.
    assert_eq!(
        format!("{decoded:?}"),
        format!("{:?}", values(stream, sizes)),
        "a split changes the values"
    );
    let asked = asked(settings);
    let follow = |sizes: [usize; 2]| {
        let mut replies = redis::Replies::default();
        replies.begin();
        for &one in &asked {
            replies.expect(one);
        }
        followed(stream, sizes, |piece, seen| {
            let ended = replies.feed(piece, |part| seen.extend_from_slice(part))?;
            Ok(ended.then(|| replies.counts().clone()))
        })
    };
    let all = follow(whole);
    assert_eq!(all, follow(sizes), "a split changes the replies");
    if let (Some(counts), (found, None)) = (all.0, decoded) {
        let replies = found.iter().filter(|one| !matches!(one, Value::Push(_)));
        assert_eq!(
            replies.count(),
            asked.len(),
            "replies are counted otherwise"
        );
        let answered = (counts.reads + counts.writes) as usize;
        assert_eq!(answered + counts.errors.len(), asked.len());
    }
}

/// Any split of Memcached's replies means the same, in both dialects.
pub fn memcached(data: &[u8]) {
    let Some((settings, sizes, stream)) = split(data) else {
        return;
    };
    let asked = asked(settings);
    let dialect = if settings & 0x40 == 0 {
        Dialect::Text
    } else {
        Dialect::Meta
    };
    let follow = |sizes: [usize; 2]| {
        let mut replies = memcached::Replies::new(dialect);
        replies.begin();
        for &one in &asked {
            replies.expect(one);
        }
        followed(stream, sizes, |piece, seen| {
            let ended = replies.feed(piece, |part| seen.extend_from_slice(part))?;
            Ok(ended.then(|| replies.counts().clone()))
        })
    };
    let whole = follow([stream.len().max(1); 2]);
    assert_eq!(whole, follow(sizes), "a split changes the replies");
    if let Some(counts) = &whole.0 {
        let answered = (counts.reads + counts.writes) as usize;
        assert_eq!(answered + counts.errors.len(), asked.len());
        assert!(whole.1.len() <= stream.len(), "more came out than went in");
    }
}
