"""What runs a bundle needs of it: no ledger, no store, no compiler."""
