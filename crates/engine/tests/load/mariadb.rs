//! A private MariaDB with sysbench's tables, removed after the test.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of servers that this process has started.
static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Server {
    directory: PathBuf,
    port: u16,
    command: Command,
    process: Child,
}

/// The path of an installed program; None if it is not installed.
fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
}

impl Server {
    /// Start a server. `None`, with a message on stderr, if MariaDB is not installed.
    pub(crate) fn start(tables: u64, rows: u64) -> Option<Self> {
        let (Some(server), Some(_), Some(install)) = (
            find_program("mariadbd"),
            find_program("mariadb"),
            find_program("mariadb-install-db"),
        ) else {
            eprintln!("SKIPPED: mariadbd, mariadb or mariadb-install-db is not installed");
            return None;
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("howfar-db-{}-{number}", std::process::id()));
        let data = format!("--datadir={}", directory.join("data").display());
        // A starting server empties its directory for temporary tables, so it must not share the directory with another server.
        let temporary = directory.join("tmp");
        std::fs::create_dir_all(&temporary).expect("the directory can be created");
        let mut installer = Command::new(install);
        installer.env("TMPDIR", &temporary).args([
            "--no-defaults",
            &data,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        let mut command = Command::new(server);
        command.env("TMPDIR", &temporary).args([
            "--no-defaults",
            &data,
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=400",
        ]);
        if rustix::process::getuid().is_root() {
            installer.arg("--user=root");
            command.arg("--user=root");
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port is free")
            .port();
        command.arg(format!("--port={port}"));
        command.arg(format!("--socket={}", directory.join("s").display()));
        command.arg(format!("--pid-file={}", directory.join("pid").display()));
        let outcome = installer.output().expect("mariadb-install-db starts");
        assert!(
            outcome.status.success(),
            "mariadb-install-db failed: {outcome:?}"
        );
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("mariadbd starts");
        let mut server = Self {
            directory,
            port,
            command,
            process,
        };
        server.wait_until_ready();
        server.create_tables(tables, rows);
        Some(server)
    }

    /// Kill the server to simulate a crash.
    pub(crate) fn crash(&mut self) {
        self.process.kill().expect("the server is a child process");
        self.process.wait().expect("the server is a child process");
    }

    /// Start again on the same data and socket, and wait until it accepts clients.
    pub(crate) fn restart(&mut self) {
        self.process = self.command.spawn().expect("mariadbd starts");
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.try_query("SELECT 1").is_none() {
            let ended = self
                .process
                .try_wait()
                .expect("the server is a child process");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "mariadbd did not start: {ended:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Wait until there is no other session; sessions end some time after their clients.
    pub(crate) fn wait_until_alone(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.counters()["Threads_connected"].as_u64() > Some(1) {
            assert!(Instant::now() < deadline, "all other sessions end");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn create_tables(&self, tables: u64, rows: u64) {
        self.query("CREATE DATABASE sbtest");
        for table in 1..=tables {
            self.query(&format!(
                "USE sbtest; CREATE TABLE sbtest{table} (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER NOT NULL DEFAULT 0, \
                 c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '', PRIMARY KEY (id), KEY (k)); \
                 INSERT INTO sbtest{table} SELECT seq, seq, RPAD(LPAD(seq, 11, '0'), 119, '-0123456789'), 'pad' FROM seq_1_to_{rows}"
            ));
        }
    }

    /// Run `sql` with the command line client; returns its output without a header.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.try_query(sql)
            .unwrap_or_else(|| panic!("`{sql}` failed"))
    }

    /// As [`Server::query`]; `None` if the client fails.
    pub(crate) fn try_query(&self, sql: &str) -> Option<String> {
        let output = Command::new("mariadb")
            .args([
                "--no-defaults",
                "-uroot",
                "-N",
                "-r",
                "-S",
                &self.socket(),
                "-e",
                sql,
            ])
            .output()
            .expect("the client starts");
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The server's global counters by name.
    pub(crate) fn counters(&self) -> Map<String, Value> {
        let output = self.query("SHOW GLOBAL STATUS");
        let pairs = output.lines().filter_map(|line| line.split_once('\t'));
        pairs
            .filter_map(|(name, value)| {
                Some((name.to_owned(), Value::from(value.parse::<u64>().ok()?)))
            })
            .collect()
    }

    pub(crate) fn socket(&self) -> String {
        self.directory.join("s").display().to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
