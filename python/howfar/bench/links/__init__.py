"""The bench of the emulated link, and of what it is compared with."""
