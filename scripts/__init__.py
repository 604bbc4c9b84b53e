"""Tools that the Makefile calls."""
