//! The bytes that a login sends, and the bytes that it refuses. Successful logins are tested with real servers.

use howfar_contract::FailCode;
use howfar_contract::jobs::{PsMode, SessionJob, Sysbench, Target, Tls, Workload};
use howfar_wire::mysql::handshake::Account;
use howfar_wire::mysql::server;

use super::*;
use crate::channel::ChannelOptions;

const VERSION: &str = "x";
/// Offset of the greeting's capabilities, after packet header, protocol, version, connection, scramble and filler.
const CAPABILITIES: usize = 4 + 1 + 2 + 4 + 8 + 1;
const COMPRESS: u8 = 1 << 5;
const SSL: u8 = 1 << 3;

fn greeting(tls: bool) -> Vec<u8> {
    let mut out = Vec::new();
    server::greeting(&mut out, VERSION, 7, [9; 20], false);
    out[CAPABILITIES] |= COMPRESS;
    out[CAPABILITIES + 1] |= if tls { SSL } else { 0 };
    out
}

fn over_tls() -> SessionJob {
    SessionJob {
        tls: Some(Tls::default()),
        ..SessionJob::default()
    }
}

/// Feed a login the replies of a server one by one; returns all bytes sent, or the failure.
fn run_login(session: &SessionJob, replies: &[Vec<u8>]) -> Result<Vec<u8>, Failed> {
    let (ready, out) = feed_replies(session, Sysbench::default(), replies)?;
    assert!(ready.is_none());
    Ok(out)
}

/// Feed a login the replies of a server; returns the session, if it was completed, and all bytes sent.
fn feed_replies(
    session: &SessionJob,
    workload: Sysbench,
    replies: &[Vec<u8>],
) -> Result<(Option<Session>, Vec<u8>), Failed> {
    let target = Target::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 1,
    };
    let channel_options = ChannelOptions::new(session, &target)?;
    let workload = Workload::OltpPointSelect(workload);
    let program = Program::new(&workload, 1, 1).expect("the workload is valid");
    let account = Account {
        user: "somebody",
        password: "secret",
        database: "db",
    };
    let parameters = LoginParameters::new(&target, account, &channel_options, &program);
    let mut login = Login::new(&program);
    let mut out = Vec::new();
    let mut ready = None;
    for piece in replies {
        assert!(ready.is_none(), "no reply follows a completed login");
        ready = login.feed(piece, &parameters, &mut out)?;
    }
    Ok((ready, out))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[test]
fn by_default_the_login_is_plain_and_has_no_password_in_clear() {
    let sent = run_login(&SessionJob::default(), &[greeting(true)]).expect("the login begins");
    assert!(contains(&sent, "somebody"));
    assert!(!contains(&sent, "secret"));
    assert_eq!(sent[4] & COMPRESS, 0);
    assert_eq!(sent[5] & SSL, 0);
}

#[test]
fn over_tls_the_account_is_sent_after_the_handshake() {
    let sent = run_login(&over_tls(), &[greeting(true)]).expect("TLS is requested");
    assert_eq!(
        sent[..4],
        [32, 0, 0, 1],
        "the short packet that asks for TLS"
    );
    assert_eq!(sent[5] & SSL, SSL);
    assert_eq!(sent[36], 22, "a handshake record of TLS follows");
    assert!(!contains(&sent, "somebody"));
}

#[test]
fn a_server_without_tls_gets_no_account() {
    let failed = run_login(&over_tls(), &[greeting(false)]).expect_err("the server has no TLS");
    assert_eq!(failed.code, FailCode::Tls);
    assert!(
        failed.message.contains("offers no TLS"),
        "{}",
        failed.message
    );
}

