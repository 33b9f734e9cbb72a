"""The command line: one file a command or family of commands, and nothing but arguments."""
