"""The sidecar: a server with the configured tools alone, its configuration, telemetry and command line."""
