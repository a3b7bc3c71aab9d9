"""SIGKILL at random moments, to the program outside, its sandbox and its parts: nothing is left, nothing is lost.

Sessions work on one run file after another until the planned number of kills is reached: four, and thirty-one more in
`./test thorough`; most of them in runs without a link, which begin and end in a quarter of the time. Roles and moments come from a
seed, which is printed; HOWFAR_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from howfar.runner.stopping import ATTEMPTS_PER_BLOCK
from howfar.store.records import Run, StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import ARMS, BLOCKS, LOCAL, TINY, Rows, Session, all_namespaces, run_howfar, trial_rows
from tests.lab.sandboxes import state_of_machine, wait_until
from tests.lab.undisturbed import DISTURBED, skip_if_disturbed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
ENDING = {"parent": -signal.SIGKILL, "unshare": 4, "inside": 4}
"""Roles whose death ends the session, with the session's exit code."""
SHARE_OF_ENDINGS = 0.3
LATEST_AFTER_A_DEATH_S = 2.0
PATIENCE_FOR_A_PART_S = 3.0


@dataclass(frozen=True)
class Kind:
    """A kind of run to kill. The first kill of a session is up to `latest_s` after its start, often before the first trial."""

    plan: str
    arms: int
    parts: tuple[str, ...]
    latest_s: float


KINDS = {
    "linked": Kind(
        plan=TINY,
        arms=ARMS,
        parts=("howfar-engine load", "howfar-engine link", "howfar-engine echo", "mariadbd", "socat"),
        latest_s=8.0,
    ),
    # Without a link, which takes seconds to calibrate.
    "local": Kind(plan=LOCAL, arms=3, parts=("howfar-engine load", "mariadbd"), latest_s=4.0),
}


class Campaign:
    """Sessions on run files; what a file contained after one session must still be there after the next."""

    def __init__(self, kind: Kind, most: int, where: Path, seed: int) -> None:
        self.kind = kind
        self.most = most
        self.where = where
        self.cache = where / "c"
        self.random = Random(seed)
        (where / "tiny.toml").write_text(kind.plan)
        self.deaths: list[str] = []
        self.files = 0
        self.rows: Rows = {}
        self.run: Run | None = None
        self.namespaces: set[str] = set()

    @property
    def file(self) -> Path:
        return self.where / f"{self.files}.howfar"

    def start(self) -> Session:
        if self.run is not None and self.run.stop is StopReason.BLOCKS:
            self.files, self.rows, self.run = self.files + 1, {}, None
        arguments = ["resume", self.file.name] if self.file.exists() else ["run", "tiny.toml", "--out", self.file.name]
        return Session(arguments, self.cache, self.where)

    @staticmethod
    def find(session: Session, roles: list[str]) -> tuple[str, int] | None:
        """A process of the first of `roles`, waited for up to PATIENCE_FOR_A_PART_S; else one of another role that runs now."""
        timeout_s = PATIENCE_FOR_A_PART_S
        for role in roles:
            victim = session.await_part(role, timeout_s)
            if victim is not None:
                return role, victim
            timeout_s = 0.01
        return None

    def live(self, session: Session) -> str | None:
        """Kill parts until the session has ended. Returns the role whose death should have ended it, if any."""
        began = True
        while len(self.deaths) < self.most:
            last = self.random.random() < SHARE_OF_ENDINGS
            roles = list(ENDING) if last else list(self.kind.parts)
            self.random.shuffle(roles)
            moment_s = self.random.uniform(0, self.kind.latest_s if began else LATEST_AFTER_A_DEATH_S)
            found = None if session.ended_within(moment_s) else self.find(session, roles)
            if session.process.poll() is not None:
                return None
            if found is None:
                continue
            role, victim = found
            self.namespaces = session.namespaces()
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            since = "start" if began else "death before"
            last_line = session.lines[-1][:60] if session.lines else "(nothing said yet)"
            self.deaths.append(f"{role}, {moment_s:.2f} s after the {since}, after: {last_line}")
            print(len(self.deaths), self.deaths[-1], file=sys.stderr)
            began = False
            if last:
                return role
        return None

    def check_file(self, session: Session) -> None:
        """Check that all trials reported as finished are in the file, and that everything there before is unchanged."""
        assert self.file.exists() or not session.reported(), session.say()
        if not self.file.exists():
            return
        run, rows = read_run(self.file), trial_rows(self.file)
        before = self.run.trials if self.run else ()
        assert run.trials[: len(before)] == before
        assert all(old <= rows[table] for table, old in self.rows.items())
        assert self.run is None or run.info == self.run.info
        new = [
            (trial.block, trial.position, trial.arm, trial.status is TrialStatus.VOID)
            for trial in run.trials[len(before) :]
        ]
        reported = session.reported()
        assert new[: len(reported)] == reported, session.say()
        assert len(new) - len(reported) <= 1, "a trial is said when it is in the file"
        self.run, self.rows = run, rows

    def check_complete(self) -> None:
        """Check that each block was measured once; a block with a void trial, which states why, ended there and was measured again."""
        assert self.run is not None
        assert self.run.stop is StopReason.BLOCKS
        assert [trial.number for trial in self.run.trials] == list(range(len(self.run.trials)))
        for block in range(BLOCKS):
            tried = [t for t in self.run.trials if t.block == block]
            last = max(t.attempt for t in tried)
            for attempt in range(last + 1):
                here = [t for t in tried if t.attempt == attempt]
                voids = [t for t in here if t.status is TrialStatus.VOID]
                assert [t.position for t in here] == list(range(len(here)))
                assert all(t.void_reason for t in voids)
                cut_short = voids and attempt + 1 < ATTEMPTS_PER_BLOCK
                assert voids == here[-1:] if cut_short else len(here) == self.kind.arms, (block, attempt, here)
                assert voids or attempt == last, "only a void trial has a block measured again"
            assert last < ATTEMPTS_PER_BLOCK

    def session(self) -> None:
        before = state_of_machine()
        self.namespaces = set()
        session = self.start()
        deaths_before = len(self.deaths)
        try:
            killer = self.live(session)
            code = session.code()
            wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
        finally:
            session.end()
        assert "Traceback" not in session.say()
        assert state_of_machine() == before
        wait_until(lambda: not self.namespaces & all_namespaces(), "the end of the namespaces")
        assert not any((self.cache / "howfar").glob("sandbox/*")), "a mount or its content is seen outside"
        self.check_file(session)
        if killer is not None:
            assert code == ENDING[killer], session.say()
            assert killer == "parent" or "howfar: the sandbox was killed" in session.say()
        elif code == 0:
            self.check_complete()
        else:
            # A part died while the laboratory was built, or one arm was void too often: reported, with advice. Without a kill, this
            # happens only if the machine was too busy for a link.
            output = session.say()
            assert len(self.deaths) > deaths_before or any(sign in output for sign in DISTURBED), output
            assert code in (4, 5), session.say()
            assert any(line.startswith("howfar: ") for line in session.lines), session.say()


