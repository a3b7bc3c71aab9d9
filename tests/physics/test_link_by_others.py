"""Independent programs measure the laboratory's link: iperf3 and a ping-pong in Python agree with its receipt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from howfar.plan.quantities import rtt_tolerance_ns
from tests.lab.conftest import cache, namespaces  # noqa: F401 - fixtures
from tests.lab.sandboxes import TIMEOUT_S
from tests.lab.undisturbed import measure_until_agreed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)

PING_PONG = Path(__file__).with_name("ping_pong.py")
GOODPUT_TOLERANCE = 0.02
"""Maximum relative deviation: one segment in 65 over 2 s at 100 Mb/s exceeds it."""


def _lab(tmp_path: Path, rtt: str, rate: str, on_server: str, command: str) -> dict[str, Any]:
    """Run a server and a command over the link; returns the command's JSON as `measured`, the receipt's link as `link`."""
    receipt = tmp_path / "receipt.json"
    lab = [sys.executable, "-m", "howfar.cli.lab", "--server", "none", "--path", "remote", "--rtt", rtt, "--rate", rate]
    done = subprocess.run(
        [*lab, "--receipt", str(receipt), "--on-server", on_server, "--", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return {"measured": json.loads(done.stdout), "link": json.loads(receipt.read_text())["link"]}


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed (./setup --tests brings it)")
@pytest.mark.parametrize(("rtt", "rate"), [THOROUGH("0.2ms", "1gbit"), THOROUGH("10ms", "1gbit"), ("1ms", "100mbit")])
def test_iperf3_sees_the_goodput_of_the_receipt(tmp_path: Path, rtt: str, rate: str) -> None:
    """iperf3 measures each direction; one that agreed is not measured again."""
    flags = {"to_server": "", "to_client": "-R"}

    def measured() -> dict[str, Any]:
        return _lab(tmp_path, rtt, rate, "exec iperf3 -s >/dev/null", _iperf3(tmp_path / "iperf3.out", flags))

    def disagreement(found: dict[str, Any]) -> str | None:
        calibration, disagreements = found["link"]["calibration"], []
        for direction in tuple(flags):
            drops = found["link"]["counters"][direction]["drops"]
            unmodelled = drops["arena"] + drops["socket"] + drops["transmit"]
            bits = found["measured"][direction]["end"]["sum_received"]["bits_per_second"]
            by_receipt = bits / calibration["goodput_bps"][direction]
            by_formula = bits / calibration["expected_goodput_bps"]
            if unmodelled == 0 and max(abs(by_receipt - 1), abs(by_formula - 1)) <= GOODPUT_TOLERANCE:
                del flags[direction]
            else:
                disagreements.append(
                    f"{direction}: {by_receipt:.3f} of the receipt's, {by_formula:.3f} of what is expected, {drops}"
                )
        return "; ".join(disagreements) or None

    measure_until_agreed(measured, disagreement)


def _iperf3(out: Path, flags: dict[str, str]) -> str:
    """A shell command that runs iperf3 with each of the flags and prints its reports as JSON by name."""
    # The server starts together with the command, and may still serve the previous client: first attempts may be refused.
    reports = [
        f"echo '\"{name}\":'; for i in $(seq 100); do iperf3 -J -O 1 -t 2 {flag} -c $HOWFAR_HOST >{out} && break; sleep 0.05; done; "
        f"cat {out}"
        for name, flag in flags.items()
    ]
    return f"echo '{{'; {'; echo ,; '.join(reports)}; echo '}}'"


@pytest.mark.parametrize(
    ("rtt", "rtt_ns"), [THOROUGH("0.2ms", 200_000), ("1ms", 1_000_000), THOROUGH("10ms", 10_000_000)]
)
def test_a_ping_pong_sees_the_round_trip_of_the_receipt(tmp_path: Path, rtt: str, rtt_ns: int) -> None:
    """A ping-pong over loopback in the same run measures Python's own time, which is allowed for. Each laboratory is used for three
    measurements, because building another one takes longer."""
    serve, ask = (f"exec {sys.executable} {PING_PONG} {role} $HOWFAR_HOST" for role in ("serve", "ask"))
    allowed = rtt_tolerance_ns(rtt_ns)

    def disagreement(found: dict[str, Any]) -> str | None:
        loopback_ns = found["measured"]["loopback_p50_ns"]
        receipt_ns = found["link"]["rtt_at_rest_ns"]["p50"]
        # CPUs are idle between the ping-pong's packets, so it is compared with the receipt's RTT from idle.
        idle_ns = found["link"]["rtt_from_idle_ns"]["p50_ns"]
        ping_pong_ns = found["measured"]["link_p50s_ns"]
        right = abs(receipt_ns - rtt_ns) <= allowed
        if right and any(idle_ns - allowed <= link_ns <= idle_ns + allowed + loopback_ns for link_ns in ping_pong_ns):
            return None
        return f"receipt {receipt_ns}, from idle {idle_ns}, ping-pong {ping_pong_ns}, loopback {loopback_ns} ns"

    measure_until_agreed(lambda: _lab(tmp_path, rtt, "1gbit", serve, ask), disagreement)
