"""The user's own hosts as a testbed, joined by Ray. Ray carries jobs, results and liveness; the load never goes through it."""
