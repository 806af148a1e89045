"""Migrations of the ledger's database, run by Alembic."""
