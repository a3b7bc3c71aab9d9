"""What the instrument itself costs, and how it compares with other programs."""
