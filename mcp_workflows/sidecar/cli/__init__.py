"""The command line; `app.COMMANDS` has the module of each command."""
