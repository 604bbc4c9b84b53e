"""Revision 2025-11-25: in-core tasks, sessions and elicitation."""
