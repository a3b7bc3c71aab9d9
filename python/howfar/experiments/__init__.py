"""The questions that a run can answer: one folder an experiment, with its plan, its analysis and its report."""
