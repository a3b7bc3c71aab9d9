"""Behaviour of a semi-synchronous primary when its replica leaves and returns: the stall, the asynchronous phase, the return."""
