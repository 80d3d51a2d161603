"""The proof: faults on a whole service, the simulator, the measurements. Nothing but the commands imports it."""