@pytest.mark.parametrize(
    ("kind", "deaths"),
    [
        ("local", 4),
        pytest.param("linked", 8, marks=pytest.mark.thorough),
        pytest.param("local", 23, marks=pytest.mark.thorough),
    ],
)
def test_deaths_leave_nothing_and_lose_nothing(
    kind: str, deaths: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seed = int(os.environ.get("HOWFAR_TEST_SEED") or Random().randrange(2**31))
    print(f"HOWFAR_TEST_SEED={seed}", file=sys.stderr)
    where = tmp_path_factory.mktemp("k")
    campaign = Campaign(KINDS[kind], deaths, where, seed)
    while len(campaign.deaths) < campaign.most:
        campaign.session()
    for _ in range(5):  # the last death may have come while the laboratory was built
        if campaign.run is not None and campaign.run.stop is StopReason.BLOCKS:
            break
        campaign.session()
    undone = campaign.run is not None and campaign.run.stop is not StopReason.BLOCKS
    if not undone:
        campaign.check_complete()
    plain = {"tiny.toml", "tmp", "c"} | {f"{n}.{end}" for n in range(campaign.files + 1) for end in ("howfar", "html")}
    assert {entry.name for entry in where.iterdir()} <= plain, "no log, no half file"
    assert not any((where / "tmp").iterdir())
    left = {entry.relative_to(where / "c" / "howfar") for entry in (where / "c" / "howfar").rglob("*")}
    assert not [entry for entry in left if "building" in str(entry) or entry.parts[0] == "work"]
    assert all(run_howfar("report", f"{n}.howfar", cwd=where).returncode == 0 for n in range(campaign.files + 1))
    if undone:
        assert campaign.run is not None
        skip_if_disturbed(campaign.run.trials[-1].void_reason)
        campaign.check_complete()
