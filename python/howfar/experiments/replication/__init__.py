"""What an acknowledgement of a replica costs: commits/s over modes, distances and connections, and a model of them."""
