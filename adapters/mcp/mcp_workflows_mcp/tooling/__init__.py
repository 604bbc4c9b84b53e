"""Tools for operators: `check`, `import`, `call --dry-run`."""
