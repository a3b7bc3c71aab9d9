"""The questions that a run can answer: one folder an experiment, with its analysis and its report.

A folder that `slices.SLICES` names also has its plans, factors and kind of workload, and what only these need of the laboratory.
"""
