"""What things cost in the simulator: pure functions and frozen values, no clock and no event loop.

Sizes are bytes and tokens, times are seconds, rates are per second and per GPU unless a name says
otherwise.
"""
