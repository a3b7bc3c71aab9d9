"""A made-up experiment, added as one class and one line in the registry, works in plan, runner, analysis and every report."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

import jsonschema
import pytest
from tests.unit.fake_lab import fake_info, fakes
from tests.unit.rendered import findings_of

from howfar.analysis.advice import Advice
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.registry import EXPERIMENTS, experiment_of, render_as, render_in_terminal, schema, summarise
from howfar.findings import Finding
from howfar.plan.load import load_plan
from howfar.report.document import Bullets, Details, Document
from howfar.report.frame import frame
from howfar.report.sections import cell_records, cell_table
from howfar.runner.run import execute_run
from howfar.stats.estimate import Part
from howfar.store.records import Run
from howfar.store.run_file import create, read_run

PLAN = """\
name = "detour"
question = "How many socket transactions fit into one over the network?"

[workload]
point_selects = 3

[factors]
path = ["socket", "tcp", "remote"]

[baseline]
path = "socket"

[timing]
warmup = "1s"
measure = "4s"
target = "5%"
"""


class Detours(Part):
    """By arm: the number of baseline transactions that fit in the time of one of its transactions."""

    longer: dict[str, float]


class Detour(Experiment):
    name = "detour"
    texts = {"longest": "the longest detour is {subject}: {transactions:.1f} transactions of the socket"}  # noqa: RUF012
    findings: ClassVar[Keys] = {"detour": Detours}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        if evidence.table.run.info.plan_name != self.name:
            return {}
        return {"detour": Detours(longer={c.arm: 1 / c.ratio.value for c in evidence.cells if c.ratio is not None})}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        found = findings["detour"]
        if not isinstance(found, Detours):
            return ()
        arm = max(found.longer, key=lambda name: found.longer[name])
        return (Finding(id="longest", subject=arm, parameters={"transactions": found.longer[arm]}),)

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        return (
            None
            if findings["detour"] is None
            else (Advice(action="Stay at home.", because="It is shorter.", id="stay"),)
        )

    def document(self, summary: Summary) -> Document:
        longer = findings_of(summary, Detours).longer
        lines = Bullets(tuple(f"{arm} goes {times:.1f} times round" for arm, times in longer.items()))
        records = [{**record, "detour": longer.get(str(record["arm"]), "")} for record in cell_records(summary)]
        return frame(summary, (cell_table(summary),), more_blocks=(Details("Detours", (lines,)),), records=records)


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """Register the experiment: the one line."""
    EXPERIMENTS.insert(0, Detour())
    yield
    del EXPERIMENTS[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("added")
    (folder / "detour.toml").write_text(PLAN)
    laboratory, _engine, instruments = fakes()
    with create(folder / "detour.howfar", fake_info(loaded=load_plan(str(folder / "detour.toml")))) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    return read_run(folder / "detour.howfar")


@pytest.fixture(scope="module")
def summary(run: Run, added: None) -> Summary:
    return summarise(run)


def test_its_findings_answer_and_advice_are_in_the_summary(summary: Summary) -> None:
    assert experiment_of(summary).name == "detour"
    assert findings_of(summary, Detours).longer["socket"] == 1
    (finding,) = summary.answer.findings
    assert (finding.id, finding.subject, len(summary.advice)) == ("longest", "remote", 2)


@pytest.mark.parametrize("form", ["terminal", "html", "md", "csv", "json"])
def test_every_report_shows_it(summary: Summary, form: str) -> None:
    remote = findings_of(summary, Detours).longer["remote"]
    text = render_in_terminal(summary, 100, False, True, True) if form == "terminal" else render_as(summary, form)
    if form == "csv":
        (row,) = (row for row in csv.DictReader(io.StringIO(text)) if row["arm"] == "remote")
        assert float(row["detour"]) == pytest.approx(remote)
    elif form == "json":
        found = json.loads(text)
        assert found["detour"]["longer"]["remote"] == pytest.approx(remote)
        assert all(found.get(key) is None for key in ("pages", "crash"))
        jsonschema.validate(found, schema())
    else:
        assert f"remote goes {remote:.1f} times round" in text and "Stay at home." in text
        assert "the longest detour is remote" in text.lower()


def test_other_runs_know_nothing_of_it(run: Run) -> None:
    other = run.model_copy(update={"info": run.info.model_copy(update={"plan_name": "paths"})})
    found = summarise(other)
    assert experiment_of(found).name == "paths" and found.find_findings(Detours) is None
