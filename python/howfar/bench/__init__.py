"""The cost of the instrument itself, and how it compares with other programs."""
