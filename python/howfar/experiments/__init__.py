"""What can be asked: one folder an experiment, with its plan, its analysis and its report."""
