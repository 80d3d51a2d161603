"""The counter: every change of shared state is one script here, run by `director.core.scripts` and by nothing else."""
