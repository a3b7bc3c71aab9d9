"""PHP in the laboratory, without PHP: what a script requires, what is refused, how a page is requested, how an answer is judged."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from howfar.contract.application_receipt import ApplicationReceipt
from howfar.contract.messages import (
    CpuStep,
    CustomStatement,
    Distribution,
    GetStep,
    IntegerValues,
    KeyValue,
    PageScript,
    QueryStep,
    SequenceValues,
    Service,
    TcpTarget,
    TextValues,
    Tls,
    UnixTarget,
    Values,
)
from howfar.errors import LabError, MissingError, PlanError
from howfar.experiments.page.lab import php_fpm
from howfar.experiments.page.lab.php_fpm import (
    PhpReply,
    check_supported,
    count_keys_read,
    count_round_trips,
    require_complete_page,
    send_request,
    shorten_for_proof,
)

PLACE = Service(user="", database="", target=UnixTarget(path="/s"))
FAR = TcpTarget(host="127.0.0.1", port=1)


def script(*values: Values, **changes: object) -> PageScript:
    made = PageScript(
        mysql=PLACE,
        redis=PLACE,
        redis_keys=KeyValue(protocol="resp2", get=1),
        memcached=PLACE,
        memcached_keys=KeyValue(protocol="memcached_text", get=1),
        statements=(CustomStatement(name="one", sql="SELECT ?", parameters=values),),
        steps=(
            QueryStep(statement="one", repeat=3),
            GetStep(store="redis", keys_each=10, repeat=2),
            GetStep(store="memcached"),
            CpuStep(cpu_ns=1),
        ),
        rounds=5,
    )
    return made.model_copy(update=changes)


def test_turns_and_keys_of_a_page() -> None:
    assert count_round_trips(script()) == {"mysql": 15, "redis": 10, "memcached": 5}
    assert count_keys_read(script()) == {"redis": 100, "memcached": 5}


def test_a_page_for_the_proof_has_its_turns_and_does_not_compute() -> None:
    like = shorten_for_proof(script())
    assert like is not None and like.rounds == 2
    assert count_round_trips(like) == {"mysql": 6, "redis": 4, "memcached": 2}
    assert not any(isinstance(step, CpuStep) for step in like.steps)
    assert shorten_for_proof(script(steps=(CpuStep(cpu_ns=1),))) is None


def test_what_plans_ask_is_taken() -> None:
    check_supported(script(IntegerValues(high=10), TextValues(length=3)))
    check_supported(
        script(
            mysql=Service(user="", database="", target=FAR, tls=Tls(ca_file="ca.pem", verify="full", server_name="x"))
        )
    )


ZIPF = Distribution(kind="zipfian")


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        (script(IntegerValues(high=10, distribution=ZIPF)), "zipfian"),
        (script(SequenceValues()), "sequence"),
        (script(TextValues(length=3, compressible=0.5)), "random letters"),
        (script(redis_keys=KeyValue(protocol="resp2", distribution=ZIPF)), "zipfian"),
        (
            script(memcached=Service(user="", database="", target=FAR, tls=Tls(ca_file="ca.pem"))),
            "memcached does not support TLS",
        ),
        (
            script(redis=Service(user="", database="", target=FAR, tls=Tls(ca_file="ca.pem", versions="1.2"))),
            "redis: PHP's drivers",
        ),
        (script(mysql=Service(user="", database="", target=FAR, tls=Tls())), "mysql: PHP's drivers"),
    ],
)
def test_what_php_would_do_otherwise_is_refused(requested: PageScript, says: str) -> None:
    with pytest.raises(PlanError) as found:
        check_supported(requested)
    assert says in found.value.message and 'application = "engine"' in found.value.advice


def record(kind: int, content: bytes, padding: int = 0) -> bytes:
    return struct.pack(">BBHHBx", 1, kind, 1, len(content), padding) + content + bytes(padding)


@contextmanager
def responder(where: Path, reply: bytes) -> Iterator[list[bytes]]:
    """Answers one complete request, whatever it is, with `reply`; yields the requests received."""
    came: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(where))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request = b""
                while not request.endswith(record(5, b"")):
                    request += connection.recv(65536)
                came.append(request)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield came
        thread.join()


def test_an_answer_in_pieces_with_padding(tmp_path: Path) -> None:
    head = b"Status: 200 OK\r\nX-Howfar-Page: cpu_ns=12,mysql_turns=3\r\n\r\nbo"
    reply = record(6, head, 5) + record(7, b"a warning") + record(6, b"dy\n") + record(6, b"") + record(3, bytes(8))
    with responder(tmp_path / "s", reply) as came:
        answer = send_request(tmp_path / "s", {"SHORT": "a", "LONG": "b" * 70_000}, 10.0)
    assert (answer.status, answer.body, answer.stderr) == (200, "body\n", "a warning")
    assert answer.counts == {"cpu_ns": 12, "mysql_turns": 3}
    assert came[0].startswith(record(1, b"\x00\x01\x00" + bytes(5))) and came[0].count(b"b") == 70_000


def test_an_answer_that_ends_in_the_middle_is_no_answer(tmp_path: Path) -> None:
    with (
        responder(tmp_path / "s", record(6, b"Status: 200\r\n\r\nhowfar page done\n")),
        pytest.raises(LabError) as found,
    ):
        send_request(tmp_path / "s", {}, 10.0)
    assert "in the middle" in found.value.message


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LabError) as found:
        send_request(tmp_path / "s", {}, 1.0)
    assert "failed" in found.value.message


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (PhpReply(500, {}, "PDOException: gone", ""), "PDOException: gone"),
        (PhpReply(200, {}, "half a page", ""), "half a page"),
        (PhpReply(500, {}, "", "PHP Fatal error"), "PHP Fatal error"),
        (PhpReply(404, {}, "", ""), "nothing"),
    ],
)
def test_an_answer_that_is_no_page_is_quoted(answer: PhpReply, says: str) -> None:
    with pytest.raises(LabError) as found:
        require_complete_page(answer, "done\n")
    assert says in found.value.message
    assert require_complete_page(PhpReply(200, {}, "done\n", ""), "done\n").status == 200


def test_without_php_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(php_fpm, "_SBIN_DIRECTORIES", ())
    with pytest.raises(MissingError) as found:
        php_fpm.find_php_fpm()
    assert "howfar setup --page" in found.value.advice


def test_what_is_no_answer_to_what_it_is_is_quoted() -> None:
    assert php_fpm.parse_about(PhpReply(200, {}, '{"opcache": true}', "")) == ApplicationReceipt(opcache=True)
    for answer in (
        PhpReply(500, {}, "", "PHP Fatal error"),
        PhpReply(200, {}, "half {", ""),
        PhpReply(200, {}, "[]", ""),
    ):
        with pytest.raises(LabError, match="asked what it is, PHP-FPM answered with status") as found:
            php_fpm.parse_about(answer)
        assert (answer.body or answer.stderr) in found.value.message


def test_the_newest_php_that_has_all_extensions_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = "pdo_mysql\nredis\nmemcached\nZend OPcache"
    for version, modules in {"8.1": built_in, "8.2": built_in, "8.10": "pdo_mysql\nredis\nZend OPcache"}.items():
        program = tmp_path / f"php-fpm{version}"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *-v*) echo "PHP {version}.0 (fpm)" ;; *) echo "{modules}" ;; esac\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(php_fpm, "_SBIN_DIRECTORIES", ())
    php_fpm._find_newest_program.cache_clear()
    assert php_fpm.find_php_fpm().version == "8.2.0"
    for version in ("8.1", "8.2"):
        (tmp_path / f"php-fpm{version}").unlink()
    php_fpm._find_newest_program.cache_clear()
    with pytest.raises(MissingError, match=r"php-fpm8\.10 lacks the extensions memcached"):
        php_fpm.find_php_fpm()
    php_fpm._find_newest_program.cache_clear()


def test_the_pages_are_in_the_package() -> None:
    assert {file.name for file in php_fpm.PAGES.iterdir()} == {
        "about.php", "page.php", "Services.php", "Steps.php", "Tally.php", "Values.php",
    }  # fmt: skip


@pytest.mark.parametrize("header", ["cpu_ns=-5,wall_ns=1", "wall_ns=abc", "wall_ns", "wall_ns=1.5"])
def test_what_is_no_account_of_a_page_is_refused(header: str) -> None:
    with pytest.raises(LabError, match="which is not name=integer"):
        _ = PhpReply(200, {"x-howfar-page": header}, "", "").counts
