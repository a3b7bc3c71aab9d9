"""The doctor's report: its answer, how sure it is, and its screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.made_doctor import client, floor, idle, looked, server
from tests.unit.made_machine import BUSY, QUIET
from tests.unit.rendered import GOLDEN, is_golden, is_short

from howfar.contract.receipt import ProgramUse
from howfar.doctor.checks import CHECKS
from howfar.doctor.findings import Examination, Gain, Median, Rates, Server, Transport, Unseen
from howfar.doctor.minimum_latency import make_median
from howfar.doctor.report import answer, document
from howfar.doctor.texts import PROBLEMS, STEPS, TRANSPORTS
from howfar.findings import Finding
from howfar.quiet_check import QuietReadings, judge
from howfar.report.document import AdviceBlock, Answer
from howfar.report.html import render as render_page
from howfar.report.terminal import render


def _examined(*servers: Server, unseen: tuple[Unseen, ...] = (), machine: QuietReadings | None = QUIET) -> Examination:
    checked = tuple(seen.model_copy(update={"findings": looked(seen)}) for seen in servers)
    return Examination(
        format=1, howfar_version="1", unix_ns=1_700_000_000_000_000_000, watched_s=3, samples=120, load_average=0.2, cpus=2,
        pure_floors=(), unseen=unseen, servers=checked, machine=None if machine is None else judge(machine),
    )  # fmt: skip


def test_no_name_moves_a_terminals_cursor() -> None:
    screen = render(document(_examined(server(client(program="a\x1b[2Jb")))), 100, details=True)
    assert "a?[2Jb" in screen and "\x1b" not in screen


def test_a_screen() -> None:
    others = (client(program="orders", compressed=True), client(local=False, address="192.0.2.1", tls=None))
    hidden = Unseen(what="a process", why="no permission", how="run as root")
    seen = _examined(server(client(), *others), unseen=(hidden,))
    is_golden(GOLDEN / "doctor.txt", render(document(seen), 80, details=True))


def _answered(*servers: Server, unseen: tuple[Unseen, ...] = ()) -> Finding:
    (finding,) = answer(_examined(*servers).servers, unseen).findings
    return finding


def test_the_steps_are_in_the_order_of_what_they_save_and_each_has_its_lines() -> None:
    """Two servers: that of the larger saving is first, and what was not measured is last, whichever was found first."""
    near = server(client(program="orders", compressed=True))
    far = server(
        client(), floors=(floor(Transport.SOCKET, 20e3, 150e3), floor(Transport.TCP, 90e3, 220e3)), name="MySQL 9.7"
    )
    blocks = document(_examined(near, far)).blocks
    steps = [block for block in blocks if isinstance(block, AdviceBlock)]
    assert [step.because.partition("[")[2].partition("]")[0] for step in steps[:-1]] == [
        "loopback-tcp",
        "loopback-tcp",
        "compressed-local",
    ]
    assert "MySQL 9.7" in steps[0].action and "MariaDB" in steps[1].action, "70 µs per round trip before 6 µs"
    assert all(step.places and all(place.lines for place in step.places) for step in steps[:-1])
    assert steps[-1].lines == ("howfar doctor",) and blocks.index(steps[0]) < 4, "right below the answer in HTML"
    assert set(STEPS) == set(PROBLEMS), "each finding has a step"


def _steps(examination: Examination) -> list[str]:
    return [block.action for block in document(examination).blocks if isinstance(block, AdviceBlock)]


def test_a_machine_that_is_not_quiet_adds_one_step_after_those_of_the_servers() -> None:
    """The answer about the servers stays first. Without other steps there is nothing to examine again."""
    idle_servers, changed = (server(),), (server(client()),)
    assert _steps(_examined(*idle_servers)) == [] == _steps(_examined(*idle_servers, machine=None))
    (step,) = _steps(_examined(*idle_servers, machine=BUSY))
    assert step == "Stop cargo (pid 4711) and rustc (pid 4720), which use 1.2 of 2 CPUs, before you measure."
    busy = _examined(*changed, machine=BUSY)
    assert _steps(busy) == [_steps(_examined(*changed))[0], step, _steps(_examined(*changed))[1]]
    assert isinstance(document(busy).blocks[0], Answer) and busy.to_change == _examined(*changed).to_change
    for text in (render(document(busy), 200), render_page(document(busy)), busy.model_dump_json()):
        assert "4711" in text


def test_servers_and_their_clients_are_not_stopped_for_a_measurement() -> None:
    for program, pid in (("mariadbd", 99), ("php-fpm8.2", client().pids[0])):
        use = ProgramUse(name=program, pid=pid, cpus=1.5)
        (step, *_) = _steps(_examined(server(), server(client(connections=2)), machine=replace(BUSY, programs=(use,))))[
            1:
        ]
        assert step.startswith("Measure on another machine") and program in step


def test_an_all_clear_covers_only_what_was_examined() -> None:
    """[doc-8] The answer reports how much the doctor could not see, and the next lines how many servers accepted its login."""
    hidden = Unseen(what="its counters", why="no login", how="")
    closed = server(unseen=(hidden,), logged_in=False)
    assert (_answered(server()).id, _answered().id) == ("nothing", "none-found")
    for answered in (_answered(server(), closed), _answered(server(), unseen=(hidden,))):
        assert (answered.id, answered.parameters["unseen"]) == ("nothing-seen", 1)
    assert "1 of 2 servers accepted a login" in render(document(_examined(server(), closed)), 120)


def test_the_answer_is_a_short_sentence_whatever_is_found() -> None:
    """Each check and transport has its words, and a server with all findings at once is summed up in one sentence."""
    assert {name for name, _ in CHECKS} == set(PROBLEMS) and set(TRANSPORTS) == set(Transport)
    assert max(len(words.split()) for words in PROBLEMS.values()) <= 5, "three fit the answer"
    (finding,) = looked(server(client()))
    all_findings = [finding.model_copy(update={"check": name}) for name in PROBLEMS]
    sick = [server().model_copy(update={"findings": (each,)}) for each in all_findings]
    sick.append(server().model_copy(update={"findings": tuple(all_findings)}))
    for seen in [*sick, server(), server(idle=idle(60e3, 25e3))]:
        said = answer((seen,), ())
        for text in filter(None, (said.sentence, said.why)):
            is_short(text)
    summed = answer((sick[-1],), ())
    assert {each.parameters["count"] for each in summed.findings} == {len(PROBLEMS)}
    assert [each.subject for each in summed.findings] == list(PROBLEMS.values())
    named = sum(words in summed.sentence for words in PROBLEMS.values())
    assert named >= 3 and f"{len(PROBLEMS) - named} more" in summed.sentence, "none is dropped silently"


def test_a_saving_is_of_what_its_check_measured() -> None:
    """The CA bundle is read for each connect, or, if for which server is unknown, for each reading."""
    bundle = {"bundle_looks": 20, "connects_seen": 20, "program": "mariadb", "bundle_reads": 20}
    for connects, per in ((20, "connect"), (0, "reading")):
        reader = client(by="socket", bundle_connects=connects, **bundle)
        causes = answer(_examined(server(reader, bundle_ns=make_median([25e6] * 24))).servers, ()).causes
        assert per in {cause.parameters["per"] for cause in causes}
    with pytest.raises(ValueError, match="unit"):
        Gain(text="", basis="", saves_ns=make_median([1.0] * 24))


def test_how_sure_says_only_what_is_so() -> None:
    few = server(client(), rates=Rates(connects=0, statements=5, tls_connects=0))
    few = few.model_copy(
        update={"floors": tuple(
            each.model_copy(update={"round_trip_ns": Median(value=1e3, low=None, high=None, n=2)}) for each in few.floors
        )}
    )  # fmt: skip
    assert "interval" not in (said := certainty(_examined(few))) and "idle" not in said
    assert "intervals" in (said := certainty(_examined(server(client())))) and "idle" in said
    hidden = Unseen(what="its counters", why="no login", how="")
    assert "inspected" not in certainty(_examined(server(), unseen=(hidden,))), "the answer says it"


def certainty(examination: Examination) -> str:
    (block,) = (block for block in document(examination).blocks if isinstance(block, Answer))
    return str(block.certainty)
