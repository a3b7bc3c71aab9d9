//! The check that a fuzzer drives, and a test with the inputs that it found. Compiled only for fuzzing and tests.

use crate::canned::AnswerBook;
use crate::jobs::Flavour;
use crate::session::Session;

thread_local! {
    static BOOKS: [AnswerBook; 2] = [Flavour::Mariadb, Flavour::Mysql].map(|flavour| AnswerBook::new(flavour, 5));
}

/// Check that any bytes from a client are handled, and that their split does not change the answers. The first two bytes of `data`
/// select the flavour and the size of the pieces.
pub fn requests(data: &[u8]) {
    let Some((&[settings, size], stream)) = data.split_first_chunk::<2>() else {
        return;
    };
    let answers = |size: usize| {
        BOOKS.with(|books| {
            let (mut session, mut out) = (Session::default(), Vec::new());
            let mut ended = None;
            for piece in stream.chunks(size) {
                match session.feed(piece, &books[usize::from(settings & 1)], &mut out) {
                    Ok(crate::session::Next::Continue) => {}
                    other => {
                        ended = Some(other);
                        break;
                    }
                }
            }
            (ended, out)
        })
    };
    let whole = answers(stream.len().max(1));
    assert_eq!(
        whole,
        answers(usize::from(size) + 1),
        "a split changes the answers"
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs the inputs that the fuzzer found worth keeping.
    #[test]
    fn the_corpus_is_taken() {
        let address = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/requests");
        let entries = std::fs::read_dir(address).expect("the corpus");
        let mut count = 0;
        for entry in entries {
            super::requests(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "an empty corpus tests nothing");
    }
}
