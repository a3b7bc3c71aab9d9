//! Checks whether an application's page is valid, and builds the failure if not: measuring failed pages would be meaningless.

use std::io;

use howfar_contract::jobs::{FastCgi, Target};
use howfar_contract::{FailCode, Failed};
use howfar_wire::fastcgi::{Malformed, ProtocolStatus, Reply};

use crate::failure::target_name;

/// Maximum characters of the application's output quoted in a failure.
const MAX_EXCERPT_CHARS: usize = 200;
const STATUS_OK: u16 = 200;

const LOG_ADVICE: &str = "Look into the application's log (PHP-FPM: error_log, catch_workers_output), and ask for the page as a web server does.";

/// Check a page; return the numbers that it reports about itself, or a failure if it is not valid.
pub(super) fn check_page<'a>(
    fastcgi: &FastCgi,
    reply: &'a Reply,
) -> Result<&'a [(String, u64)], Failed> {
    let invalid = |description: String, advice: &str| {
        Err(application_failure(
            &fastcgi.target,
            &description,
            reply,
            advice,
        ))
    };
    let end = reply.end();
    if let Some((reason, advice)) = end.and_then(|end| describe_refusal(end.protocol)) {
        return invalid(format!("refused a request: {reason}"), advice);
    }
    let Some(response) = reply.response() else {
        return invalid("ended a page within its headers".to_owned(), LOG_ADVICE);
    };
    if response.status != STATUS_OK {
        let advice = match response.status {
            404 => {
                "Check SCRIPT_FILENAME: the application must find this file, by a path as it sees it."
            }
            403 => {
                "Check that the application may read the page's file and every directory above it."
            }
            _ => LOG_ADVICE,
        };
        return invalid(
            format!("answered a page with status {}", response.status),
            advice,
        );
    }
    if reply.errors_bytes() > 0 {
        return invalid(
            "made a page and complained".to_owned(),
            "Mend what it complains of, or let it write that elsewhere (PHP: log_errors, error_log).",
        );
    }
    if let Some(code) = end.map(|end| end.application).filter(|&code| code != 0) {
        return invalid(format!("ended a page with exit code {code}"), LOG_ADVICE);
    }
    if reply.body_end() != fastcgi.ends_with.as_bytes() {
        return invalid(
            format!(
                "sent a page of {} bytes that does not end as it should",
                reply.body_bytes()
            ),
            "The page broke off, or is another one: look into the application's log and at its script.",
        );
    }
    Ok(&response.reported)
}

/// Why a request was rejected, and advice.
fn describe_refusal(status: ProtocolStatus) -> Option<(&'static str, &'static str)> {
    match status {
        ProtocolStatus::Complete => None,
        ProtocolStatus::OneAtATime => Some((
            "it takes one at a time over a connection",
            "Let connections not be kept (keep_connection).",
        )),
        ProtocolStatus::Overloaded => Some((
            "it is overloaded",
            "Give the application more children (PHP-FPM: pm.max_children), or use fewer workers.",
        )),
        ProtocolStatus::UnknownRole => Some((
            "it is no responder",
            "Name the socket of an application that answers requests, as PHP-FPM's.",
        )),
    }
}

/// A failure caused by the application.
fn application_failure(target: &Target, description: &str, reply: &Reply, advice: &str) -> Failed {
    Failed::new(
        FailCode::ServerError,
        format!(
            "the application behind {} {description}{}",
            target_name(target),
            make_excerpt(reply)
        ),
        advice,
    )
}

/// The failure if the connection ended before the page did.
pub(super) fn closed_early(target: &Target, reply: &Reply) -> Failed {
    Failed::new(
        FailCode::ServerGone,
        format!(
            "the application behind {} closed the connection before its page ended{}",
            target_name(target),
            make_excerpt(reply)
        ),
        "Look into the application's log: it may have crashed, or been ended by a limit (PHP-FPM: request_terminate_timeout, memory_limit).",
    )
}

pub(super) fn malformed(target: &Target, error: Malformed, reply: &Reply) -> Failed {
    Failed::new(
        FailCode::Protocol,
        format!(
            "{} sent what is not FastCGI, or no page over it: {error}{}",
            target_name(target),
            make_excerpt(reply)
        ),
        "Check that the socket is that of an application that speaks FastCGI, as PHP-FPM does, and what its page sends as headers.",
    )
}

/// The failure if the application's queue was full for too long.
pub(super) fn queue_full(target: &Target, limit_ns: u64) -> Failed {
    Failed::new(
        FailCode::Connect,
        format!(
            "the application behind {} had no room for another connection within {:.1} s",
            target_name(target),
            limit_ns as f64 / 1e9
        ),
        "Check that the application takes connections; allow a longer queue (PHP-FPM: listen.backlog), more children (pm.max_children), or use fewer workers.",
    )
}

/// `failed`, caused by `error` while connecting, with advice for an application.
pub(super) fn advise_not_listening(mut failed: Failed, error: &io::Error) -> Failed {
    if matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    ) {
        "Start the application, or name the socket that it listens on (PHP-FPM: listen)."
            .clone_into(&mut failed.advice);
    }
    failed
}

/// `failed`, a page that did not arrive in time, with advice for an application.
pub(super) fn advise_timeout(mut failed: Failed, keeps_connection: bool) -> Failed {
    let advice = if keeps_connection {
        "Give the application a child for each worker, which a kept connection binds (PHP-FPM: pm.max_children), or allow a longer wait."
    } else {
        "Look for what the application waits for, give it more children (PHP-FPM: pm.max_children), or allow a longer wait."
    };
    advice.clone_into(&mut failed.advice);
    failed
}

/// The beginning of the application's errors, or of its page if it wrote none.
fn make_excerpt(reply: &Reply) -> String {
    let bytes = if reply.errors_bytes() > 0 {
        reply.errors_start()
    } else {
        reply.body_start()
    };
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .map(printable)
        .take(MAX_EXCERPT_CHARS)
        .collect();
    match text.trim() {
        "" => String::new(),
        text => format!("; it said `{text}`"),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
