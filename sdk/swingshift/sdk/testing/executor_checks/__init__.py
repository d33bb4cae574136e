"""The promises of the executor contract, one group for each area; `catalogue` lists them all."""
