"""The default store: one SQLite file on a local disk."""
