"""The cost of an acknowledgement by a replica: commits/s over modes, distances and connections, and a model of them."""
