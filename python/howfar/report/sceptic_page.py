"""What a sceptic asks first of a run about pages, answered from the run's own figures."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import PageArm, PageFindings
from howfar.experiments.page.report import words
from howfar.report import figures
from howfar.report.tables import share

Pair = tuple[str, str]


def page_questions(summary: Summary) -> list[Pair]:
    """(question, answer), before those that are asked of every run."""
    findings = summary.pages
    if findings is None:
        return []
    found = [
        ("Two machines in one computer?", _one_computer(summary, findings)),
        ("Who else has a real page on such small machines?", _small(summary)),
        ("Is the page real?", _real(findings)),
        ("Does the visitor take the application's CPU?", _visitor(findings)),
        ("Where are HTTP, nginx and TLS?", _http(findings)),
        ("Are data and code in memory?", _memory(findings)),
        ("Is it the network, or waking up?", _waking(findings)),
        ("Is it a network like mine?", _network(findings)),
        ("Are the visitors like mine?", _visitors(findings)),
        ("Is the model fitted to what it predicts?", _model(findings)),
        ("Is it the published experiment?", _published(summary, findings)),
    ]
    return [(question, answer) for question, answer in found if answer]


def _two(findings: PageFindings) -> list[PageArm]:
    return [arm for arm in findings.arms if arm.machines == 2]


def _emulator_cpus(arm: PageArm) -> float:
    """CPUs that the link's emulator kept busy."""
    return arm.cpu_ms.get(words.INSTRUMENT, 0.0) / 1e3 * arm.pages_per_s.value


def _one_computer(summary: Summary, findings: PageFindings) -> str:
    """The emulator takes from both machines what a network card would not: the strongest objection, so it is first."""
    two = _two(findings)
    if not two:
        return ""
    of = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
    said = (
        "Each has its own network stack and its own share of the CPUs, and what one computes the other does not wait for. They share "
        "caches, memory and the host's clock; and the emulated link between them runs on the same CPUs. "
    )
    busiest = max(two, key=_emulator_cpus)
    if not _emulator_cpus(busiest):
        return said + "What the link took of them is not known in this run."
    said += (
        f"It took up to {figures.cpus(_emulator_cpus(busiest))}{of} CPUs ({busiest.arm}): "
        f"{words.ms(busiest.cpu_ms[words.INSTRUMENT])} ms a page beside {words.ms(words.path_cpu_ms(busiest))} ms of all others. Real "
        "machines would have it for pages, so two of them are better than they look here. "
    )
    crossings = words.chief_crossings(findings)
    ways = words.several(words.way_of(found) for found in crossings)
    freed = [
        f"the {found.page} page{f' ({words.by_way(found, crossings)})' if ways else ''} "
        f"{words.milliseconds(found.without_link_cpu_ms)} ms instead of {words.foreseen_at(found)}"
        for found in crossings
        if found.without_link_cpu_ms is not None and found.predicted_always != "two"
    ]
    if freed:
        said += f"By the model the second machine would pay, if the link took none, from: {'; '.join(freed)}."
    return said.rstrip()


def _small(summary: Summary) -> str:
    if not summary.machine_cpus or summary.machine_cpus < 2:
        return ""
    each = summary.machine_cpus // 2
    return (
        f"A machine here is {each} CPU{'' if each == 1 else 's'}, half of this computer's, for one machine as for each of two: the "
        "second machine doubles the CPUs. Machines with more CPUs need as many times more pages in flight to be full. Where two "
        "begin to pay with them was not measured here; by the model somewhat earlier, if pages in flight grow with the CPUs."
    )


def _real(findings: PageFindings) -> str:
    real = [arm for arm in findings.arms if arm.application == "php"]
    if not real:
        return (
            "No: the engine ran the turns itself, without PHP or any application round them. An application adds CPU of its own, "
            "which moves the answer towards two machines."
        )
    own = [arm for arm in real if not arm.app_cpu_ns and arm.machines == 1 and arm.path == "socket"]
    told = {
        arm.page: f"the {arm.page} page {words.ms(cpu)} ms"
        for arm in own
        if (cpu := arm.own_cpu_ms if arm.own_cpu_ms is not None else arm.cpu_ms.get("application")) is not None
    }
    costs = f" Of PHP's own CPU it takes, on sockets: {', '.join(told.values())}." if told else ""
    return (
        "PHP is real: PHP-FPM with PDO, phpredis and the extension for Memcached, and every answer is checked: a trial in which a key "
        f"or a row was missing is void. The page is a script of turns without a framework, templates or sessions.{costs} What an "
        "application computes beyond is burnt in a loop, evenly between the turns, and touches little memory."
    )


