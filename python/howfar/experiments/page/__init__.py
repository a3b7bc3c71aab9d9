"""Web pages: one machine or two, where the answer changes, and how well a model predicts it."""
