"""Attribution: which resource limits an arm, with the evidence. Pure: records in, findings out.

`evidence.py` reads the facts off an arm's good trials, `cycle.py` splits a transaction's time by them, `rules.py` names what is full,
`limit.py` says what would change it. Not here: predictions (`model/`), and drawing.
"""
