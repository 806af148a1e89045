"""The emulator of sm_90 machine code."""
