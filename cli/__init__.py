"""The command line: talks to people, does nothing itself."""
