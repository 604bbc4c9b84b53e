"""Exporters of traces, metrics and audit events, as configured."""
