"""Tools for operators: `check`, `why`, `import`, and drafts from a Python file."""
