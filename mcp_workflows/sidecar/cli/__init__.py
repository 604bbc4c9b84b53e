"""The command line: a module per command, named as the command.

Standard output belongs to what was asked for (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit code 0: success, 1: a clear message says what is wrong, 2: wrong usage.
"""
