//! Checks of the codec of FastCGI on any bytes. Each panics when something is wrong; not here: the fuzzer, and where the bytes come from.
//!
//! The first bytes of the input say how (settings, sizes of the pieces); the rest is what an application is supposed to have sent: records
//! or, by a bit of the settings, the response within them.

use howfar_wire::fastcgi::{End, MAX_EXCERPT_BYTES, Malformed, Reply, Response};

/// All that is known of a reply at its end, or what is wrong with it.
type Followed = Result<(bool, Option<End>, Option<Response>, [Vec<u8>; 3], [u64; 2]), Malformed>;

fn followed(mut stream: &[u8], sizes: [usize; 2], tail: usize) -> Followed {
    let (mut reply, mut ended) = (Reply::new(tail), false);
    for &size in sizes.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (piece, rest) = stream.split_at(size.min(stream.len()));
        stream = rest;
        ended = reply.feed(piece)?;
    }
    let kept = [reply.body_start(), reply.body_end(), reply.errors_start()];
    assert!(kept[1].len() <= tail, "more of the body than is wanted");
    assert!(kept.iter().all(|kept| kept.len() <= MAX_EXCERPT_BYTES));
    assert_eq!(ended, reply.end().is_some() && ended);
    Ok((
        ended,
        reply.end(),
        reply.response().cloned(),
        kept.map(<[u8]>::to_vec),
        [reply.body_bytes(), reply.errors_bytes()],
    ))
}

/// `content` as a whole reply, in records of at most so many bytes.
fn records(content: &[u8], size: usize, padding: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut record = |kind: u8, content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        out.extend_from_slice(&[1, kind, 0, 1, high, low, padding, 0]);
        out.extend_from_slice(content);
        out.resize(out.len() + usize::from(padding), 0);
    };
    for part in content.chunks(size) {
        record(6, part);
    }
    record(6, &[]);
    record(3, &[0; 8]);
    out
}

/// Any split of a reply means the same, and so does any cut of its response into records.
pub fn fastcgi(data: &[u8]) {
    let Some((&[settings, one, other], stream)) = data.split_first_chunk::<3>() else {
        return;
    };
    let sizes = [one, other].map(|size| usize::from(size % 64) + 1);
    let tail = usize::from(settings >> 2);
    let whole = |stream: &[u8]| followed(stream, [stream.len().max(1); 2], tail);
    if settings & 1 == 0 {
        let all = whole(stream);
        assert_eq!(
            all,
            followed(stream, sizes, tail),
            "a split changes a reply"
        );
        return;
    }
    let all = whole(&records(stream, usize::from(u16::MAX), 0));
    let padding = if settings & 2 == 0 { 0 } else { one };
    let cut = records(stream, sizes[0], padding);
    assert_eq!(all, whole(&cut), "records change a response");
    assert_eq!(
        all,
        followed(&cut, sizes, tail),
        "a split changes a response"
    );
    if let Ok((ended, _, response, [first, last, _], [body, _])) = all {
        assert!(ended);
        assert!(response.is_some() || body == 0);
        let body = &stream[stream.len() - body as usize..];
        assert!(body.starts_with(&first) && body.ends_with(&last));
        assert_eq!(first.len(), body.len().min(MAX_EXCERPT_BYTES));
        assert_eq!(last.len(), body.len().min(tail));
    }
}
