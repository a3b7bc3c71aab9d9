"""Where a transaction's time goes.

In a closed loop each of N connections always has one transaction under way, so the time of one transaction, the cycle, is
N x elapsed / transactions: the mean latency and the client's own pause between two transactions. The cycle is split by
what was measured independently of the clock:

- CPU of client, server and forwarder *a transaction* (CPU of the role / transactions). A transaction is worked on by one
  part at a time: the client sends, waits, reads. So its own CPU demand lies in its own cycle in full, whatever N is; the
  time it spends behind other connections' work is waiting, not CPU, and dividing by N again would be wrong.
- link: measured RTT at rest x turns a transaction.
- waiting for a CPU: the scheduler's count of time in which these processes' threads were runnable and not running, a
  transaction. It counts also threads that work for no transaction, so it is an upper bound and is cut to what is left.
- rest: what none of them explains: waking up, queueing in a process behind another connection, locks, serialisation on
  the link, kernel work that no process is charged for.

The parts add up to the cycle. If overlapping work (a server that tidies up after it has answered) makes CPU and link more
than the cycle, the link is cut first, then CPU is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.trials import PATH_ROLES
from howfar.results.records import Measured

CLIENT_CPU, SERVER_CPU, FORWARDER_CPU = "client CPU", "server CPU", "forwarder CPU"
LINK, WAITING, REST = "link", "waiting for a CPU", "rest"
PARTS = (CLIENT_CPU, SERVER_CPU, FORWARDER_CPU, LINK, WAITING, REST)
"""Names of the parts, in the order in which they are shown."""


def time_split_us(trials: Sequence[Measured], connections: int, rest_rtt_us: float | None) -> dict[str, float]:
    """Microseconds a transaction by part, over all trials of an arm (at least one transaction). Adds up to the cycle time.

    `rest_rtt_us` is the link's measured RTT at rest; None: no link on this path.
    """
    transactions = sum(trial.transactions for trial in trials)
    assert transactions > 0, "a split needs a transaction"
    cycle = connections * sum(trial.elapsed_ns for trial in trials) / 1e3 / transactions
    turns = sum(trial.turns for trial in trials) / transactions

    def spent(role: str, waiting: bool) -> float:
        records = [cpu for trial in trials for cpu in trial.cpu if cpu.role == role]
        return sum(cpu.runnable_wait_ns if waiting else cpu.cpu_ns for cpu in records) / 1e3 / transactions

    cpu = {f"{role} CPU": spent(role, waiting=False) for role in PATH_ROLES}
    total = sum(cpu.values())
    if total > cycle:
        cpu = {role: value * cycle / total for role, value in cpu.items()}
    left = max(0.0, cycle - sum(cpu.values()))
    link = min(left, (rest_rtt_us or 0.0) * turns)
    left -= link
    waiting = min(left, sum(spent(role, waiting=True) for role in PATH_ROLES))
    return {**cpu, LINK: link, WAITING: waiting, REST: left - waiting}
