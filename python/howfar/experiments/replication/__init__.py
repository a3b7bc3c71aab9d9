"""What replication costs, by a model and by measurement, and what a crash loses."""
