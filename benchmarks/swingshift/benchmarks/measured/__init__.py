"""Runs on a real machine: pairs of policies, and what the calibrated simulator says of them."""
