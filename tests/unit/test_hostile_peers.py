"""Peers that send what no server should: the examination of such a peer ends within its limits, and the others continue."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.fake_peers import MODES, FakePeer

from howfar.clients import peer as peers
from howfar.doctor import examine
from howfar.doctor.candidates import SYSTEM_UIDS, Candidate
from howfar.doctor.kind import Kind
from howfar.doctor.procfs import Process
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Endpoint, GuardedSession, NoValidAnswer, ServerRefused
from howfar.doctor.targets import Logins, TargetLogin

LOGIN = TargetLogin("me", "")
MAX_GROWTH_KB = 64 << 10
HOSTILE = [pytest.param(kind, mode, id=f"{kind.value} {mode}") for kind, modes in MODES.items() for mode in modes]
LARGE = ("endless", "column", "columns", "values", "wide", "arrays", "nested", "pairs", "line")
QUICK_S = 0.4
"""Timeout of an answer in tests that wait for many answers in vain."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ANSWER_TIMEOUT_S", QUICK_S)
    monkeypatch.setattr(peers, "SILENCE_TIMEOUT_S", QUICK_S / 2)


def at(peer: FakePeer) -> Endpoint:
    return Endpoint(None, "127.0.0.1", peer.port)


def examined(peer: FakePeer) -> tuple[list[str], GuardedSession | None]:
    """Ask all that an examination asks; returns what was refused or not understood, and the session."""
    protocol = PROTOCOLS[peer.kind]
    seen: list[str] = []

    def asked(question: Callable[[], object]) -> object:
        try:
            return question()
        except (ServerRefused, NoValidAnswer) as why:
            seen.append(str(why))
        return None

    def pinged(session: GuardedSession) -> None:
        try:
            session.ping()
        except OSError as why:  # a ping is not guarded
            seen.append(str(why))

    asked(lambda: protocol.greet(at(peer), LOGIN))
    session = asked(lambda: protocol.open(at(peer), LOGIN))
    if not isinstance(session, GuardedSession):
        return seen, None
    for question in (session.counters, partial(pinged, session), session.report):
        asked(question)
    return seen, session


@pytest.mark.parametrize("kind", list(Kind))
def test_a_server_that_behaves_is_understood(kind: Kind) -> None:
    with FakePeer(kind) as peer:
        seen, session = examined(peer)
        assert seen == [] and session is not None and not session.is_closed
        assert session.counters().connects == 5
        session.close()


@pytest.mark.parametrize(("kind", "mode"), HOSTILE)
def test_a_hostile_answer_ends_the_session_and_nothing_else(kind: Kind, mode: str, impatient: None) -> None:
    """[peer-1] [peer-2] [peer-3] [peer-4]"""
    with FakePeer(kind, mode) as peer:
        began = time.monotonic()
        seen, session = examined(peer)
        took_s = time.monotonic() - began
    assert took_s < 20 * QUICK_S, "a bound for each of five questions, on a busy machine"
    assert seen, "somebody says what the peer did"
    assert all(len(why) <= 500 for why in seen)
    if session is not None and not mode.startswith("text-"):
        assert session.is_closed, "after an answer that breaks the protocol the connection is not used again"


@pytest.mark.parametrize("kind", [Kind.MYSQL, Kind.POSTGRESQL])
def test_nothing_more_is_asked_after_an_answer_that_breaks_the_protocol(kind: Kind) -> None:
    """[peer-4]"""
    with FakePeer(kind, "one-column") as peer:
        session = PROTOCOLS[kind].open(at(peer), LOGIN)
        with pytest.raises(NoValidAnswer, match="is not"):
            session.counters()
        asked = _questions(peer)
        for question in (session.counters, session.report):
            with pytest.raises(NoValidAnswer):
                question()
        with pytest.raises((OSError, NoValidAnswer)):
            session.ping()
        assert _questions(peer) == asked


def _questions(peer: FakePeer) -> list[bytes]:
    """All requests that the peer received, without the goodbye, which it may read late."""
    return [request for request in peer.requests if request not in (b"\x01", b"X\x00\x00\x00\x04")]