def _visitor(findings: PageFindings) -> str:
    seen = [arm for arm in findings.arms if arm.cpu_ms.get("visitor")]
    if not seen:
        return ""
    most = max(seen, key=lambda arm: arm.cpu_ms["visitor"] / words.path_cpu_ms(arm))
    whole = most.cpu_ms["visitor"] / words.path_cpu_ms(most)
    return (
        f"Yes, as a web server on the same machine does: at most {share(whole)} of a page's CPU "
        f"({words.ms(most.cpu_ms['visitor'])} ms, {most.arm}). It runs where the application runs, on one machine and on two."
    )


def _http(findings: PageFindings) -> str:
    if all(arm.application != "php" for arm in findings.arms):
        return ""
    return (
        "Not here. The visitor speaks FastCGI to PHP-FPM over a socket, as a web server does. A web server and its TLS cost each "
        "page the same on one machine as on two, on the application's side: they move the answer as more application CPU does."
    )


def _memory(findings: PageFindings) -> str:
    opcode = (
        " The opcode cache is on, and warm when measuring begins."
        if any(arm.application == "php" for arm in findings.arms)
        else ""
    )
    return (
        "Yes: the stores hold all their keys, and a trial in which the server read from the files of its tables is void. Where turns "
        f"wait for disks, the way to the database matters less.{opcode}"
    )


def _waking(findings: PageFindings) -> str:
    """What a turn over the link takes beyond one over loopback, against the round trip itself."""
    found = []
    for two in sorted(_two(findings), key=lambda arm: (arm.threads, arm.app_cpu_ns, arm.application != "php")):
        near = next((arm for arm in findings.arms if _beside(arm, two)), None)
        for cost in two.turns:
            other = words.cost_of(near, cost.service)
            if other is not None and two.rtt_ms is not None:
                found.append((two, cost.service, cost.mean_us - other.mean_us, two.rtt_ms * 1e3))
        if found:
            break
    if not found:
        return ""
    arm, _, _, rtt = found[0]
    each = ", ".join(f"{words.SERVICES.get(service, service)} {words.ms(more)} µs" for _, service, more, _ in found)
    return (
        f"Both. With {words.in_flight(arm.threads)} ({arm.arm}) a turn takes longer than over loopback TCP by: {each}. The link's "
        f"round trip at rest is {words.ms(rtt)} µs. What is beyond it this run does not take apart: on two machines a process on an "
        "idle CPU must be woken at each end of each turn, which costs more in a virtual machine than on its host, and where others "
        "use the CPUs it waits for its turn."
    )


def _beside(arm: PageArm, two: PageArm) -> bool:
    return arm.path == "tcp" and words.setting_of(arm) == words.setting_of(two)


def _network(findings: PageFindings) -> str:
    rtts = sorted({arm.rtt_ms for arm in _two(findings) if arm.rtt_ms is not None})
    if not rtts:
        return ""
    seen = (
        words.ms(rtts[0]) if words.ms(rtts[0]) == words.ms(rtts[-1]) else f"{words.ms(rtts[0])} to {words.ms(rtts[-1])}"
    )
    return (
        f"Its round trip was {seen} ms at rest, as measured with packets of this run. Ping your own database first: turns multiply "
        "the difference. --rtt and --rate repeat the run with another link."
    )


def _visitors(findings: PageFindings) -> str:
    threads = sorted({arm.threads for arm in findings.arms})
    return (
        f"A closed loop of {' and '.join(map(str, threads))}: each visitor asks for the next page when it has the last one, without "
        "a pause. One alone shows what a page takes; several show what a machine can make. Visitors who come when they like wait "
        "longer near the limit; the shares over 13 and 75 ms are of this loop."
    )


def _model(findings: PageFindings) -> str:
    model = findings.model
    if model.mean_error is None or model.worst_error is None:
        return ""
    return (
        f"No. {model.arms} of {len(findings.arms)} arms are foreseen, from other arms only: real pages on sockets, the engine's page "
        f"on each path, and the link's RTT at rest. Off by {share(model.mean_error)} on average and by "
        f"{share(abs(model.worst_error))} at worst; every error stands beside its figure."
    )


def _published(summary: Summary, findings: PageFindings) -> str:
    if not findings.published:
        return ""
    return (
        "Its question, not its application: theirs was PHP with MySQL and Redis on virtual machines of 2 CPUs, of 3.1 GHz where "
        f"there were two and 2.3 GHz where there was one. Ours: {summary.server['kind']} {summary.server['version']} "
        f"({summary.workload}). Their page does more between turns and their network is another; what can be compared is which way "
        "the answer falls."
    )
