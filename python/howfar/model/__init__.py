"""Throughput by a model: what a run measured at one setting, and what that says of others.

`queueing.py` solves a closed network; `messages.py` and `wire.py` say what a transaction puts on a link; `facts.py` reads demands from
trials; `fit.py` makes a base of a measured curve; `what_if.py` answers for any settings; `predict.py` sets predictions beside what was
measured. docs/model.md has the formulas, what is not modelled, and the errors that were found.
"""
