"""The assembler: non-zero weights made into machine code and linked into a skeleton."""
