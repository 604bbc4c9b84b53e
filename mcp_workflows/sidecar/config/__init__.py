"""The configuration, workflows.yaml: its text, its models, and messages about errors in it."""
