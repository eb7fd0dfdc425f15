"""The command line: one module for each command, with `configure(parser)` and `run(arguments) -> Answer`.

In: arguments. Out: text or one JSON document on stdout, messages on stderr, an exit code.
Never: work of its own; a command calls the other rooms and formats what they return.
"""
