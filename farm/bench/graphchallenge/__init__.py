"""`farm bench graphchallenge`: the Sparse DNN Graph Challenge."""
