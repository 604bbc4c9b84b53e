"""YAML source to steps, expressions, the standard library, and the interpreter, without I/O."""
