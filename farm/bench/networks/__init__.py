"""`farm bench network`: whole networks against dense ones in PyTorch."""
