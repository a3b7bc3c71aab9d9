"""What a run of pages says: one machine or two, and where the answer flips. As text, as charts, as a page and as lines of a
spreadsheet."""
