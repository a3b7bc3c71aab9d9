"""A model of throughput: from what a run measured at one setting to predictions for other settings.

`queueing.py` solves a closed network; `resource.py` lists the resources that can be a limit; `facts.py` derives from trials the
demands of a transaction and its bytes on a link; `fit.py` fits a base to a measured curve and compares predictions with
measurements; `what_if.py` predicts for any settings. docs/model.md has the formulas, what is not modelled, and the errors that were
found.
"""
