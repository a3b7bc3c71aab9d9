"""Settings and answers that Python and JavaScript must agree on. `python -m tests.unit.what_if_vectors` writes the file anew."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from howfar.analysis.findings import WhatIf, WhatIfCompression, WhatIfSettings
from howfar.model.what_if import answer

FILE = Path(__file__).parents[1] / "data" / "what_if_vectors.json"
_BASES, _SETTINGS = 12, 10
_UNMEASURED = ("tls_byte_s", "connect_turns", "connect_client_s", "tls_connect_turns", "tls_connect_server_s")
"""Of the last base: both sides take what is not known for nothing."""
_THREADS = (1, 2, 3, 7, 16, 64, 255, 2048)
_RATES = (None, 1e7, 1e8, 1e9, 1e10)


def _base(rng: random.Random, number: int) -> WhatIf:
    link = number % 3 != 0
    turns = rng.randint(1, 30)
    return WhatIf(
        arm="made",
        threads=16,
        tps=1000.0,
        turns=float(turns),
        think_s=rng.choice([0.0, rng.uniform(0, 0.01), -rng.uniform(0, 0.02)]),
        rtt_s=0.0002 if link else 0.0,
        rate_bps=1e9 if link else None,
        client_cpu_s=rng.uniform(0, 0.001),
        server_cpu_s=rng.uniform(0.0001, 0.01),
        client_cpus=rng.choice([1.0, 0.7, 4.0]),
        server_cpus=rng.choice([1.0, 0.6, 8.0]),
        shared_cpu=number % 4 == 3,
        replies_bytes=tuple(round(rng.lognormvariate(6, 2.5), 1) for _ in range(turns)),
        requests_bytes=tuple(round(rng.uniform(5, 100), 1) for _ in range(turns)),
        tls_byte_s=rng.uniform(0, 2e-9),
        connect_turns=3.0,
        connect_client_s=rng.uniform(0, 1e-4),
        connect_server_s=rng.uniform(0, 1e-3),
        tls_connect_turns=rng.choice([1.0, 2.0, 2.9]),
        tls_connect_client_s=rng.uniform(0, 1e-3),
        tls_connect_server_s=rng.uniform(0, 1e-3),
        compression=(
            _compression("zlib", 0.4, 2e-9, 30e-9),
            _compression("zstd-3", 0.35, 1e-9, 5e-9),
        ),
        threads_most=2048,
    )


def _compression(algorithm: str, ratio: float, client_s: float, server_s: float) -> WhatIfCompression:
    return WhatIfCompression(
        algorithm=algorithm,
        ratio_to_client=ratio,
        ratio_to_server=1.02,
        client_byte_s=client_s,
        server_byte_s=server_s,
    )


def _settings(rng: random.Random) -> WhatIfSettings:
    return WhatIfSettings(
        threads=rng.choice(_THREADS),
        rtt_s=rng.choice([0.0, 0.0002, 0.01]),
        rate_bps=rng.choice(_RATES),
        tls=rng.random() < 0.5,
        connect_each=rng.random() < 0.3,
        compression=rng.choice(["off", "zlib", "zstd-3", "not measured"]),
    )


def vectors() -> list[dict[str, Any]]:
    """Drawn from one seed: the same for ever."""
    rng = random.Random("what if")
    found = []
    for number in range(_BASES + 1):
        base = _base(rng, number)
        if number == _BASES:
            base = base.model_copy(update=dict.fromkeys(_UNMEASURED))
        cases = [(settings, answer(base, settings)) for settings in (_settings(rng) for _ in range(_SETTINGS))]
        found.append(
            {
                "base": base.model_dump(mode="json"),
                "cases": [{"settings": asked.model_dump(), "answer": got.model_dump()} for asked, got in cases],
            }
        )
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n", "utf-8")
