"""The parts of a model of throughput that experiments share.

`queueing.py` solves a closed network; `resource.py` lists the resources that can be a limit; `facts.py` derives from trials the
demands of a transaction and its bytes on a link. Slices fit a model to what a run measured at one setting, and predict other settings
with it. docs/model.md has the formulas, what is not modelled, and the errors that were found.
"""
