"""Attribution: which resource limits an arm, with the evidence. Pure: records in, findings out.

`evidence.py` reads the facts off an arm's good trials, `cycle.py` splits a transaction's time by them, `rules/` asks one question
after the other, `limit.py` makes the finding. Not here: predictions (`analysis/model/`), and drawing.
"""
