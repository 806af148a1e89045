"""Looking after the store and the ledger: inventory, garbage, removal, checks, templates ahead of time."""
