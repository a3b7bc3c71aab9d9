"""The user's own hosts as a testbed. Ray carries jobs, results and liveness; the load bypasses it."""
