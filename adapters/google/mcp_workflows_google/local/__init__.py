"""A local engine for workflows of Google Cloud Workflows: for development and tests, without an account."""
