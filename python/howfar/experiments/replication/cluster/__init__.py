"""What a commit costs in a cluster, by how far its nodes are apart."""
