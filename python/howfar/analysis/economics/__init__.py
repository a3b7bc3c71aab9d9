"""What compression and encryption cost and give: each cell against the same cell without, as processor time a byte, a connect, and as
throughput. What follows for other links is the model's word (`analysis/model`)."""