_MEASURED = """
import re, sys
from pathlib import Path
from howfar.doctor.kind import Kind
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Endpoint, NoValidAnswer, ServerRefused
from howfar.doctor.targets import TargetLogin

def examine(port):
    protocol, endpoint, login = PROTOCOLS[Kind(sys.argv[1])], Endpoint(None, "127.0.0.1", port), TargetLogin("me", "")
    try:
        protocol.greet(endpoint, login)
        session = protocol.open(endpoint, login)
    except (ServerRefused, NoValidAnswer) as why:
        return
    for question in (session.counters, session.report):
        try:
            question()
        except (ServerRefused, NoValidAnswer):
            pass

def peak_kb():  # not ru_maxrss, which begins with that of the parent
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

examine(int(sys.argv[2]))
before = peak_kb()
examine(int(sys.argv[3]))
print(peak_kb() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), [one for one in HOSTILE if one.values[1] in LARGE])
def test_a_hostile_answer_takes_little_memory(kind: Kind, mode: str) -> None:
    """[peer-1] The limit is on the memory beyond what a well-behaved server takes."""
    with FakePeer(kind) as good, FakePeer(kind, mode) as hostile:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, kind.value, str(good.port), str(hostile.port)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= MAX_GROWTH_KB
    assert done.stderr == ""


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(list(Kind)),
    st.integers(0, 12),
    st.integers(0, 2**32),
    st.sampled_from(["change", "cut", "add", "other"]),
)
def test_any_answer_is_understood_or_refused(impatient: None, kind: Kind, place: int, seed: int, how: str) -> None:
    """[peer-3] One message of the conversation is changed: the examination ends in time, and raises only Refused and NoValidAnswer."""
    dice = random.Random(seed)

    def spoil(number: int, message: bytes) -> bytes:
        if number != place:
            return message
        cut = dice.randrange(len(message) + 1)
        match how:
            case "change":
                changed = bytearray(message)
                for _ in range(dice.randint(1, 4)):
                    changed[dice.randrange(len(changed))] = dice.choice([0, 1, 0xFB, 0xFE, 0xFF, dice.randrange(256)])
                return bytes(changed)
            case "cut":
                return message[:cut]
            case "add":
                return message[:cut] + dice.randbytes(dice.randint(1, 40)) + message[cut:]
        return dice.randbytes(dice.randint(0, 400))

    with FakePeer(kind, spoil=spoil) as peer:
        began = time.monotonic()
        _, session = examined(peer)
        assert time.monotonic() - began < 20 * QUICK_S
        if session is not None:
            session.close()


def test_a_ping_that_drips_is_ended(impatient: None) -> None:
    """[peer-2] The kernel's timeout applies to each byte; the block of pings has its own limit."""
    with FakePeer(Kind.REDIS) as peer:
        session = PROTOCOLS[Kind.REDIS].open(at(peer), LOGIN)
        began = time.monotonic()
        with session.peer.shut_down_after(0.3), suppress(NoValidAnswer, OSError):
            while True:
                session.ping()
        assert 0.25 < time.monotonic() - began < 3
        session.close()


def test_other_servers_are_still_reported() -> None:
    """[peer-3] The complete command, with peers that misbehave before one that does not."""
    hostile = [
        (Kind.MYSQL, "endless"),
        (Kind.MYSQL, "one-column"),
        (Kind.POSTGRESQL, "one-column"),
        (Kind.REDIS, "line"),
    ]
    with ExitStack() as stack:
        peers = [stack.enter_context(FakePeer(*each)) for each in (*hostile, (Kind.MEMCACHED, "good"))]
        command = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
        words = ["doctor", "--json", "--watch", "0.2", *(peer.dsn for peer in peers)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 3, done.stderr  # one of the named servers did not answer
    seen = json.loads(done.stdout)
    assert "Memcached 1.6.18" in [server["name"] for server in seen["servers"]]
    for peer in peers[:-1]:
        (part,) = [one for one in [*seen["servers"], *seen["unseen"]] if f"127.0.0.1:{peer.port}" in json.dumps(one)]
        assert "it sent" in json.dumps(part), "what the peer did"
    assert "a bug in howfar" not in done.stderr


def test_of_the_processes_of_one_user_few_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """[peer-1] Any user may start a thousand processes that are named like servers."""
    user = SYSTEM_UIDS + 7
    found = [Candidate(Kind.MYSQL, Process(pid, "mysqld", user, ()), (), True) for pid in range(2, 1002)]
    monkeypatch.setattr(examine, "discover", lambda: (found, ()))
    asked: list[Candidate] = []
    monkeypatch.setattr(examine, "identify", lambda candidate, logins, target: asked.append(candidate))
    _, unseen = examine._search_servers(Logins(LOGIN, LOGIN, LOGIN))
    assert len(asked) == examine._MAX_PROCESSES_PER_USER and "984 more processes" in unseen[0].what
