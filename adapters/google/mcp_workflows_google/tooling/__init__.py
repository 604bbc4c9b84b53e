"""Tools for operators and authors: check, discover, explain, verify and others."""
