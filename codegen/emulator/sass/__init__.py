"""The emulator of machine code of sm_75 to sm_121."""
