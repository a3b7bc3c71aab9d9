"""A program for the tests: pages of a PHP application on each requested path; prints their reports and receipts as JSON.

python -m tests.lab.php_scenario SERVER CASE...    A case is PATH[:TLS][+per_page] or one of the special cases in `main`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from howfar.contract.messages import (
    CpuStep,
    CustomStatement,
    FastCgi,
    GetStep,
    IntegerValues,
    KeyValue,
    PageJob,
    PageScript,
    QueryStep,
    SameValue,
    UnixTarget,
)
from howfar.contract.services import services_of, sql_of
from howfar.contract.violation import sentences
from howfar.doctor.findings import Kind
from howfar.engine.run_load import run_load
from howfar.errors import HowfarError, LabError
from howfar.experiments.page.factors import PHP
from howfar.experiments.page.lab import php_fpm
from howfar.experiments.page.lab.php_fpm import PhpReply, count_keys_read, count_round_trips, send_request
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.lab.trial_environment import LabTrialEnvironment
from howfar.plan.factor import Level
from howfar.runner.loads.key_stores import fill_keys
from howfar.testbed import LoadFacts
from tests.lab.auxiliary_scenario import STORES
from tests.lab.php_proposals import Endpoint, run_all
from tests.lab.sandboxes import wait_until
from tests.lab.scenario_programs import run_in_sandbox

KEYS, SIZE = 300, 1000
CHILDREN, PAGES, VISITS, ROUNDS = 2, 4, 12, 2
CPU_NS = 3_000_000
Connect = Literal["persistent", "per_page"]

_ROW = IntegerValues(high=SIZE)
_STATEMENTS = (
    CustomStatement(name="point", sql="SELECT c FROM sbtest1 WHERE id = ?", parameters=(_ROW,)),
    CustomStatement(
        name="range",
        sql="SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ? + 9",
        parameters=(IntegerValues(high=SIZE - 10), SameValue(statement="range", index=0)),
    ),
    CustomStatement(name="begin", sql="BEGIN"),
    CustomStatement(name="update", sql="UPDATE sbtest1 SET k = k + 1 WHERE id = ?", parameters=(_ROW,)),
    CustomStatement(name="commit", sql="COMMIT"),
    CustomStatement(name="none", sql="SELECT c FROM sbtest1 WHERE id = 0"),
)
_STEPS = (
    QueryStep(statement="point", repeat=5),
    QueryStep(statement="range"),
    GetStep(store="redis", repeat=2),
    GetStep(store="redis", keys_each=10),
    QueryStep(statement="begin"),
    QueryStep(statement="update"),
    QueryStep(statement="commit"),
    CpuStep(cpu_ns=CPU_NS),
)
MEMCACHED = (GetStep(store="memcached", repeat=3), GetStep(store="memcached", keys_each=10))
_IS_PROOF = "str_ends_with($_SERVER['HOWFAR_PAGE'], 'proof.json')"
_FALSE_CODE = (
    ("$prepared->execute();", f"$i > 0 && !{_IS_PROOF} || $prepared->execute();"),
    ("if ($rows === []) {", "if (false) {"),
    ("$memcached->get($keys[0])", f"({_IS_PROOF} ? $memcached->get($keys[0]) : 'kept')"),
)
"""Replacements in `Steps.php` outside the proof: repeated statements are sent once, and no single key is requested from Memcached."""
ROUND_TRIPS = {"mysql": 9 * ROUNDS, "postgresql": 9 * ROUNDS, "redis": 3 * ROUNDS, "memcached": 4 * ROUNDS}
"""Round trips of one page."""


def _keys(protocol: Literal["resp2", "memcached_text"]) -> KeyValue:
    return KeyValue(protocol=protocol, keys=KEYS, get=1, set=0)


def _script(environment: LabTrialEnvironment, connect: Connect, with_memcached: bool) -> PageScript:
    services = {name: endpoint.service for name, endpoint in environment.services.items()}
    sql = sql_of(services)
    assert sql is not None
    more: dict[str, Any] = {"memcached": services["memcached"], "memcached_keys": _keys("memcached_text")}
    return PageScript(
        redis=services["redis"],
        redis_keys=_keys("resp2"),
        statements=_STATEMENTS,
        steps=(*_STEPS, *MEMCACHED) if with_memcached else _STEPS,
        rounds=ROUNDS,
        connect=connect,
        **{str(sql): services[sql]},
        **(more if with_memcached else {}),
    )


def _request_page(cgi: FastCgi) -> PhpReply:
    assert isinstance(cgi.target, UnixTarget)
    return send_request(Path(cgi.target.path), cgi.parameters, 20.0)


@contextmanager
def _open_application(laboratory: Lab, case: str) -> Iterator[tuple[LabTrialEnvironment, FastCgi, PageScript]]:
    path_and_tls, _, connect = case.partition("+")
    path, _, tls = path_and_tls.partition(":")
    factors: dict[str, Level] = {"path": path, "placement": "machines", "threads": CHILDREN, "tls": tls or "off"}
    factors |= {"page": "heavy", "application": "php"}
    with laboratory.trial_environment(factors) as environment:
        with_memcached = not tls
        fill_keys(environment.services["redis"], _keys("resp2"), environment.client)
        if with_memcached:
            fill_keys(environment.services["memcached"], _keys("memcached_text"), environment.client)
        script = _script(environment, "per_page" if connect else "persistent", with_memcached)
        assert environment.application is not None
        yield environment, environment.application.install(script), script


def _run_load(environment: LabTrialEnvironment, cgi: FastCgi) -> dict[str, Any]:
    """Load the pages with the engine, as in a trial."""
    job = PageJob(
        application=cgi,
        workers=CHILDREN,
        seed=1,
        warmup_ns=0,
        measure_ns=20 * 10**9,
        pages=VISITS,
        observe=environment.observe,
    )
    outcome = run_load(job, environment.client)
    return {
        "pages": outcome.finished.transactions,
        "reported": outcome.finished.app_counters,
        "cpu": {use.role: use.cpu_ns for use in outcome.finished.cpu},
        "protocol": outcome.ready.receipt.protocol_mode,
    }


def _trial(laboratory: Lab, case: str) -> dict[str, Any]:
    with _open_application(laboratory, case) as (environment, cgi, script):
        answers = [_request_page(cgi) for _ in range(PAGES)]
        load = _run_load(environment, cgi)
        collected = environment.collect_receipt(None)
        assert environment.application is not None and collected.receipt.application is not None
        return {
            "round_trips": {name: ROUND_TRIPS[name] for name in services_of(script)},
            "load": load,
            "statuses": [answer.status for answer in answers],
            "complete": all(answer.body.endswith(cgi.ends_with) for answer in answers),
            "errors": [answer.stderr for answer in answers if answer.stderr],
            "reported": [answer.counts for answer in answers],
            "receipt": collected.receipt.application.as_json(),
            "violations": sentences(collected.violations),
            "observed": [process.role for process in environment.observe],
            "script_mode": oct(Path(cgi.parameters["HOWFAR_PAGE"]).stat().st_mode & 0o777),
        }


def _wrong_path(laboratory: Lab) -> dict[str, Any]:
    """PHP connects to MySQL's socket instead of the path `tcp`, which the server reports."""
    factors: dict[str, Level] = {"path": "tcp", "threads": 1, "application": "php", "page": "heavy"}
    with laboratory.trial_environment(factors) as environment:
        fill_keys(environment.services["redis"], _keys("resp2"), environment.client)
        script = _script(environment, "persistent", False)
        assert script.mysql is not None and environment.application is not None
        socket = UnixTarget(path=str(environment.main.running.socket))
        mysql = script.mysql.model_copy(update={"target": socket})
        environment.application.install(script.model_copy(update={"mysql": mysql}))
        return {"violations": sentences(environment.collect_receipt(None).violations)}


