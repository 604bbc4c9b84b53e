"""Pages for people, who log in: the questions that they may answer."""
