"""WHAT to ask: factors, levels, cells, blocks, workload, cost estimate. Pure. Start at `types.py`, then `load.py`."""
