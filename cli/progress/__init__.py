"""Progress on the terminal while something runs."""