#[test]
fn bytes_in_clear_before_tls_are_refused() {
    let mut ok = Vec::new();
    server::ok(&mut ok, 2, 2);
    let failed = run_login(&over_tls(), &[[greeting(true), ok.clone()].concat()]);
    assert_eq!(failed.expect_err("in one piece").code, FailCode::Protocol);
    let failed = run_login(&over_tls(), &[greeting(true), ok]);
    assert_eq!(failed.expect_err("in two pieces").code, FailCode::Tls);
}

#[test]
fn a_login_accepts_a_limited_number_of_packets() {
    let mut replies = vec![greeting(false)];
    for round in 0..9_u8 {
        let mut switch = Vec::new();
        let payload = [b"\xFEmysql_native_password\0".as_slice(), &[9; 20], &[0]].concat();
        frame::write_packet(&mut switch, 2 + 2 * round, &payload);
        replies.push(switch);
    }
    let failed =
        run_login(&SessionJob::default(), &replies).expect_err("the server never ends the login");
    assert_eq!(failed.code, FailCode::Protocol);
    assert!(
        failed.message.contains("without an end"),
        "{}",
        failed.message
    );
}

#[test]
fn the_password_is_not_sent_in_clear_over_an_open_channel() {
    let mut switch = Vec::new();
    frame::write_packet(&mut switch, 2, b"\xFEmysql_clear_password\0");
    let failed =
        run_login(&SessionJob::default(), &[greeting(false), switch]).expect_err("in clear");
    assert_eq!(failed.code, FailCode::Auth);
    assert!(failed.advice.contains("TLS"), "{}", failed.advice);
}

#[test]
fn an_unknown_authentication_method_is_named() {
    let mut switch = Vec::new();
    frame::write_packet(&mut switch, 2, b"\xFEauth_gssapi_client\0x");
    let failed =
        run_login(&SessionJob::default(), &[greeting(false), switch]).expect_err("Kerberos");
    assert!(
        failed.message.contains("auth_gssapi_client"),
        "{}",
        failed.message
    );
}

/// Without and with prepared statements; the server may switch to another authentication method, which takes one more.
#[test]
fn round_trips_are_counted_by_requests() {
    assert_eq!(round_trips(PsMode::Disable, false), 2, "greeting, login");
    assert_eq!(round_trips(PsMode::Disable, true), 3);
    assert_eq!(
        round_trips(PsMode::Auto, false),
        3,
        "greeting, login, prepare"
    );
    assert_eq!(round_trips(PsMode::Auto, true), 4);
}

fn round_trips(ps_mode: PsMode, switches: bool) -> u32 {
    let mut replies = vec![greeting(false)];
    if switches {
        let payload = [b"\xFEmysql_native_password\0".as_slice(), &[9; 20], &[0]].concat();
        replies.push(Vec::new());
        frame::write_packet(&mut replies[1], 2, &payload);
    }
    let (mut ok, mut prepared) = (Vec::new(), Vec::new());
    server::ok(&mut ok, if switches { 4 } else { 2 }, 2);
    server::prepared(&mut prepared, 1, 0, 0);
    replies.push(ok);
    if ps_mode == PsMode::Auto {
        replies.push(prepared);
    }
    let workload = Sysbench {
        db_ps_mode: ps_mode,
        ..Sysbench::default()
    };
    let (session, _) =
        feed_replies(&SessionJob::default(), workload, &replies).expect("the login succeeds");
    session.expect("the session is ready").round_trips
}

#[test]
fn the_round_trips_of_tls_depend_on_its_version() {
    let round_trips = |version, resumed, retried| {
        let facts = TlsFacts {
            version,
            cipher: "any",
            group: None,
            resumed,
            retried,
        };
        facts.round_trips()
    };
    assert_eq!(round_trips("TLSv1.2", false, false), 2);
    assert_eq!(round_trips("TLSv1.2", true, false), 1);
    assert_eq!(round_trips("TLSv1.3", false, false), 1);
    assert_eq!(round_trips("TLSv1.3", true, false), 1);
    assert_eq!(round_trips("TLSv1.3", false, true), 2);
}
