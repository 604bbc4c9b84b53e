"""The task service: the commands of a client, carried out on the store and the engines."""
