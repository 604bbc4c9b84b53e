"""Task tools for hosts without tasks: their definitions, handlers and texts."""
