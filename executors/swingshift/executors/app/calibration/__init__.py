"""From a real executor to a scenario that the simulated one runs: probes, a fit, a trial run."""
