"""Tools for operators: `check`, `call --dry-run`."""
