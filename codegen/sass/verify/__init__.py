"""The hazard checker: what it accepts cannot read a register too early."""
