"""Scenarios, baselines and the suite that says what a policy is worth."""
