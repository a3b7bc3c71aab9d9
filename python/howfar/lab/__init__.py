"""The laboratory, where loads run: sandbox, hosts, links, paths, servers."""
