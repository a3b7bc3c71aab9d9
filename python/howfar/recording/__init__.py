"""The user's own application: its round trips seen from outside, and its time on another path."""
