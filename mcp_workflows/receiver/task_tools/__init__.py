"""Task tools for hosts that know no tasks: their definitions, their handlers and their texts."""
