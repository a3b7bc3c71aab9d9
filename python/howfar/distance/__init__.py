"""Measures the distance of one server: a connection and small requests, timed step by step, and what the times mean for a page.

The entry point is `measure.py`.
"""
