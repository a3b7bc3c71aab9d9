"""Throughput by a model: what a run measured at one setting, and what that says of others.

`queueing.py` solves a closed network; `resource.py` names what can be a limit; `facts.py` reads from trials what a transaction demands
and puts on a link; `fit.py` fits a base to a measured curve and compares predictions with what was measured; `what_if.py` answers for
any settings. docs/model.md has the formulas, what is not modelled, and the errors that were found.
"""
