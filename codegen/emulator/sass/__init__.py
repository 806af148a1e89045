"""The emulator of machine code."""
