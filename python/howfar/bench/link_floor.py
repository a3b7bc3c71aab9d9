"""What this machine does to anything that must be on time, whoever programmed it: a thread with a timer and nothing else.

A link cannot be more punctual than that. Beside a bar that is missed it says whether the link missed it or the machine: a hypervisor
that takes the processor away for a millisecond takes it from both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from howfar.errors import LabError

_PAUSE_S: Final = 500e-6
_PATIENCE_S: Final = 60.0
_TIMER: Final = f"""
import json, os, sys, time
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    realtime = True
except OSError:
    realtime = False
late = []
for _ in range(int(sys.argv[1])):
    due = time.monotonic_ns() + {int(_PAUSE_S * 1e9)}
    time.sleep({_PAUSE_S})
    late.append(time.monotonic_ns() - due)
late.sort()
print(json.dumps({{"p999_us": late[min(int(len(late) * 0.999), len(late) - 1)] / 1e3, "realtime": realtime}}))
"""


def timer_lateness_us(count: int) -> float:
    """How late, at p99.9, a thread of the link's own scheduling class wakes from `count` sleeps of 0.5 ms. Raises LabError."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TIMER, str(count)], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"the timer that measures this machine's own lateness failed: {error}") from error
    return float(json.loads(done.stdout)["p999_us"])
