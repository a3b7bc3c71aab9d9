//! A private MariaDB with sysbench's tables, removed after the test.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the servers of one process apart.
static STARTED: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Server {
    directory: PathBuf,
    port: u16,
    command: Command,
    process: Child,
}

fn found(name: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/usr/local/bin"]
        .iter()
        .map(|place| Path::new(place).join(name))
        .find(|path| path.exists())
}

impl Server {
    /// `None`, with a line on stderr, if MariaDB is not installed.
    pub(crate) fn start(tables: u64, rows: u64) -> Option<Self> {
        let (Some(server), Some(_), Some(install)) = (
            found("mariadbd"),
            found("mariadb"),
            found("mariadb-install-db"),
        ) else {
            eprintln!("SKIPPED: mariadbd, mariadb or mariadb-install-db is not installed");
            return None;
        };
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("howfar-db-{}-{number}", std::process::id()));
        let data = format!("--datadir={}", directory.join("data").display());
        // At its start a server empties its directory for temporary tables, so it must not share that with another server.
        let temporary = directory.join("tmp");
        std::fs::create_dir_all(&temporary).expect("a temporary directory");
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
            .and_then(|free| free.local_addr())
            .expect("a free port")
            .port();
        command.arg(format!("--port={port}"));
        command.arg(format!("--socket={}", directory.join("s").display()));
        command.arg(format!("--pid-file={}", directory.join("pid").display()));
        let outcome = installer.output().expect("it runs");
        assert!(
            outcome.status.success(),
            "mariadb-install-db failed: {outcome:?}"
        );
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("mariadbd starts");
        let mut started = Self {
            directory,
            port,
            command,
            process,
        };
        started.wait_until_ready();
        started.fill(tables, rows);
        Some(started)
    }

    /// Kill the server, as in a crash.
    pub(crate) fn crash(&mut self) {
        self.process.kill().expect("our child");
        self.process.wait().expect("our child");
    }

    /// Start again on the same data and socket, and wait until it accepts clients.
    pub(crate) fn restart(&mut self) {
        self.process = self.command.spawn().expect("mariadbd starts");
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.client("SELECT 1").is_none() {
            let ended = self.process.try_wait().expect("our child");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "mariadbd did not start: {ended:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Wait until no other session is left: sessions end some time after their clients.
    pub(crate) fn wait_until_alone(&self) {
        let deadline = Instant::now() + PATIENCE;
        while number(&self.counters()["Threads_connected"]) > 1 {
            assert!(Instant::now() < deadline, "sessions stay open");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn fill(&self, tables: u64, rows: u64) {
        self.query("CREATE DATABASE sbtest");
        for table in 1..=tables {
            self.query(&format!(
                "USE sbtest; CREATE TABLE sbtest{table} (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER NOT NULL DEFAULT 0, \
                 c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '', PRIMARY KEY (id), KEY (k)); \
                 INSERT INTO sbtest{table} SELECT seq, seq, RPAD(LPAD(seq, 11, '0'), 119, '-0123456789'), 'pad' FROM seq_1_to_{rows}"
            ));
        }
    }

    /// What the command line client prints, without a header.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.client(sql).unwrap_or_else(|| panic!("`{sql}` failed"))
    }

    pub(crate) fn client(&self, sql: &str) -> Option<String> {
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
            .expect("the client runs");
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The server's global counters by name.
    pub(crate) fn counters(&self) -> Map<String, Value> {
        let shown = self.query("SHOW GLOBAL STATUS");
        let pairs = shown.lines().filter_map(|line| line.split_once('\t'));
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

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
