"""The command line: a module for each command, named as the command.

Standard output holds only the answer to a command (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit code 0: success, 1: a clear message says what is wrong, 2: wrong usage.
"""
