//! One client's conversation, without I/O. A query causes no allocation.

use std::ops::ControlFlow;

use howfar_wire::mysql::command::code::{
    CHANGE_USER, CLOSE, EXECUTE, INIT_DB, PING, PREPARE, QUERY, QUIT, RESET_CONNECTION,
    RESET_STATEMENT, SEND_LONG_DATA, SET_OPTION, STATISTICS,
};
use howfar_wire::mysql::frame::{HEADER_LEN, MAX_PAYLOAD, parse_header};
use howfar_wire::mysql::{Malformed, server};

use crate::answers::{AnswerBook, ClientAnswers};
use crate::statement::{self, Kind};

/// "Unknown command".
const UNKNOWN_COMMAND: u16 = 1047;
/// "Prepared statement contains too many placeholders".
const TOO_MANY_PARAMETERS: u16 = 1390;

/// The state of a conversation. A statement's ID encodes whether it returns rows, so that no statement has to be stored.
#[derive(Debug, Default)]
pub(crate) struct Session {
    is_logged_in: bool,
    caches_metadata: bool,
    statements: u32,
    /// The received part of an incomplete packet; empty and without memory for clients that send each packet in one piece.
    partial_packet: Vec<u8>,
}

impl Session {
    /// Process all of `input` and append the answers to `out`. Breaks if the client sent QUIT.
    #[inline]
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        book: &AnswerBook,
        out: &mut Vec<u8>,
    ) -> Result<ControlFlow<()>, Malformed> {
        if self.partial_packet.is_empty() {
            let (flow, used_bytes) = self.handle_packets(input, book, out)?;
            if used_bytes < input.len() {
                self.partial_packet.extend_from_slice(&input[used_bytes..]);
            }
            return Ok(flow);
        }
        let mut buffered = std::mem::take(&mut self.partial_packet);
        buffered.extend_from_slice(input);
        let (flow, used_bytes) = self.handle_packets(&buffered, book, out)?;
        buffered.drain(..used_bytes);
        if !buffered.is_empty() {
            self.partial_packet = buffered;
        }
        Ok(flow)
    }

    /// Answer the complete packets at the front of `input`; returns the number of bytes used.
    #[inline]
    fn handle_packets(
        &mut self,
        input: &[u8],
        book: &AnswerBook,
        out: &mut Vec<u8>,
    ) -> Result<(ControlFlow<()>, usize), Malformed> {
        let mut rest = input;
        while let Some((&head, tail)) = rest.split_first_chunk::<HEADER_LEN>() {
            let (length, sequence) = parse_header(head);
            if length == MAX_PAYLOAD {
                return Err(Malformed::TooLong {
                    size: length,
                    limit: MAX_PAYLOAD - 1,
                });
            }
            let Some((payload, after)) = tail.split_at_checked(length) else {
                break;
            };
            rest = after;
            let expected = u8::from(!self.is_logged_in);
            if sequence != expected {
                return Err(Malformed::Sequence {
                    expected,
                    received: sequence,
                });
            }
            let flow = self.handle_packet(payload, book, out)?;
            if flow.is_break() {
                return Ok((flow, input.len() - rest.len()));
            }
        }
        Ok((ControlFlow::Continue(()), input.len() - rest.len()))
    }

    #[inline]
    fn handle_packet(
        &mut self,
        payload: &[u8],
        book: &AnswerBook,
        out: &mut Vec<u8>,
    ) -> Result<ControlFlow<()>, Malformed> {
        if !self.is_logged_in {
            self.caches_metadata = server::Login::parse(payload)?.caches_metadata;
            self.is_logged_in = true;
            server::ok(out, 2, server::AUTOCOMMIT);
            return Ok(ControlFlow::Continue(()));
        }
        let answers = book.answers(self.caches_metadata);
        let (&code, body) = payload.split_first().ok_or(Malformed::Short("command"))?;
        match code {
            EXECUTE => {
                let statement = *body
                    .first_chunk::<4>()
                    .ok_or(Malformed::Short("statement id"))?;
                let has_row = u32::from_le_bytes(statement) & 1 == 1;
                out.extend_from_slice(if has_row {
                    &answers.execute_answer
                } else {
                    answers.ok()
                });
            }
            QUERY => answer_query(body, answers, out),
            PREPARE => self.prepare(body, book, out),
            CLOSE | SEND_LONG_DATA => {}
            QUIT => return Ok(ControlFlow::Break(())),
            _ => answer_other(code, answers, out),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn prepare(&mut self, sql: &[u8], book: &AnswerBook, out: &mut Vec<u8>) {
        let Ok(parameters) = u16::try_from(statement::count_parameters(sql)) else {
            server::error(
                out,
                1,
                TOO_MANY_PARAMETERS,
                "HY000",
                "the statement has more than 65535 parameters",
            );
            return;
        };
        let has_row = statement::classify(sql) != Kind::Ok;
        self.statements = self.statements.wrapping_add(1);
        let id = (self.statements << 1) | u32::from(has_row);
        book.write_prepared(out, id, has_row, parameters);
    }
}

/// Append one result for each statement, with the packets numbered consecutively.
fn answer_query(sql: &[u8], answers: &ClientAnswers, out: &mut Vec<u8>) {
    let mut statements = statement::split_statements(sql).peekable();
    let mut next_sequence = 1;
    while let Some(sql_statement) = statements.next() {
        let start = out.len();
        let has_more = statements.peek().is_some();
        out.extend_from_slice(answers.text_answer(statement::classify(sql_statement), has_more));
        if next_sequence != 1 || has_more {
            next_sequence = server::renumber(&mut out[start..], next_sequence);
        }
    }
}

#[cold]
fn answer_other(code: u8, answers: &ClientAnswers, out: &mut Vec<u8>) {
    match code {
        PING | INIT_DB | CHANGE_USER | RESET_STATEMENT | RESET_CONNECTION => {
            out.extend_from_slice(answers.ok());
        }
        SET_OPTION => {
            server::end(out, 1, server::AUTOCOMMIT);
        }
        STATISTICS => {
            howfar_wire::mysql::frame::write_packet(out, 1, b"howfar null server");
        }
        _ => {
            let text = format!("the null server does not know command {code}");
            server::error(out, 1, UNKNOWN_COMMAND, "08S01", &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use howfar_wire::mysql::command::{self, Execute};
    use howfar_wire::mysql::handshake::{Account, Greeting};
    use howfar_wire::mysql::reply::Prepared;
    use howfar_wire::mysql::row::RowHandling;
    use howfar_wire::mysql::{Answer, Framer, ServerError};
    use proptest::prelude::*;

    use super::*;
    use crate::jobs::Flavour;

    /// Log in with our client; returns the session after the login, and a decoder of its answers.
    fn log_in(book: &AnswerBook) -> (Session, Answer) {
        let greeting = book.greeting(3);
        let (mut framer, mut rest) = (Framer::new(1 << 16), greeting.as_slice());
        let payload = framer.next(&mut rest).expect("the packet is well formed");
        let payload = payload.expect("the packet is complete");
        let greeting = Greeting::parse(payload).expect("the packet is a greeting");
        let account = Account {
            user: "any",
            password: "",
            database: "d",
        };
        let (mut login, mut out) = (Vec::new(), Vec::new());
        greeting
            .session()
            .login(&mut login, 1, &account, &greeting.plugin, b"any");
        let mut session = Session::default();
        let flow = session.feed(&login, book, &mut out);
        assert_eq!(flow, Ok(ControlFlow::Continue(())));
        assert_eq!(&out[3..5], [2, 0], "an OK packet with number 2");
        (session, Answer::new(greeting.session().caches_metadata()))
    }

    fn books() -> [AnswerBook; 2] {
        [Flavour::Mariadb, Flavour::Mysql].map(|flavour| AnswerBook::new(flavour, 119))
    }

    fn reply_to(session: &mut Session, book: &AnswerBook, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let flow = session.feed(input, book, &mut out);
        assert_eq!(flow, Ok(ControlFlow::Continue(())));
        out
    }

    /// Prepare a statement; returns the head of the answer and the number of packets after it.
    fn prepare(session: &mut Session, book: &AnswerBook, sql: &str) -> (Prepared, usize) {
        let mut request = Vec::new();
        command::prepare(&mut request, sql.as_bytes());
        let answer = reply_to(session, book, &request);
        let (mut framer, mut rest) = (Framer::new(1 << 16), answer.as_slice());
        framer.expect(1);
        let head = framer.next(&mut rest).expect("the packet is well formed");
        let head = Prepared::parse(head.expect("the packet is complete"))
            .expect("the packet answers a prepare");
        let mut packets = 0;
        while framer
            .next(&mut rest)
            .expect("the packet is well formed")
            .is_some()
        {
            packets += 1;
        }
        (head, packets)
    }

    #[test]
    fn prepares_count_their_parameters_and_executes_are_answered_by_kind() {
        for book in &books() {
            let (mut session, mut answer) = log_in(book);
            for (sql, parameters, columns, packets, rows) in [
                ("SELECT c FROM sbtest1 WHERE id=?", 1, 1, 4, 1),
                ("SELECT c FROM t WHERE id BETWEEN ? AND ?", 2, 1, 5, 1),
                ("UPDATE t SET k=k+1 WHERE id=?", 1, 0, 2, 0),
                ("COMMIT", 0, 0, 0, 0),
            ] {
                let (head, packets_seen) = prepare(&mut session, book, sql);
                assert_eq!(
                    (head.parameters, head.columns, packets_seen),
                    (parameters, columns, packets)
                );
                for is_first in [true, false] {
                    let mut request = Vec::new();
                    let count = usize::from(parameters);
                    let mut execute = Execute::begin(&mut request, head.statement, is_first, count);
                    (0..count).for_each(|value| execute.integer(value as i64));
                    execute.end();
                    let bytes = reply_to(&mut session, book, &request);
                    answer.begin(true);
                    let outcome = answer.feed(
                        &bytes,
                        &[server::STRING][..columns.into()],
                        &mut RowHandling::Decode,
                    );
                    let outcome = outcome.expect("the answer is well formed");
                    assert_eq!(outcome.and_then(|one| one.rows()), Some(rows), "{sql}");
                }
            }
        }
    }

    #[test]
    fn queries_of_several_statements_get_a_result_each() {
        for book in &books() {
            let (mut session, mut answer) = log_in(book);
            for (sql, rows) in [
                ("BEGIN", 0),
                ("SELECT 1", 1),
                ("BEGIN; SELECT 1; UPDATE t SET c=';'; SELECT 2; COMMIT", 2),
                ("SHOW SESSION STATUS", 3),
            ] {
                let mut request = Vec::new();
                command::query(&mut request, sql.as_bytes());
                let bytes = reply_to(&mut session, book, &request);
                answer.begin(false);
                let outcome = answer.feed(&bytes, &[], &mut RowHandling::Decode);
                let outcome = outcome.expect("the answer is well formed");
                assert_eq!(outcome.and_then(|one| one.rows()), Some(rows), "{sql}");
            }
        }
    }

    #[test]
    fn close_gets_no_answer_and_an_unknown_command_an_error() {
        let [book, _] = books();
        let (mut session, _) = log_in(&book);
        let mut request = Vec::new();
        command::close(&mut request, 3);
        assert!(reply_to(&mut session, &book, &request).is_empty());
        for code in [PING, RESET_CONNECTION, INIT_DB] {
            let bytes = reply_to(&mut session, &book, &[1, 0, 0, 0, code]);
            assert_eq!(bytes, book.answers(true).ok());
        }
        let bytes = reply_to(&mut session, &book, &[1, 0, 0, 0, 0x7F]);
        let error = ServerError::parse(&bytes[HEADER_LEN..]).expect("the answer is an error");
        assert_eq!(error.code, UNKNOWN_COMMAND.into());
        let mut out = Vec::new();
        let quit = session.feed(&[1, 0, 0, 0, QUIT], &book, &mut out);
        assert_eq!((quit, out.len()), (Ok(ControlFlow::Break(())), 0));
    }

    #[test]
    fn a_malformed_packet_ends_the_conversation() {
        let [book, _] = books();
        for bytes in [
            b"\xFF\xFF\xFF\0".as_slice(),
            b"\x01\0\0\x07\x0E",
            b"\0\0\0\0",
            b"\x03\0\0\0\x17\x01\x02",
        ] {
            let (mut session, _) = log_in(&book);
            assert!(session.feed(bytes, &book, &mut Vec::new()).is_err());
        }
        let http = b"GET / HTTP/1.1\r\n\r\n";
        assert!(
            Session::default()
                .feed(http, &book, &mut Vec::new())
                .is_ok(),
            "so far an incomplete packet"
        );
    }

    proptest! {
        #[test]
        fn any_split_of_the_input_gives_the_same_answers(cuts in proptest::collection::vec(0_usize..120, 0..6)) {
            let [book, _] = books();
            let mut request = Vec::new();
            command::query(&mut request, b"BEGIN; SELECT 1");
            command::prepare(&mut request, b"SELECT c FROM t WHERE id=?");
            let mut execute = Execute::begin(&mut request, 3, true, 1);
            execute.integer(1);
            execute.end();
            command::close(&mut request, 3);
            let (mut session, _) = log_in(&book);
            let unsplit = reply_to(&mut session, &book, &request);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(request.len())).collect();
            cuts.sort_unstable();
            cuts.push(request.len());
            let (mut session, _) = log_in(&book);
            let (mut start, mut answers) = (0, Vec::new());
            for cut in cuts {
                answers.extend(reply_to(&mut session, &book, &request[start..cut]));
                start = cut;
            }
            prop_assert_eq!(answers, unsplit);
        }
    }
}
