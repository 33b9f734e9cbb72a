"""What a user types: one file a command or family of commands, and nothing but arguments."""
