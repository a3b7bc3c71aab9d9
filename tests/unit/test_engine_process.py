"""The engine's client against programs that misbehave: every way in which an engine can fail has a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import howfar
from howfar import passwords
from howfar.contract.messages import (
    PROTOCOL_VERSION,
    CustomStatement,
    FastCgi,
    LoadJob,
    PageJob,
    PageScript,
    QueryStep,
    Service,
    Sysbench,
    UnixTarget,
)
from howfar.engine import process
from howfar.engine.process import EngineFailed, EngineProcess, engine_info, find_engine
from howfar.engine.run_load import max_duration_s, run_load
from howfar.errors import EngineError, MissingError, UsageError

JOB = LoadJob(
    target=UnixTarget(path="/s"),
    user="u",
    password="very-secret",
    database="d",
    workload=Sysbench(),
    connections=1,
    seed=1,
    warmup_ns=0,
    measure_ns=1,
)
FAILED = {"event": "failed", "code": "connect", "message": "connect /s: refused", "advice": "start it"}


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    engine_info.cache_clear()
    yield
    engine_info.cache_clear()


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, info: dict[str, object] | None = None) -> Path:
    """A shell script in place of the engine: answers `info`, and runs `body` for any job."""
    answer = {"event": "info", "version": howfar.__version__, "protocol": PROTOCOL_VERSION, "debug": False} | (
        info or {}
    )
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\nif [ $1 = info ]; then echo '{json.dumps(answer)}'; exit; fi\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("HOWFAR_ENGINE", str(path))
    return path


def test_the_named_engine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = engine(tmp_path, monkeypatch, "exit 0")
    assert find_engine() == path
    assert engine_info().version == howfar.__version__


def test_no_engine_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWFAR_ENGINE", str(tmp_path / "none"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="howfar-engine was not found"):
        find_engine()


@pytest.mark.parametrize("info", [{"version": "9.9"}, {"protocol": 99}])
def test_an_engine_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, object]
) -> None:
    engine(tmp_path, monkeypatch, "exit 0", info)
    with pytest.raises(EngineError, match="this is howfar"):
        run_load(JOB, process.Launcher())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("read line; echo oh no >&2; exit 3", "died .exit code 3.: oh no"),
        ("kill -SEGV $$", "died .signal 11."),
        ("read line; echo nonsense; sleep 5", "wrote an unknown message: 'nonsense"),
        ('read line; echo \'{"event": "unheard"}\'; sleep 5', "unknown message"),
        ("exit 0", "died .exit code 0."),
    ],
)
def test_an_engine_that_misbehaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str) -> None:
    engine(tmp_path, monkeypatch, body)
    with pytest.raises(EngineError, match=expected) as caught:
        run_load(JOB, process.Launcher())
    assert "very-secret" not in caught.value.message


def test_a_failure_that_the_engine_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path, monkeypatch, f"read line; echo '{json.dumps(FAILED)}'")
    with pytest.raises(EngineFailed) as caught:
        run_load(JOB, process.Launcher())
    assert (caught.value.message, caught.value.advice, caught.value.code) == (
        "connect /s: refused",
        "start it",
        "connect",
    )


def test_the_password_travels_on_stdin_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HOWFAR_PASSWORD", "MYSQL_PWD", "PGPASSWORD", "HOWFAR_REDIS_PASSWORD", "REDISCLI_AUTH")
    for name in secrets:
        monkeypatch.setenv(name, "very-secret")
    monkeypatch.setenv("HOWFAR_UNRELATED", "kept")
    seen = tmp_path / "seen"
    engine(tmp_path, monkeypatch, f'read line; echo "$@" > {seen}.args; env > {seen}.env; echo "$line" > {seen}.stdin')
    with pytest.raises(EngineError):
        run_load(JOB, process.Launcher())
    assert "very-secret" in (tmp_path / "seen.stdin").read_text()
    assert (tmp_path / "seen.args").read_text() == "load\n"
    environment = (tmp_path / "seen.env").read_text()
    assert "very-secret" not in environment and "HOWFAR_UNRELATED=kept" in environment
    assert not [name for name in secrets if name in environment]
    assert "very-secret" not in repr(JOB)


def test_an_engine_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path, monkeypatch, "exec sleep 1000")
    running = EngineProcess(JOB)
    running.close(timeout_s=0.1)
    assert running._process.returncode == -9


def test_an_engine_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path, monkeypatch, "exec sleep 1000")
    monkeypatch.setattr("howfar.engine.run_load._TIMEOUT_S", 0.1)
    job = JOB.model_copy(update={"connect_timeout_ns": 1, "stall_timeout_ns": 1})
    with pytest.raises(EngineError, match="did not end within 0 s and was killed"):
        run_load(job, process.Launcher())


def test_a_page_job_may_open_one_service_after_the_other() -> None:
    place = Service(user="", database="", target=UnixTarget(path="/s"))
    script = PageScript(
        mysql=place, statements=(CustomStatement(name="a", sql="SELECT 1"),), steps=(QueryStep(statement="a"),)
    )
    job = PageJob(application=script, workers=1, seed=1, warmup_ns=0, measure_ns=1)
    php = job.model_copy(update={"application": FastCgi(target=UnixTarget(path="/s"), parameters={})})
    waits = [max_duration_s(one) for one in (JOB, php, job)]
    opening_s = JOB.connect_timeout_ns / 1e9
    assert [longest - waits[0] for longest in waits] == pytest.approx([0, opening_s, 3 * opening_s])


def test_text_that_is_not_utf_8_is_refused_before_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.Launcher, "popen", lambda *_, **__: pytest.fail("the engine was started"))
    monkeypatch.setattr(process, "engine_info", lambda: None)
    with pytest.raises(UsageError, match="not UTF-8 text") as refused:
        EngineProcess(JOB.model_copy(update={"password": "S3cr\udce9t"}))
    assert "S3cr" not in f"{refused.value.message} {refused.value.advice}"


def test_text_that_the_locale_cannot_decode_is_sent_as_utf_8() -> None:
    in_c_locale = "pässword".encode().decode("ascii", "surrogateescape")
    for given in ("pässword", in_c_locale):
        assert json.loads(process._encode_line(JOB.model_copy(update={"password": given})))["password"] == "pässword"
    passwords.learn(in_c_locale)
    assert passwords.without_passwords("refused: pässword") == "refused: ***"
