"""Attribution: which resource limits an arm, with the evidence. Pure functions from records to findings.

`evidence.py` collects facts from an arm's good trials, `cycle.py` splits a transaction's time into parts, `rules.py` names the full
resource, and `limit.py` tells which changes would help. Predictions are in `model/`.
"""
