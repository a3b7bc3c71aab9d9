"""WHAT to ask: factors, levels, cells, blocks, workload, cost estimate. Pure."""
