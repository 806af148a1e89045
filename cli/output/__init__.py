"""What commands print: tables, JSON, files."""
