"""What a run measures: factors, levels, cells, blocks and workload; and how long it will take. No I/O but `load.py`, which reads
plans.

Start at `types.py`, then `load.py`.
"""
