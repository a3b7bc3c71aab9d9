//! Checks of PostgreSQL's codec on any bytes. Each panics when something is wrong; not here: the fuzzer, and where the bytes come from.
//!
//! The first bytes of the input say how (settings, sizes of the pieces); the rest is what a server is supposed to have sent.

use std::cell::RefCell;

use howfar_wire::mysql::auth::{Channel, KeySource, Secrecy};
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::postgres::auth::{Binding, Exchange};
use howfar_wire::postgres::reply::{self, Failure, Tag, TransactionStatus};
use howfar_wire::postgres::{Answer, Framer, Malformed, Outcome};

const PASSWORD: &str = "a password of some length";

/// What an answer came to, and what is wrong with what follows.
type Ended = Result<Vec<Outcome>, Malformed>;

fn outcomes_of(stream: &[u8], sizes: [usize; 2], parts: u32, work: &mut RowHandling) -> Ended {
    let mut answer = Answer::default();
    answer.begin(parts);
    let (mut rest, mut ended) = (stream, Vec::new());
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        ended.extend(answer.feed(piece, work)?);
    }
    Ok(ended)
}

thread_local! {
    static WORKS: RefCell<[RowHandling; 3]> = RefCell::new([RowHandling::Skip, RowHandling::touch(), RowHandling::Decode]);
}

/// Any split of an answer means the same, whatever is done with its rows; and any message can be looked at as anything.
pub fn postgres(data: &[u8]) {
    let Some((&[settings, one, other], stream)) = data.split_first_chunk::<3>() else {
        return;
    };
    let sizes = [one, other].map(|size| usize::from(size) + 1);
    let parts = u32::from(settings % 4);
    WORKS.with_borrow_mut(|works| {
        let [skipped, touched, decoded] = works.each_mut().map(|work| {
            let whole = outcomes_of(stream, [stream.len().max(1); 2], parts, work);
            let split = outcomes_of(stream, sizes, parts, work);
            // What is too long is found out as a whole message only where it is whole.
            assert_eq!(whole.is_ok(), split.is_ok(), "a split changes the answer");
            assert!(
                whole.is_err() || whole == split,
                "a split changes the outcome"
            );
            whole
        });
        assert_eq!(skipped, touched, "copying rows changes the answer");
        // Decoding sees more of what is wrong, and nothing else.
        assert!(
            decoded.is_err() || skipped == decoded,
            "decoding rows changes the answer"
        );
        let ends = skipped.map_or(0, |ended| ended.len());
        assert!(ends <= 1 && (ends == 0 || parts > 0), "an answer ends once");
    });
    messages(stream, sizes);
}

fn messages(stream: &[u8], sizes: [usize; 2]) {
    let found = |sizes: [usize; 2]| {
        let (mut framer, mut found, mut rest) = (Framer::new(1 << 16), Vec::new(), stream);
        for &size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut piece, after) = rest.split_at(size.min(rest.len()));
            rest = after;
            loop {
                match framer.next(&mut piece) {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    };
    let whole = found([stream.len().max(1); 2]);
    assert_eq!(whole, found(sizes), "a split changes the messages");
    let mut exchange = Exchange::default();
    let open = Secrecy::without_consent(Channel::Open {
        key: KeySource::None,
    });
    for (_, body) in &whole.0 {
        let _ = Failure::parse(body);
        let _ = Tag::parse(body);
        let _ = TransactionStatus::parse(body);
        let _ = reply::parse_parameter(body);
        let _ = reply::decode_row(body, |_| ());
        let mut out = Vec::new();
        let account = ("somebody", PASSWORD);
        let went = exchange.handle_request(body, account, open, Binding::default(), &mut out);
        let shown = out
            .windows(PASSWORD.len())
            .any(|part| part == PASSWORD.as_bytes());
        assert!(!shown, "the password leaves");
        assert!(went.is_ok() || out.is_empty(), "a refusal says something");
        if went.is_err() {
            break;
        }
    }
}
