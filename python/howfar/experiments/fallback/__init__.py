"""What a semi-synchronous primary does when its replica leaves and returns: the stall, the asynchronous phase, the return."""
