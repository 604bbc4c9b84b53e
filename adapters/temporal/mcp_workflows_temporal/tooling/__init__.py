"""Tools for operators and authors: check, discover, explain, preview, replay, verify, schemas and files to embed."""
