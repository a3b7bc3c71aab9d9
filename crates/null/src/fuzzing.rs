//! The check that the fuzzer runs, and a test with the inputs that it found. Compiled only for fuzzing and tests.

use std::ops::ControlFlow;

use crate::answers::AnswerBook;
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
                    Ok(ControlFlow::Continue(())) => {}
                    outcome => {
                        ended = Some(outcome);
                        break;
                    }
                }
            }
            (ended, out)
        })
    };
    assert_eq!(
        answers(stream.len().max(1)),
        answers(usize::from(size) + 1),
        "splitting the input does not change the answers"
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_corpus_passes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/requests");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the corpus exists") {
            let path = entry.expect("the folder is readable").path();
            super::requests(&std::fs::read(path).expect("the file is readable"));
            count += 1;
        }
        assert!(count > 0, "the corpus is not empty");
    }
}