def _false_reports(laboratory: Lab) -> dict[str, Any]:
    """PHP that makes all its round trips during the proof, but under load makes fewer than it reports."""
    original = php_fpm.PAGES
    with tempfile.TemporaryDirectory() as directory:
        modified = Path(directory, "php")
        shutil.copytree(original, modified)
        steps = (modified / "Steps.php").read_text()
        for true, false in _FALSE_CODE:
            assert steps.count(true) == 1
            steps = steps.replace(true, false)
        (modified / "Steps.php").write_text(steps)
        php_fpm._PAGE = modified / "page.php"
        try:
            return _load_and_collect(laboratory)
        finally:
            php_fpm._PAGE = original / "page.php"


def _load_and_collect(laboratory: Lab) -> dict[str, Any]:
    with _open_application(laboratory, "socket") as (environment, cgi, script):
        environment.reset_counters()
        load = _run_load(environment, cgi)
        pages, reported = load["pages"], load["reported"]
        round_trips = {name: count * pages for name, count in count_round_trips(script).items()}
        keys = {name: count * pages for name, count in count_keys_read(script).items()}
        claimed = {name: reported[f"{name}_turns"] - reported[f"{name}_checks"] for name in round_trips}
        facts = LoadFacts(round_trips=round_trips, keys=keys, sessions={})
        violations = sentences(environment.collect_receipt(None, facts).violations)
        return {"claims_all": claimed == round_trips, "violations": violations}


