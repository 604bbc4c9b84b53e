"""The command line; `app.COMMANDS` lists the module of each command."""
