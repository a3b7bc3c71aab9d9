"""Links, connections and other factors varied together: what limits each cell, and how throughput scales."""
