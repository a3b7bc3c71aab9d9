"""The questions that a run can answer: one folder an experiment, with its analysis and its report. Plans are in `plan/shipped`."""
