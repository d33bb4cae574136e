"""The simulated adapter: cost models on a virtual clock."""
