"""WHERE: sandbox, hosts, links, paths, servers."""
