"""Maintenance of store and ledger: inventory, garbage collection, pruning, removal, scrubbing, warming."""
