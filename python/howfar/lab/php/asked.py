"""What a script asks of an application: whether PHP can do it, and how many turns a page of it has. Values only."""

from __future__ import annotations

from collections import Counter

from howfar.engine.messages import (
    CpuStep,
    CustomStatement,
    Distribution,
    GetStep,
    IntegerValues,
    PageScript,
    QueryStep,
    SequenceValues,
    Service,
    ServiceName,
    TextValues,
)
from howfar.engine.rules import services_of
from howfar.errors import PlanError

_ADVICE = 'Let the engine run this page: application = "engine".'
_ROUNDS_OF_A_PROOF = 2


def check(script: PageScript) -> None:
    """Raises PlanError where PHP would do something else than the engine does."""
    for statement in script.statements:
        _check_statement(statement)
    for keys in (script.redis_keys, script.memcached_keys):
        if keys is not None:
            _check_drawn(keys.distribution, "keys")
    if script.memcached is not None and script.memcached.tls is not None:
        raise PlanError("PHP's extension memcached knows no TLS", _ADVICE)
    for name, service in services_of(script).items():
        _check_tls(name, service)


def _check_statement(statement: CustomStatement) -> None:
    for values in statement.parameters:
        if isinstance(values, SequenceValues):
            raise PlanError(f"statement {statement.name}: the pages of PHP share no sequence", _ADVICE)
        if isinstance(values, TextValues) and values.compressible:
            raise PlanError(f"statement {statement.name}: PHP draws text of random letters only", _ADVICE)
        if isinstance(values, IntegerValues):
            _check_drawn(values.distribution, f"statement {statement.name}")


def _check_drawn(distribution: Distribution, what: str) -> None:
    if distribution.kind != "uniform":
        raise PlanError(f"{what}: PHP draws evenly, not by the distribution {distribution.kind}", _ADVICE)


def _check_tls(name: ServiceName, service: Service) -> None:
    """It takes the newest version that both have, and always checks with an authority."""
    if service.tls is None:
        return
    if service.tls.versions == "1.2" or service.tls.cipher is not None:
        raise PlanError(f"{name}: PHP's drivers are not told a version of TLS or a cipher", _ADVICE)
    if service.tls.ca_file is None:
        raise PlanError(f"{name}: PHP's drivers encrypt where they have an authority's certificate", _ADVICE)


def for_proof(script: PageScript) -> PageScript | None:
    """A page with the same turns and no computing, of few rounds. None: it has no turns."""
    steps = tuple(step for step in script.steps if not isinstance(step, CpuStep))
    if not steps:
        return None
    return script.model_copy(update={"steps": steps, "rounds": min(script.rounds, _ROUNDS_OF_A_PROOF)})


def turns_of(script: PageScript) -> Counter[ServiceName]:
    """Of a page, by service."""
    found: Counter[ServiceName] = Counter()
    for step in script.steps:
        if isinstance(step, QueryStep):
            found["mysql"] += step.repeat * script.rounds
        elif isinstance(step, GetStep):
            found[step.store] += step.repeat * script.rounds
    return found


def keys_of(script: PageScript) -> Counter[ServiceName]:
    """That a page looks for, by store."""
    found: Counter[ServiceName] = Counter()
    for step in script.steps:
        if isinstance(step, GetStep):
            found[step.store] += step.repeat * step.keys_each * script.rounds
    return found
