"""The conductor: blocks, random order, stopping rule, resume."""
