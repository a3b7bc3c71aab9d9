//! Tests the engine with a real PostgreSQL, removed after the test: the same rows in every mode, logins, TLS, errors in transactions, COPY.
//!
//! Skipped, with a message, if no PostgreSQL is installed.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{failure, job, run_engine, success};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The user `nobody`, for the server refuses to run as root.
const NOBODY_UID: u32 = 65_534;

struct Server {
    directory: PathBuf,
    programs: PathBuf,
    port: u16,
    process: Child,
}

/// Find the folder of programs of the newest version that Debian's packages installed.
fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut folders: Vec<PathBuf> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("initdb").exists() && path.join("psql").exists())
        .collect();
    folders.sort();
    folders.pop()
}

/// Run the command as a user that the server accepts.
fn drop_privileges(command: &mut Command) -> &mut Command {
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY_UID).gid(NOBODY_UID);
    }
    command
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

impl Server {
    fn start() -> Option<Self> {
        let Some(programs) = find_programs() else {
            eprintln!("SKIPPED: no PostgreSQL is installed in /usr/lib/postgresql");
            return None;
        };
        let directory = std::env::temp_dir().join(format!("howfar-pg-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("the directory can be created");
        if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(NOBODY_UID), Some(NOBODY_UID))
                .expect("the directory is ours");
        }
        let data = directory.join("data");
        let mut initdb = Command::new(programs.join("initdb"));
        initdb.args(["-U", "u", "-A", "trust", "-E", "UTF8", "--no-sync", "-D"]);
        let status = drop_privileges(initdb.arg(&data)).status();
        assert!(status.expect("initdb starts").success(), "initdb failed");
        let hba = "local all scram scram-sha-256\nlocal all hashed md5\nlocal all clear password\nlocal all all trust\n\
                   host all clear 127.0.0.1/32 password\nhost all all 127.0.0.1/32 trust\n";
        std::fs::write(data.join("pg_hba.conf"), hba).expect("the directory is ours");
        for (name, text) in [
            ("server.crt", include_str!("certificate.pem")),
            ("server.key", include_str!("key.pem")),
        ] {
            let file = data.join(name);
            std::fs::write(&file, text).expect("the directory is ours");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, private).expect("the directory is ours");
            if rustix::process::getuid().is_root() {
                std::os::unix::fs::chown(&file, Some(NOBODY_UID), Some(NOBODY_UID))
                    .expect("the directory is ours");
            }
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port is free")
            .port();
        let mut command = Command::new(programs.join("postgres"));
        command.arg("-D").arg(&data);
        for setting in [
            format!("port={port}"),
            format!("unix_socket_directories={}", directory.display()),
            "listen_addresses=127.0.0.1".to_owned(),
            "ssl=on".to_owned(),
            "fsync=off".to_owned(),
        ] {
            command.args(["-c", &setting]);
        }
        let process = drop_privileges(&mut command)
            .spawn()
            .expect("the server starts");
        let mut server = Self {
            directory,
            programs,
            port,
            process,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while server.psql("SELECT 1").is_none() {
            let ended = server
                .process
                .try_wait()
                .expect("the server is a child process");
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    fn psql(&self, sql: &str) -> Option<String> {
        let output = Command::new(self.programs.join("psql"))
            .args(["-XAtq", "-U", "u", "-d", "postgres", "-c", sql, "-h"])
            .arg(&self.directory)
            .args(["-p", &self.port.to_string()])
            .output()
            .expect("psql starts");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    }

    fn query(&self, sql: &str) -> String {
        self.psql(sql).unwrap_or_else(|| panic!("`{sql}` failed"))
    }

    fn job(&self, workload: &Value) -> Value {
        let path = self.directory.join(format!(".s.PGSQL.{}", self.port));
        let mut job = job(&path.display().to_string());
        job["protocol"] = "postgresql".into();
        job["database"] = "postgres".into();
        job["password"] = "".into();
        job["workload"] = workload.clone();
        // Long enough for a busy machine.
        job["stall_timeout_ns"] = 30_000_000_000_u64.into();
        job["connect_timeout_ns"] = 30_000_000_000_u64.into();
        job
    }

    fn tables(&self, action: &str, workload: &Value) -> Value {
        let job = self.job(workload);
        let tables = json!({
            "job": "tables", "version": 2, "action": action, "protocol": "postgresql", "target": job["target"],
            "user": "u", "database": "postgres", "workload": workload, "connections": 2, "seed": 1,
        });
        let (code, mut events) = run_engine("tables", &format!("{tables}\n"));
        assert_eq!(code, Some(0), "{events:?}");
        events.pop().expect("the engine writes an event")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // The fast shutdown ends all processes of the server.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn the_engine_and_postgresql_agree() {
    let Some(server) = Server::start() else {
        return;
    };
    every_transaction_is_in_the_tables(&server);
    every_workload_of_sysbench_runs(&server);
    a_failed_transaction_is_rolled_back(&server);
    copies_and_notices_are_handled(&server);
    logins_use_the_method_that_the_server_requests(&server);
    the_receipt_has_the_tls_that_the_server_reports(&server);
}

/// The balances agree with the history, which has a row for each transaction, in every mode and with pipelining.
fn every_transaction_is_in_the_tables(server: &Server) {
    let done = server.tables("prepare", &json!({"kind": "tpcb_like", "scale": 1}));
    assert_eq!(done["rows"], 100_011, "{done}");
    server.tables("warmup", &json!({"kind": "tpcb_like"}));
    let mut transactions = 0;
    for (mode, pipeline) in [
        ("auto", 1),
        ("extended", 1),
        ("disable", 1),
        ("multi", 1),
        ("auto", 7),
        ("extended", 3),
    ] {
        let mut job = server.job(&json!({"kind": "tpcb_like", "db_ps_mode": mode}));
        job["session"] = json!({"pipeline": pipeline});
        job["transactions"] = 200.into();
        job["measure_ns"] = 60_000_000_000_u64.into();
        let finished = success(&job).pop().expect("the engine writes an event");
        assert_eq!(
            finished["transactions"], 200,
            "{mode} {pipeline}: {finished}"
        );
        let round_trips = match (mode, pipeline) {
            ("multi", _) | (_, 7) => 200,
            (_, 3) => 600,
            _ => 1400,
        };
        assert_eq!(finished["round_trips"], round_trips, "{mode} {pipeline}");
        assert_eq!(
            (&finished["queries"], &finished["rows"]),
            (&json!(1400), &json!(200))
        );
        assert_eq!(
            finished["classes"],
            json!({"read": 200, "write": 800, "other": 400})
        );
        transactions += 200;
    }
    let sums = server.query(
        "SELECT count(*), sum(delta) = (SELECT sum(abalance) FROM pgbench_accounts), \
         sum(delta) = (SELECT sum(tbalance) FROM pgbench_tellers), sum(delta) = (SELECT sum(bbalance) FROM pgbench_branches) \
         FROM pgbench_history",
    );
    assert_eq!(sums, format!("{transactions}|t|t|t"));
    server.tables("cleanup", &json!({"kind": "tpcb_like"}));
    assert_eq!(
        server.query("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'pgbench%'"),
        "0"
    );
}

fn every_workload_of_sysbench_runs(server: &Server) {
    let load = |kind: &str| json!({"kind": kind, "table_size": 1000});
    let done = server.tables("prepare", &load("oltp_read_write"));
    assert_eq!(done["rows"], 1000);
    server.tables("warmup", &load("oltp_read_write"));
    for kind in [
        "oltp_read_only",
        "oltp_read_write",
        "oltp_write_only",
        "oltp_point_select",
        "oltp_insert",
        "oltp_update_index",
        "oltp_update_non_index",
        "oltp_delete",
        "select_random_points",
        "select_random_ranges",
    ] {
        let mut job = server.job(&load(kind));
        job["transactions"] = 20.into();
        job["measure_ns"] = 60_000_000_000_u64.into();
        job["connections"] = 1.into();
        let finished = success(&job).pop().expect("the engine writes an event");
        assert_eq!(finished["transactions"], 20, "{kind}");
    }
    server.tables("cleanup", &load("oltp_read_write"));
}

/// Half of the divisions are by zero: such a transaction is repeated after a ROLLBACK.
fn a_failed_transaction_is_rolled_back(server: &Server) {
    for mode in ["auto", "extended", "disable", "multi"] {
        let mut job = server.job(&json!({
            "kind": "custom", "db_ps_mode": mode,
            "statements": [
                {"name": "begin", "sql": "BEGIN"}, {"name": "commit", "sql": "COMMIT"},
                {"name": "divide", "sql": "SELECT 1 / ?::int", "parameters": [{"kind": "integer", "low": 0, "high": 1}]},
            ],
            "transactions": [{"name": "t", "steps": [{"statement": "begin"}, {"statement": "divide"}, {"statement": "commit"}]}],
        }));
        job["transactions"] = 100.into();
        job["measure_ns"] = 60_000_000_000_u64.into();
        let refused = failure(&job);
        assert!(
            refused["message"]
                .as_str()
                .expect("the message is a text")
                .contains("22012"),
            "{refused}"
        );
        job["ignore_errors"] = json!(["22012"]);
        let finished = success(&job).pop().expect("the engine writes an event");
        assert_eq!(finished["transactions"], 100, "{mode}");
        let errors = finished["errors"]["22012"]
            .as_u64()
            .expect("the errors are counted");
        assert!((40..400).contains(&errors), "{mode}: {errors}");
    }
}

fn copies_and_notices_are_handled(server: &Server) {
    let make_job = |sql: &str, mode: &str| {
        let mut job = server.job(&json!({
            "kind": "custom", "db_ps_mode": mode, "statements": [{"name": "s", "sql": sql}],
            "transactions": [{"name": "t", "steps": [{"statement": "s"}]}],
        }));
        job["transactions"] = 10.into();
        job["measure_ns"] = 60_000_000_000_u64.into();
        job
    };
    for mode in ["auto", "extended", "disable"] {
        let copied = success(&make_job(
            "COPY (SELECT generate_series(1, 3)) TO STDOUT",
            mode,
        ));
        assert_eq!(
            copied.last().expect("the engine writes events")["rows"],
            30,
            "{mode}"
        );
        success(&make_job("DO $$ BEGIN RAISE NOTICE 'hello'; END $$", mode));
        let refused = failure(&make_job("COPY pg_temp.t FROM STDIN", mode));
        assert_eq!(refused["code"], "server_error", "{refused}");
        server.query("CREATE TABLE IF NOT EXISTS copied(a int)");
        let refused = failure(&make_job("COPY copied FROM STDIN", mode));
        assert!(
            refused["message"]
                .as_str()
                .expect("the message is a text")
                .contains("COPY"),
            "{refused}"
        );
    }
}

fn logins_use_the_method_that_the_server_requests(server: &Server) {
    server.query("CREATE ROLE scram LOGIN PASSWORD 'sécret'");
    server.query("SET password_encryption = 'md5'; CREATE ROLE hashed LOGIN PASSWORD 'sécret'");
    server.query("CREATE ROLE clear LOGIN PASSWORD 'sécret'");
    let mut job = server.job(
        &json!({"kind": "custom", "statements": [{"name": "s", "sql": "SELECT 1"}],
        "transactions": [{"name": "t", "steps": [{"statement": "s"}]}]}),
    );
    for (user, method, round_trips) in [
        ("u", "none", 2),
        ("scram", "scram-sha-256", 4),
        ("hashed", "md5", 3),
        ("clear", "password", 3),
    ] {
        job["user"] = user.into();
        job["password"] = "sécret".into();
        let receipt = success(&job)[0]["receipt"].clone();
        assert_eq!(receipt["auth_plugin"], method);
        assert_eq!(receipt["connect_turns"], round_trips, "{user}");
        assert_eq!(
            (&receipt["address_family"], &receipt["server_address"]),
            (&json!("unix"), &Value::Null)
        );
        assert!(receipt["server_connection_id"].is_u64());
        if user != "u" {
            job["password"] = "another".into();
            assert_eq!(failure(&job)["code"], "auth");
        }
    }
    // A cleartext password is sent over TCP only with both TLS and `allow_cleartext_password`.
    job["user"] = "clear".into();
    job["target"] = json!({"kind": "tcp", "host": "127.0.0.1", "port": server.port});
    for session in [
        json!({}),
        json!({"allow_cleartext_password": true}),
        json!({"tls": {}}),
    ] {
        job["session"] = session;
        let failed = failure(&job);
        assert!(
            failed["message"]
                .as_str()
                .expect("the message is a text")
                .contains("not sent"),
            "{failed}"
        );
    }
    job["session"] = json!({"tls": {}, "allow_cleartext_password": true});
    job["password"] = "sécret".into();
    assert_eq!(success(&job)[0]["receipt"]["auth_plugin"], "password");
}

fn the_receipt_has_the_tls_that_the_server_reports(server: &Server) {
    for (versions, tls_version, round_trips) in [("1.2", "TLSv1.2", 2), ("1.3", "TLSv1.3", 1)] {
        let mut job = server.job(&json!({"kind": "oltp_point_select", "db_ps_mode": "disable"}));
        server.tables("prepare", &json!({"kind": "oltp_point_select"}));
        job["target"] = json!({"kind": "tcp", "host": "127.0.0.1", "port": server.port});
        job["session"] = json!({"tls": {"versions": versions, "resumption": false}, "connect": "per_transaction"});
        let receipt = success(&job)[0]["receipt"].clone();
        assert_eq!(receipt["tls_version"], tls_version);
        assert_eq!(
            (&receipt["tls_cipher"], &receipt["tls_version"]),
            (
                &receipt["tls_client_cipher"],
                &receipt["tls_client_version"]
            )
        );
        assert_eq!(
            receipt["server_address"],
            format!("127.0.0.1:{}", server.port)
        );
        // Three round trips are for TCP, the request for TLS and the login. Servers before 18 choose another group than the first offered.
        let retried = u64::from(receipt["tls_retried"] == true);
        assert_eq!(receipt["connect_turns"], 3 + round_trips + retried);
        server.tables("cleanup", &json!({"kind": "oltp_point_select"}));
    }
}
