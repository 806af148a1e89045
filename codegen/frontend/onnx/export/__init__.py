"""Export: the network of a bundle, its compiled layers as single nodes."""
