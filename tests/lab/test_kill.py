"""SIGKILL at random moments to the command, its sandbox and its parts: no process remains, and no measured trial is lost.

Sessions work on one run file after another until the planned number of kills is reached: 4, and 31 more in `./test thorough`, most of
them in runs without a link, which take a quarter of the time. Victims and moments come from a seed, which is printed;
HOWFAR_TEST_SEED sets it.
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
from tests.lab.howfar_runs import (
    ARMS,
    BLOCKS,
    LOCAL_PATHS,
    Rows,
    Session,
    all_namespaces,
    run_howfar,
    tiny_plan,
    trial_rows,
)
from tests.lab.sandboxes import machine_state, wait_until
from tests.lab.undisturbed import DISTURBANCE_SIGNS, skip_if_disturbed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
EXIT_CODES = {"parent": -signal.SIGKILL, "unshare": 4, "inside": 4}
"""Processes whose death ends the session, with its exit code."""
FATAL_SHARE = 0.3
"""Share of kills that end the session."""
MAX_BETWEEN_KILLS_S = 2.0
PART_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Kind:
    """A kind of run. The first kill of a session comes at most `max_first_kill_s` after its start, often before the first trial."""

    plan: str
    arms: int
    parts: tuple[str, ...]
    max_first_kill_s: float


KINDS = {
    "linked": Kind(
        plan=tiny_plan(),
        arms=ARMS,
        parts=("howfar-engine load", "howfar-engine link", "howfar-engine echo", "mariadbd", "socat"),
        max_first_kill_s=8.0,
    ),
    # Without a link, which takes seconds to calibrate.
    "local": Kind(plan=tiny_plan(LOCAL_PATHS), arms=3, parts=("howfar-engine load", "mariadbd"), max_first_kill_s=4.0),
}


class Campaign:
    """Sessions on run files. What a file contains after one session, it must still contain after the next."""

    def __init__(self, kind: Kind, max_kills: int, where: Path, seed: int) -> None:
        self.kind = kind
        self.max_kills = max_kills
        self.where = where
        self.cache = where / "c"
        self.rng = Random(seed)
        (where / "tiny.toml").write_text(kind.plan)
        self.kills: list[str] = []
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
    def find_victim(session: Session, roles: list[str]) -> tuple[str, int] | None:
        """A process of the first role, waiting up to PART_TIMEOUT_S for it; else a running one of another role."""
        timeout_s = PART_TIMEOUT_S
        for role in roles:
            victim = session.wait_for_pid(role, timeout_s)
            if victim is not None:
                return role, victim
            timeout_s = 0.01
        return None

    def kill_parts(self, session: Session) -> str | None:
        """Kill parts until the session has ended. Returns the role whose death should have ended it, if any."""
        is_first = True
        while len(self.kills) < self.max_kills:
            is_fatal = self.rng.random() < FATAL_SHARE
            roles = list(EXIT_CODES) if is_fatal else list(self.kind.parts)
            self.rng.shuffle(roles)
            delay_s = self.rng.uniform(0, self.kind.max_first_kill_s if is_first else MAX_BETWEEN_KILLS_S)
            victim = None if session.ends_within(delay_s) else self.find_victim(session, roles)
            if session.has_ended():
                return None
            if victim is None:
                continue
            role, pid = victim
            self.namespaces = session.namespaces()
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            since = "start" if is_first else "kill before"
            last_line = session.lines[-1][:60] if session.lines else "(no output yet)"
            self.kills.append(f"{role}, {delay_s:.2f} s after the {since}, after: {last_line}")
            print(len(self.kills), self.kills[-1], file=sys.stderr)
            is_first = False
            if is_fatal:
                return role
        return None

    def check_file(self, session: Session) -> None:
        """Check that all trials reported as finished are in the file, and that its earlier content is unchanged."""
        assert self.file.exists() or not session.reported_trials(), session.output()
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
        reported = session.reported_trials()
        assert new[: len(reported)] == reported, session.output()
        assert len(new) - len(reported) <= 1, "a trial is reported once it is in the file"
        self.run, self.rows = run, rows

    def check_complete(self) -> None:
        """Check that each block was measured once. A void trial has a reason and ends its block, which is measured again."""
        assert self.run is not None
        assert self.run.stop is StopReason.BLOCKS
        assert [trial.number for trial in self.run.trials] == list(range(len(self.run.trials)))
        for block in range(BLOCKS):
            tried = [t for t in self.run.trials if t.block == block]
            last = max(t.attempt for t in tried)
            for attempt in range(last + 1):
                trials = [t for t in tried if t.attempt == attempt]
                voids = [t for t in trials if t.status is TrialStatus.VOID]
                assert [t.position for t in trials] == list(range(len(trials)))
                assert all(t.void_reason for t in voids)
                cut_short = voids and attempt + 1 < ATTEMPTS_PER_BLOCK
                assert voids == trials[-1:] if cut_short else len(trials) == self.kind.arms, (block, attempt, trials)
                assert voids or attempt == last, "only a block with a void trial is measured again"
            assert last < ATTEMPTS_PER_BLOCK

    def run_session(self) -> None:
        before = machine_state()
        self.namespaces = set()
        kills_before = len(self.kills)
        with self.start() as session:
            fatal_role = self.kill_parts(session)
            code = session.wait()
            session.marked.wait_until_gone()
        assert "Traceback" not in session.output()
        assert machine_state() == before
        wait_until(lambda: not self.namespaces & all_namespaces(), "the end of the namespaces")
        assert not any((self.cache / "howfar").glob("sandbox/*")), "no mount is visible outside the sandbox"
        self.check_file(session)
        if fatal_role is not None:
            assert code == EXIT_CODES[fatal_role], session.output()
            assert fatal_role == "parent" or "howfar: the sandbox was killed" in session.output()
        elif code == 0:
            self.check_complete()
        else:
            # A part died while the laboratory was built, or one arm was void too often. Without a kill, this happens only on a machine
            # that is too busy for a link.
            output = session.output()
            assert len(self.kills) > kills_before or any(sign in output for sign in DISTURBANCE_SIGNS), output
            assert code in (4, 5), session.output()
            assert any(line.startswith("howfar: ") for line in session.lines), session.output()


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("local", 4),
        pytest.param("linked", 8, marks=pytest.mark.thorough),
        pytest.param("local", 23, marks=pytest.mark.thorough),
    ],
)
def test_kills_leave_no_process_and_lose_no_trial(
    kind: str, kills: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seed = int(os.environ.get("HOWFAR_TEST_SEED") or Random().randrange(2**31))
    print(f"HOWFAR_TEST_SEED={seed}", file=sys.stderr)
    where = tmp_path_factory.mktemp("k")
    campaign = Campaign(KINDS[kind], kills, where, seed)
    while len(campaign.kills) < campaign.max_kills:
        campaign.run_session()
    for _ in range(5):  # the last kill may have come while the laboratory was built
        if campaign.run is not None and campaign.run.stop is StopReason.BLOCKS:
            break
        campaign.run_session()
    is_incomplete = campaign.run is not None and campaign.run.stop is not StopReason.BLOCKS
    if not is_incomplete:
        campaign.check_complete()
    plain = {"tiny.toml", "tmp", "c"} | {f"{n}.{end}" for n in range(campaign.files + 1) for end in ("howfar", "html")}
    assert {entry.name for entry in where.iterdir()} <= plain, "no log and no partial file remain"
    assert not any((where / "tmp").iterdir())
    left = {entry.relative_to(where / "c" / "howfar") for entry in (where / "c" / "howfar").rglob("*")}
    assert not [entry for entry in left if "building" in str(entry) or entry.parts[0] == "work"]
    assert all(run_howfar("report", f"{n}.howfar", cwd=where).returncode == 0 for n in range(campaign.files + 1))
    if is_incomplete:
        assert campaign.run is not None
        skip_if_disturbed(campaign.run.trials[-1].void_reason)
        campaign.check_complete()
