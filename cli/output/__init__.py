"""Output of commands: tables, JSON, files."""
