"""What a run says of web pages: one machine or two, where the answer flips, how well a model predicts it."""