def _errors(laboratory: Lab) -> dict[str, Any]:
    """The errors of pages that cannot be made."""
    messages: dict[str, Any] = {}
    with _open_application(laboratory, "socket") as (environment, cgi, script):
        assert environment.application is not None and script.mysql is not None
        secret = script.mysql.model_copy(update={"password": "xyzzy-not-this-one"})
        for name, wrong in {
            "no row": script.model_copy(update={"steps": (QueryStep(statement="none"),)}),
            "password": script.model_copy(update={"mysql": secret, "steps": (QueryStep(statement="point"),)}),
            "key": script.model_copy(update={"redis_keys": _keys("resp2").model_copy(update={"keys": 10**9})}),
        }.items():
            try:
                environment.application.install(wrong)
                messages[name] = list(sentences(environment.collect_receipt(None).violations))
            except HowfarError as error:
                messages[name] = error.message
        missing = cgi.model_copy(update={"parameters": {**cgi.parameters, "HOWFAR_PAGE": "nowhere"}})
        answer = _request_page(missing)
        messages["no script"] = [answer.status, answer.body]
    return messages


def _deaths(laboratory: Lab) -> dict[str, Any]:
    """The errors after the death of a child, of a server and of PHP-FPM."""
    messages: dict[str, Any] = {}
    with _open_application(laboratory, "tcp") as (environment, cgi, _):
        application = environment.application
        assert application is not None
        pid = next(process.pid for process in environment.observe if process.role == "application")
        os.kill(sandbox.children_of(pid)[0], signal.SIGSEGV)
        wait_until(lambda: len(application.collect_receipt().violations) > 0, "PHP-FPM's report of it")
        messages["child"] = list(sentences(application.collect_receipt().violations))
        os.kill(environment.services["redis"].pid, signal.SIGKILL)
        answer = _request_page(cgi)
        messages["redis"] = [answer.status, answer.body]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: " Z " in Path(f"/proc/{pid}/stat").read_text(), "PHP-FPM has ended")
        try:
            application.collect_receipt()
        except LabError as error:
            messages["application"] = [error.message]
    return messages


def _lines(laboratory: Lab) -> dict[str, str]:
    """The doctor's lines for PHP, run with servers that listen only on sockets."""
    with laboratory.trial_environment({"path": "socket", "threads": 1}) as environment:
        endpoints = {}
        for name, kind in {"mysql": Kind.MYSQL, "redis": Kind.REDIS, "memcached": Kind.MEMCACHED}.items():
            service = next(endpoint.service for found, endpoint in environment.services.items() if found == name)
            assert isinstance(service.target, UnixTarget)
            endpoints[kind] = Endpoint(service.target.path, service.user, service.password, service.database)
        return run_all(endpoints)


def main() -> None:
    server, *cases = sys.argv[1:]
    request = LabRequest(
        server=server,
        tables=1,
        table_size=SIZE,
        link=LinkSpec(10**6, 10**9),
        with_goodput=False,
        connections=8,
        auxiliary_servers=STORES,
        application=PHP,
    )
    special = {
        "wrong path": _wrong_path,
        "false reports": _false_reports,
        "errors": _errors,
        "deaths": _deaths,
        "lines": _lines,
    }
    with open_laboratory(request) as laboratory:
        trials = {case: special[case](laboratory) if case in special else _trial(laboratory, case) for case in cases}
        print(json.dumps({"environment": laboratory.environment().as_json(), "trials": trials}))


if __name__ == "__main__":
    run_in_sandbox(main)
