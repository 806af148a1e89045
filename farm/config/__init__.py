"""Configuration: the settings, their units, and the digest of this build."""
