"""The control plane and the adapters that carry its decisions out."""
