"""The configuration, workflows.yaml: its text, its models, and messages about mistakes in it."""
