"""How far one server is: a connection and small requests, timed step by step, and what they mean for a page. Start at `measure.py`."""
