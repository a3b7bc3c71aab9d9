"""The report of an examination: its answer, and the document that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from howfar import quiet_check
from howfar.analysis.answer import Answer, sentence
from howfar.contract.receipt import ProgramUse
from howfar.doctor import findings, texts
from howfar.doctor.candidates import PROGRAMS
from howfar.doctor.findings import Client, Examination, Listener, Median, Server, Severity, Unseen, format_time
from howfar.doctor.texts import ANSWERS, CAUSES, CERTAINTY, LINES, PROBLEMS, STEP, STEPS, TRANSPORTS
from howfar.findings import Finding, capital, fill, join_clauses
from howfar.report import document as blocks
from howfar.report.document import (
    AdviceBlock,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Heading,
    PlaceLines,
    Table,
    Text,
    what_to_do,
)
from howfar.units import counted, format_utc

_TLS = {"none": "no TLS", "offered": "TLS offered", "always": "TLS only", "unknown": "TLS unknown"}
_STATE = {
    "works": "",
    "gone": ", path does not exist any more",
    "elsewhere": ", path belongs to another process",
    "unseen": ", cannot be checked",
}


def answer(servers: Sequence[Server], unseen: Sequence[Unseen]) -> Answer:
    """What can be avoided at these servers. `unseen`: what could not be seen of the machine itself."""
    all_findings = [finding for server in servers for finding in server.findings]
    changes = [finding for finding in all_findings if finding.severity is Severity.CHANGE]
    problems = list(dict.fromkeys(PROBLEMS[finding.check] for finding in changes or all_findings))
    if problems:
        finding_id, count = "avoidable" if changes else "notes", len(problems)
        found = [Finding(id=finding_id, subject=problem, parameters={"count": count}) for problem in problems]
    else:
        hidden = _count_unseen(servers, unseen)
        finding_id = "none-found" if not servers else "nothing-seen" if hidden else "nothing"
        found = [Finding(id=finding_id, parameters={"servers": len(servers), "unseen": hidden})]
    causes = _largest_savings(changes or all_findings)
    return Answer(
        question=texts.QUESTION,
        sentence=sentence(found, ANSWERS),
        findings=tuple(found),
        why=sentence(causes, CAUSES),
        causes=causes,
    )


def _largest_savings(all_findings: Iterable[findings.Finding]) -> tuple[Finding, ...]:
    """The measured savings, the largest of each check, in descending order."""
    savings_ns: dict[tuple[str, str], float] = {}
    for finding in all_findings:
        gain, saving_ns = finding.gain, _saving_ns(finding)
        if gain is not None and gain.per and saving_ns:
            key = finding.check, gain.per
            savings_ns[key] = max(saving_ns, savings_ns.get(key, 0))
    return tuple(
        Finding(id="saving", subject=PROBLEMS[check], parameters={"time": format_time(ns), "per": per})
        for (check, per), ns in sorted(savings_ns.items(), key=lambda item: -item[1])
    )


def _count_unseen(servers: Sequence[Server], unseen: Sequence[Unseen]) -> int:
    return len(unseen) + sum(len(server.unseen) for server in servers)


def document(examination: Examination) -> Document:
    """The examination as a document."""
    servers = examination.servers
    found = answer(servers, examination.unseen)
    parts: list[Block] = [blocks.Answer(found.sentence, why=found.why, certainty=_certainty(examination, found))]
    if not servers:
        parts.append(Text(fill(texts.WHERE_SEARCHED, programs=", ".join(PROGRAMS))))
    parts += _steps(examination)
    parts.append(_times_table(servers))
    if examination.machine is not None:
        parts.append(Text(quiet_check.in_short(examination.machine)))
    for server in servers:
        parts += _server_blocks(server)
    if examination.unseen:
        parts += [Heading("Not seen on this machine"), Bullets(tuple(_unseen_lines(examination.unseen)))]
    setting = fill(
        texts.SETTING,
        servers=len(servers),
        seconds=examination.watched_s,
        samples=examination.samples,
        load=examination.load_average,
        cpus=examination.cpus,
        when=format_utc(examination.unix_ns),
    )
    return Document("howfar doctor", tuple(parts), question=found.question, setting=setting)


def _saving_ns(finding: findings.Finding) -> float:
    """What a change saves each time; 0 if no saving was measured beyond the noise."""
    saving = finding.gain.saves_ns if finding.gain is not None else None
    return saving.value if saving is not None and saving.is_resolved else 0.0


def _steps(examination: Examination) -> list[Block]:
    """The changes as steps: the largest measured saving first, those without one last; then what to do before a measurement. Empty if
    nothing is to be done."""
    servers, machine = examination.servers, examination.machine
    changes = [
        (server, finding) for server in servers for finding in server.findings if finding.severity is Severity.CHANGE
    ]
    changes.sort(key=lambda change: -_saving_ns(change[1]))
    steps = [_step(finding, server.name if len(servers) > 1 else "") for server, finding in changes]
    quiet_step = None if machine is None else quiet_check.step(machine, lambda program: _serves(program, servers))
    again = [AdviceBlock(STEP["again"], "", (texts.AGAIN,))] if steps else []
    return what_to_do([*steps, *([] if quiet_step is None else [quiet_step]), *again])


def _serves(program: ProgramUse, servers: Sequence[Server]) -> bool:
    """Whether a program is a database server, or a client of one of `servers`: these are not stopped for a measurement."""
    return program.name in PROGRAMS or any(
        program.pid in client.pids for server in servers for client in server.clients
    )


def _step(finding: findings.Finding, server: str) -> AdviceBlock:
    gain = finding.gain
    because = fill(STEP["found"], text=finding.text, check=finding.check)
    if gain is not None:
        because = f"{because} {fill(STEP['gain'], gain=gain.text, basis=gain.basis)}"
    if len(finding.changes) > 1:
        because = f"{because} {texts.CHOICE}"
    return AdviceBlock(
        capital(fill(STEP["step"], step=STEPS[finding.check], server=server)),
        because,
        places=tuple(map(_place_lines, finding.changes)),
    )


def _place_lines(change: findings.Change) -> PlaceLines:
    place = fill(STEP["restart"], where=change.where) if change.restarts else change.where
    return PlaceLines(place, change.lines)


def _certainty(examination: Examination, found: Answer) -> str:
    """How sure the answer is, in one line. Empty if no server was found."""
    servers = examination.servers
    if not servers:
        return ""
    floors = [times for server in servers for times in server.floors]
    idle = sum(server.rates is not None and not server.rates.connects + server.rates.statements for server in servers)
    figures = {
        "rounds": max((len(times.round_trips_ns) for times in floors), default=0),
        "intervals": any(times.round_trip_ns.low is not None for times in floors),
        "logins": sum(server.logged_in for server in servers),
        "servers": len(servers),
        "idle": idle,
        "unseen": _count_unseen(servers, examination.unseen),
    }
    names = [*(["times"] if floors else []), "logins"]
    if idle and examination.to_change:
        names.append("idle" if len(servers) == 1 else "idle-some")
    if figures["unseen"] and found.findings[0].id != "nothing-seen":  # the answer says it
        names.append("unseen")
    return join_clauses(fill(CERTAINTY[name], **figures) for name in names)


def _times_table(servers: Sequence[Server]) -> Table:
    """Shortest times of each server and transport."""
    columns = (
        Column("server", left_aligned=True),
        Column("transport", left_aligned=True),
        Column("round trip", "95 % interval"),
        Column("connect", "95 % interval"),
    )
    rows = tuple(
        (
            Cell(server.name),
            Cell(TRANSPORTS[times.transport]),
            *map(_time_cell, (times.round_trip_ns, times.connect_ns)),
        )
        for server in servers
        for times in server.floors
    )
    return Table("Shortest times", columns, rows, main=True)


def _time_cell(median: Median | None) -> Cell:
    value, bracket, limits = ("-", "", "") if median is None else median.text.partition("[")
    return Cell(value.strip(), bracket + limits)


def _server_blocks(server: Server) -> Iterator[Block]:
    """The notes about a server with their lines to copy, then its facts. Its changes are the steps."""
    process = [f"pid {server.pid}" if server.pid is not None else "no process seen", server.user or ""]
    is_remote = server.pid is None and server.listeners
    yield Heading(
        f"{server.name} at {server.listeners[0].where}"
        if is_remote
        else f"{server.name} ({', '.join(filter(None, process))})"
    )
    for finding in server.findings:
        if finding.severity is Severity.CHANGE:
            continue
        yield Text(fill(LINES["note"], text=finding.text, check=finding.check))
        if finding.gain is not None:
            yield Text(fill(LINES["gain"], text=finding.gain.text, basis=finding.gain.basis), quiet=True)
        for place in map(_place_lines, finding.changes):
            yield Text(f"{place.name}:")
            yield Code(place.lines)
    unseen = (fill(LINES["of-server"], text=text) for text in _unseen_lines(server.unseen))
    yield Bullets((*_fact_lines(server), *unseen))


def _fact_lines(server: Server) -> Iterator[str]:
    for listener in server.listeners:
        yield fill(LINES["listens"], where=_format_listener(listener))
    if not server.sockets:
        yield LINES["no-socket" if server.listeners_complete else "socket-unknown"]
    if server.compression not in ("none", "unknown"):
        yield fill(LINES["compression"], algorithms=server.compression)
    for client in server.clients:
        yield fill(LINES["client"], client=_format_client(client))
    if server.socket_connections:
        yield fill(LINES["socket-clients"], connections=server.socket_connections)
    elif not server.clients:
        yield LINES["no-clients" if server.listeners else "no-listener"]
    if server.rates is not None:
        rates = server.rates
        handshakes = fill(LINES["handshakes"], handshakes=rates.tls_connects) if rates.tls_connects else ""
        figures = {"connects": rates.connects, "statements": rates.statements, "counted": server.kind.counts}
        yield fill(LINES["rates"], **figures) + handshakes


def _format_listener(listener: Listener) -> str:
    if listener.path is None:
        return f"{listener.where}, {_TLS[listener.tls]}"
    file = listener.file
    access = f", mode {file.mode:04o} {file.owner}:{file.group}, open to {file.who}" if file is not None else ""
    return f"{listener.path}{access}{_STATE[listener.state]}"


def _format_client(client: Client) -> str:
    over_tcp = "over TCP from this machine" if client.local else "over TCP"
    parts = ["over the socket" if client.by == "socket" else over_tcp, counted(client.connections, "connection")]
    if client.connects_seen > client.connections:
        parts.append(f"{client.connects_seen} seen in all")
    parts += [{True: "TLS", False: "no TLS", None: "TLS unknown"}[client.tls]]
    parts += ["compressed"] if client.compressed else []
    return f"{client.description if client.local else client.address}: {', '.join(parts)}"


def _unseen_lines(unseen: Iterable[Unseen]) -> Iterator[str]:
    for item in unseen:
        yield fill(LINES["unseen-how" if item.how else "unseen"], what=item.what, why=item.why, how=item.how)
