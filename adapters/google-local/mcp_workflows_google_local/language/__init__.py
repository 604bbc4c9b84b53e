"""The language: YAML source to steps, expressions, the standard library, and the interpreter; no I/O of its own."""
