"""A package of its own: wheels of others bring a folder `tests` too, and one without this file would give way to it."""
