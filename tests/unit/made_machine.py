"""Made-up readings of a machine: quiet, and busy with two programs."""

from __future__ import annotations

from dataclasses import replace

from howfar.contract.receipt import ProgramUse
from howfar.quiet_check import QuietReadings

STEADY = {0: [990, 1010] * 20, 1: [1980, 2020] * 20}
"""CPU times of pieces of work on two CPUs of different speed, each steady within 1 %."""
UNEVEN = {0: [800, 1200] * 20}
CARGO, RUSTC = ProgramUse(name="cargo", pid=4711, cpus=0.9), ProgramUse(name="rustc", pid=4720, cpus=0.3)
QUIET = QuietReadings(
    watched_s=3.0, cpus=2, programs=(), busy_cpus=0.15, own_cpus=0.1, steal_share=0.0, governor=None, pieces_ns=STEADY
)
BUSY = replace(QUIET, programs=(CARGO, RUSTC), busy_cpus=1.4, pieces_ns=UNEVEN)
