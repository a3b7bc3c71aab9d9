"""Benchmarks of howfar's own engine and link, alone and compared with other programs."""
