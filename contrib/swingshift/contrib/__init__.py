"""Contributions that go beyond the built-in parts, a folder each."""
