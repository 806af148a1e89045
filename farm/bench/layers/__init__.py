"""`farm bench run`: single layers against cuDNN, cuBLAS, cuSPARSE and others."""
