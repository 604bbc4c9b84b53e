"""Pages for logged-in people: the questions that they may answer."""
