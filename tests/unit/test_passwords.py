"""No message repeats a password, neither one at a wrong position of a command line nor one that a server sends back."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from howfar.address import Secret
from howfar.cli.hide_arguments import learn_passwords
from howfar.cli.main import run_command_line
from howfar.contract.messages import Failed
from howfar.doctor.protocols.session import NoValidAnswer, ServerRefused
from howfar.passwords import without_passwords

PASSWORD = "QQsecret"
URL = f"mysql://u:{PASSWORD}@127.0.0.1:1/db"

MISPLACED = [
    [URL, URL],
    [URL, "--count", URL],
    [URL, "--timeout", URL],
    [URL, "--interval", URL, "--watch"],
    [URL, "--fail-if", URL],
    [URL, "--defaults-file", URL],
    [URL, "--prometheus", f"{URL}/"],
    ["mysql://u:Pass", f"{PASSWORD}@h/db"],
    ["mysql://u:a", "b", f"{PASSWORD}@h/db"],
    ["--password-file", PASSWORD, "mysql://u@127.0.0.1:1/db"],
    [f"--password-file={PASSWORD}", "mysql://u@127.0.0.1:1/db"],
    ["--ask-password", PASSWORD, "mysql://u@127.0.0.1:1/db"],
    [f"-p{PASSWORD}", "127.0.0.1:1"],
    ["-p", PASSWORD, "127.0.0.1:1"],
    [f"--password={PASSWORD}", "127.0.0.1:1"],
    [f"u:{PASSWORD}@tcp(127.0.0.1:1)/db", "x"],
    [f"jdbc:mysql://127.0.0.1:1/db?user=u&password={PASSWORD}", "x"],
    [f"host=127.0.0.1 port=1 password='{PASSWORD}'", "x"],
    [f"Server=127.0.0.1;Pwd={PASSWORD};", "x"],
    *([command, URL] for command in (
        "report", "predict", "compare", "replay", "resume", "confirm", "help", "hosts", "servers", "bench", "lab",
        "links", "plans", "completion", "setup", "run", "mark", "slope", "version",
    )),
    ["compare", URL, URL],
    ["load", f"--time={URL}"],
    ["load", URL, URL],
    ["load", URL, "oltp_read_only", f"--threads={URL}"],
    ["record", "--time", URL, "--", "true"],
    ["record", "--server", URL, "--time", URL, "--", "true"],
    ["predict", "x.recording", "--rtt", URL],
    ["slope", "--server", URL, "--blocks", URL, "--", "true"],
    ["doctor", URL, "--watch", URL],
    ["lab", "--server", URL, "--", "true"],
    ["lab", "--rtt", URL, "--", "true"],
    ["nosuch", URL],
    [URL, "nosuch"],
    [URL, f"--nosuch={PASSWORD}@"],
]  # fmt: skip


@pytest.mark.parametrize("words", MISPLACED, ids=lambda words: " ".join(words).replace(PASSWORD, "*"))
def test_a_password_in_the_wrong_place_is_not_repeated(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--json"]):
        with contextlib.suppress(SystemExit):  # of `lab`, whose command is not found
            run_command_line([*words, *more])
        shown = "".join(capsys.readouterr())
        assert PASSWORD not in shown
        assert "Traceback" not in shown and "a bug in howfar" not in shown
    assert not list(tmp_path.iterdir())


def test_what_is_no_password_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for words, kept in (
        (["--password-file", "/nowhere/pw", "--count", "x1y", "127.0.0.1:1"], "x1y"),
        (["127.0.0.1:1", "--fail-if", "p95>>2ms"], ">2ms"),
        (["app@127.0.0.1:1", "surplus"], "surplus"),
        (["report", "a@b.howfar"], "a@b.howfar"),
    ):
        run_command_line(words)
        assert kept in "".join(capsys.readouterr())


def test_a_file_that_exists_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(["--password-file", str(tmp_path), "mysql://u@127.0.0.1:1/db"])
    assert str(tmp_path) in capsys.readouterr().err


def test_short_passwords_are_masked_as_words_only() -> None:
    learn_passwords(["redis://:ab@h"])
    assert without_passwords("AUTH 'ab' about abbey") == "AUTH '***' about abbey"


def test_what_was_revealed_to_a_server_does_not_come_back() -> None:
    assert Secret("RealSecret99").reveal() == "RealSecret99"
    said = "unknown command 'AUTH', with args beginning with: 'RealSecret99'"
    for text in (
        str(ServerRefused(said)),
        str(NoValidAnswer(said)),
        Failed(event="failed", code="auth", message=said, advice="").message,
    ):
        assert "RealSecret99" not in text and "AUTH" in text


def test_a_server_that_repeats_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    """As Redis does where AUTH was renamed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    while client.recv(4096):
                        client.sendall(b"-ERR unknown command 'AUTH', with args beginning with: 'RealSecret99' \r\n")

        threading.Thread(target=serve, daemon=True).start()
        code = run_command_line([f"redis://:RealSecret99@127.0.0.1:{listening.getsockname()[1]}", "--json"])
        listening.shutdown(socket.SHUT_RDWR)
    out, err = capsys.readouterr()
    assert code == 11 and "RealSecret99" not in out + err
    assert "***" in json.loads(out)["failure"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-if", "p95>1ns"],
        ["--fail-if", "p95>1ns", "localhost"],
        ["--watch", "localhost"],
        ["--csv", "localhost"],
        ["--prometheus", "q.prom"],
        ["--count", "5"],
    ],
    ids=" ".join,
)
def test_a_check_without_a_target_does_not_pass(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(words) == 2
    assert "needs a target" in capsys.readouterr().err


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("howfar.cli.screen._TIMEOUT_S", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert run_command_line(["--password-file", str(fifo), "mysql://u@127.0.0.1:1/db"]) == 2
    assert "nothing was written to it" in capsys.readouterr().err
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe\n")
    os.close(writer)
    code = run_command_line(["--password-file", f"/dev/fd/{reader}", "mysql://u@127.0.0.1:1/db"])
    os.close(reader)
    assert code == 10  # nothing listens there
