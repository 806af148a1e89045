"""The parts of the emulator: registers, memory, arithmetic, and instructions made into steps over all lanes at once."""
