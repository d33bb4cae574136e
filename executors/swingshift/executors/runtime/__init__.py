"""The control plane that every adapter shares: asyncio, no input or output of its own."""
