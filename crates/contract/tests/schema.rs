//! Tests against the contract's examples, which the Python tests share: Rust must parse the jobs and write exactly these events.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use howfar_contract::events::{
    Account, AcknowledgementLog, Bytes, Classes, CpuUse, Fairness, Finished, Histogram, Interval,
    Lookups, Lost, Measuring, Ready, Receipt, ServiceUse, TablesDone, TablesProgress, TcpFacts,
    Watched, Watching,
};
use howfar_contract::jobs::{
    Application, LoadJob, PageConnect, PageJob, TablesJob, Target, WatchJob, Workload,
};
use howfar_contract::{FailCode, Failed, parse_job};
use serde::Serialize;
use serde_json::Value;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/examples")
}

fn text(name: &str) -> String {
    fs::read_to_string(examples().join(name)).expect("the example exists beside the schemas")
}

fn json(name: &str) -> Value {
    serde_json::from_str(&text(name)).expect("the example is JSON")
}

fn parse_load_job(text: &str) -> Result<LoadJob, Failed> {
    let job: LoadJob = parse_job("load", text)?;
    job.check()?;
    Ok(job)
}

/// The paths of the examples whose names begin with `prefix`.
fn find_examples(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the directory of examples is readable")
        .map(|entry| entry.expect("the entry is readable").path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn load_jobs_are_read() {
    let unix = parse_load_job(&text("job.load.unix.json")).expect("the job is valid");
    assert_eq!(&*unix.login.password, "a \"quoted\" pässword");
    assert_eq!(unix.observe.len(), 3);
    assert!(matches!(unix.login.target, Target::Unix { .. }));
    let tcp = parse_load_job(&text("job.load.tcp.json")).expect("the job is valid");
    assert_eq!(tcp.seed, (1 << 63) - 1);
    assert_eq!(tcp.connections, 1000);
    assert!(matches!(tcp.login.target, Target::Tcp { port: 1, .. }));
    assert!(matches!(tcp.workload, Workload::OltpReadWrite(_)));
    let custom = parse_load_job(&text("job.load.custom.json")).expect("the job is valid");
    assert!(matches!(custom.workload, Workload::Custom(_)));
    let store = parse_load_job(&text("job.load.store.json")).expect("the job is valid");
    assert!(
        store
            .workload
            .key_value()
            .is_some_and(|load| load.pipeline == 16)
    );
    let tables: TablesJob =
        parse_job("tables", &text("job.tables.json")).expect("the job is valid");
    tables.check().expect("the job is in bounds");
    let watch: WatchJob = parse_job("watch", &text("job.watch.json")).expect("the job is valid");
    watch.check().expect("the job is in bounds");
}

#[test]
fn pauses_need_statements_that_are_sent_one_at_a_time() {
    let read = |think_ns: u64, mode: &str, pipeline: u32| {
        let mut job = json("job.load.custom.json");
        job["protocol"] = "postgresql".into();
        job["session"]["compression"] = Value::Null;
        job["session"]["pipeline"] = pipeline.into();
        job["workload"]["db_ps_mode"] = mode.into();
        job["workload"]["transactions"][0]["steps"][1]["think_ns"] = think_ns.into();
        parse_load_job(&job.to_string()).map_err(|failed| failed.message)
    };
    for (mode, pipeline) in [("multi", 1), ("auto", 2), ("extended", 2)] {
        read(0, mode, pipeline).expect("a pipeline without a pause is valid");
        let message = read(1, mode, pipeline).expect_err("a pause in a pipeline would be ignored");
        assert!(message.contains("think needs"), "{message}");
    }
    for mode in ["auto", "extended", "disable"] {
        read(1, mode, 1).expect("a pause between single statements is valid");
    }
}

fn parse_page_job(text: &str) -> Result<PageJob, Failed> {
    let job: PageJob = parse_job("page", text)?;
    job.check()?;
    Ok(job)
}

#[test]
fn page_jobs_are_read() {
    let script = parse_page_job(&text("job.page.script.json")).expect("the job is valid");
    assert!(!format!("{script:?}").contains("secret"));
    let Application::Script(script) = script.application else {
        panic!("expected a script")
    };
    assert_eq!((script.rounds, script.connect), (10, PageConnect::PerPage));
    assert_eq!(script.steps.len(), 4);
    let fastcgi = parse_page_job(&text("job.page.fastcgi.json")).expect("the job is valid");
    assert_eq!(fastcgi.pages, 10);
    assert!(matches!(fastcgi.application, Application::FastCgi(_)));
}

#[test]
fn page_limits_that_the_schema_cannot_express() {
    let read = |change: &dyn Fn(&mut Value)| {
        let mut job = json("job.page.script.json");
        change(&mut job["application"]);
        parse_page_job(&job.to_string()).map_err(|failed| failed.message)
    };
    let refused = |change: &dyn Fn(&mut Value), why: &str| {
        let message = read(change).expect_err(why);
        assert!(message.contains(why), "{message}");
    };
    refused(
        &|script| {
            let duplicate = script["statements"][0].clone();
            let all = script["statements"]
                .as_array_mut()
                .expect("the statements are an array");
            all.push(duplicate);
        },
        "two statements have the same name",
    );
    // Each round has 26 round trips.
    read(&|script| script["rounds"] = 3846.into()).expect("99996 round trips are allowed");
    refused(
        &|script| script["rounds"] = 3847.into(),
        "100000 round trips",
    );
    let large = |script: &mut Value, keys_per_command: u64| {
        script["redis_keys"]["value"]["bytes"] = (1 << 20).into();
        script["steps"][1]["keys_each"] = keys_per_command.into();
    };
    read(&|script| large(script, 63)).expect("63 MiB are allowed");
    refused(&|script| large(script, 64), "64 MiB at most");
    let ends = |count: usize| {
        let mut job = json("job.page.fastcgi.json");
        job["application"]["ends_with"] = "ä".repeat(count).into();
        parse_page_job(&job.to_string())
    };
    ends(200).expect("200 characters are allowed");
    ends(201).expect_err("201 characters are too many");
}

/// Check that every refused example of `prefix`, of which there are at least `min_count`, is refused as a bad job.
fn check_refused<T: std::fmt::Debug>(
    prefix: &str,
    min_count: usize,
    read: impl Fn(&str) -> Result<T, Failed>,
) {
    let refused = find_examples(&examples().join("refused"), prefix);
    assert!(
        refused.len() >= min_count,
        "only {} examples",
        refused.len()
    );
    for path in refused {
        let text = fs::read_to_string(&path).expect("the example is readable");
        let failed = read(&text).expect_err(&path.to_string_lossy());
        assert_eq!(failed.code, FailCode::BadJob, "{}", path.display());
        assert!(!failed.message.is_empty());
    }
}

#[test]
fn bad_jobs_are_refused() {
    check_refused("job.load.", 10, parse_load_job);
    check_refused("job.page.", 6, parse_page_job);
}

fn to_json<T: Serialize>(event: &T) -> Value {
    serde_json::to_value(event).expect("the event is serializable")
}

fn receipt() -> Receipt {
    Receipt {
        address_family: "inet",
        local_address: Some("127.0.0.1:50122".to_owned()),
        peer_address: "127.0.0.1:3306".to_owned(),
        server_address: None,
        peer_pid: None,
        server_version: "10.11.19-MariaDB".to_owned(),
        server_connection_id: Some(7),
        auth_plugin: "mysql_native_password".to_owned(),
        protocol_mode: "text",
        tls_version: Some("TLSv1.3".to_owned()),
        tls_cipher: Some("TLS_AES_256_GCM_SHA384".to_owned()),
        tls_client_version: Some("TLSv1.3".to_owned()),
        tls_client_cipher: Some("TLS_AES_256_GCM_SHA384".to_owned()),
        tls_group: Some("X25519".to_owned()),
        tls_retried: Some(false),
        tls_resumed: Some(true),
        connect_round_trips: 4,
        compression: Some("zlib".to_owned()),
        compression_level: Some(6),
        tcp_mss: Some(1448),
        tcp_nodelay: Some(true),
        congestion_control: Some("cubic".to_owned()),
        driver: "io_uring",
        client_threads: 2,
        client_cpus: vec![0, 1],
    }
}

#[test]
fn events_match_the_contract() {
    let ready = Ready {
        receipt: receipt(),
        connections: 1,
        prepared_statements: 0,
        connect_ns: 1_000_000,
        services: BTreeMap::new(),
    };
    assert_eq!(to_json(&ready), json("event.ready.tcp.json"));
    let measuring = Measuring {
        unix_time_ns: 1_795_000_000_123_456_789,
        warmup_transactions: 321,
    };
    assert_eq!(to_json(&measuring), json("event.measuring.json"));
    let interval = Interval {
        start_ns: 0,
        length_ns: 1_000_000_000,
        transactions: 1500,
        queries: 24_000,
        classes: Classes {
            read: 21_000,
            write: 0,
            other: 3000,
        },
        errors: 0,
        reconnects: 0,
        backlog: 0,
        p50_ns: 1_200_000,
        p95_ns: 1_900_000,
        p99_ns: 2_600_000,
        max_ns: 9_000_000,
        latencies: None,
    };
    assert_eq!(to_json(&interval), json("event.interval.json"));
    let failed = Failed::new(
        FailCode::Auth,
        "the server refused user 'howfar': 1045 Access denied",
        "Check the user and its password.",
    );
    assert_eq!(to_json(&failed), json("event.failed.json"));
    let progress = TablesProgress {
        done: 10,
        total: 20,
        doing: "loading sbtest1".to_owned(),
    };
    assert_eq!(to_json(&progress), json("event.tables_progress.json"));
    let done = TablesDone {
        rows: 20,
        elapsed_ns: 5,
    };
    assert_eq!(to_json(&done), json("event.tables_done.json"));
}

#[test]
fn events_about_keys_match_the_contract() {
    let log = AcknowledgementLog {
        path: "/tmp/keys.log".to_owned(),
        records: 1503,
        acknowledged: 1500,
        refused: 1,
        unknown: 2,
    };
    assert_eq!(to_json(&log), json("event.acknowledgement_log.json"));
    assert_eq!(to_json(&Watching {}), json("event.watching.json"));
    let watched = Watched {
        path: "/tmp/seen.log".to_owned(),
        keys: 1501,
        polls: 30_000,
        longest_poll_ns: 5_000_000,
        elapsed_ns: 3_000_000_000,
        interrupted: Some(Failed::new(
            FailCode::Auth,
            "the server refused user 'howfar': 1045 Access denied",
            "Check the user and its password.",
        )),
    };
    assert_eq!(to_json(&watched), json("event.watched.json"));
}

fn open_loop_counts() -> Account {
    Account {
        due: 5,
        answered: 3,
        unanswered: 1,
        failed: 1,
        backlog_max: 2,
    }
}

fn tcp_facts() -> TcpFacts {
    TcpFacts {
        connections: 1,
        rtt_p50_ns: 1,
        rtt_max_ns: 2,
        min_rtt_ns: Some(1),
        retransmits: 0,
        busy_ns: None,
        rwnd_limited_ns: None,
        sndbuf_limited_ns: None,
    }
}

fn service_use(service: &'static str, counts: [u64; 7]) -> ServiceUse {
    let [
        connects,
        requests,
        round_trips,
        to_server,
        to_client,
        hits,
        misses,
    ] = counts;
    ServiceUse {
        service,
        connects,
        requests,
        round_trips,
        bytes: Bytes {
            to_server,
            to_client,
        },
        hits,
        misses,
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("the value is a count")
}

fn cpu(part: &Value) -> CpuUse {
    CpuUse {
        role: part["role"]
            .as_str()
            .expect("the role is a string")
            .to_owned(),
        cpu_ns: number(&part["cpu_ns"]),
        runnable_wait_ns: number(&part["runnable_wait_ns"]),
        busiest_thread_ns: number(&part["busiest_thread_ns"]),
        threads: number(&part["threads"]) as u32,
        voluntary_switches: number(&part["voluntary_switches"]),
        involuntary_switches: number(&part["involuntary_switches"]),
    }
}

fn lost(example: &Value) -> Lost {
    let text = |name: &str| {
        example["last"][name]
            .as_str()
            .expect("the field is a string")
    };
    let last = Failed::new(FailCode::ServerGone, text("message"), text("advice"));
    Lost {
        at_end: number(&example["at_end"]),
        last,
    }
}

/// Checks that the fields of the nested parts, taken from the example, are exactly those that are serialized.
#[test]
fn a_finished_event_matches_the_contract() {
    let example = json("event.finished.json");
    let histogram = |part: &Value| Histogram {
        kind: part["kind"]
            .as_str()
            .expect("the kind is a string")
            .to_owned(),
        count: number(&part["count"]),
        min_ns: number(&part["min_ns"]),
        mean_ns: part["mean_ns"].as_f64().expect("the mean is a number"),
        p50_ns: number(&part["p50_ns"]),
        p95_ns: number(&part["p95_ns"]),
        p99_ns: number(&part["p99_ns"]),
        max_ns: number(&part["max_ns"]),
        data: part["data"]
            .as_str()
            .expect("the data are a string")
            .to_owned(),
    };
    let parts = |name: &str| {
        example[name]
            .as_array()
            .expect("the field is a list")
            .clone()
    };
    let finished = Finished {
        elapsed_ns: number(&example["elapsed_ns"]),
        transactions: number(&example["transactions"]),
        queries: number(&example["queries"]),
        round_trips: number(&example["round_trips"]),
        rows: number(&example["rows"]),
        classes: Classes::default(),
        reconnects: number(&example["reconnects"]),
        lost: Some(lost(&example["lost"])),
        starved_receives: 0,
        open_loop: Some(open_loop_counts()),
        fairness: Fairness::default(),
        tcp: Some(tcp_facts()),
        peak_memory_bytes: 0,
        bytes: Bytes {
            to_server: number(&example["bytes"]["to_server"]),
            to_client: number(&example["bytes"]["to_client"]),
        },
        answered: Some(number(&example["answered"])),
        lookups: Some(Lookups {
            hits: 930,
            misses: 70,
        }),
        errors: example["errors"]
            .as_object()
            .expect("the errors are a map")
            .iter()
            .map(|(code, count)| (code.clone(), number(count)))
            .collect(),
        cpu: parts("cpu").iter().map(cpu).collect(),
        histograms: parts("histograms").iter().map(histogram).collect(),
        interrupted: None,
        services: vec![
            service_use("mysql", [2, 40, 38, 4000, 40_000, 0, 0]),
            service_use("redis", [2, 20, 20, 600, 2400, 19, 1]),
        ],
        app_counters: BTreeMap::from([
            ("cpu_ns".to_owned(), 4_000_000),
            ("mysql_turns".to_owned(), 38),
        ]),
    };
    assert_eq!(to_json(&finished), example);
}
