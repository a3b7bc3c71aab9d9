"""Records the round trips of the user's own application from outside, and predicts its page times on another path."""
