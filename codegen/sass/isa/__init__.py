"""The instruction set: encoding, opcodes, operands and latencies."""
