"""workflows.yaml: its text, its models and what is wrong with it."""
