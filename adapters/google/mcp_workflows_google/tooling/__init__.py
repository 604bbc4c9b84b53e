"""Tools for operators and authors: check, definition, discover, embed, explain and fixtures."""
