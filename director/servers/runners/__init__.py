"""Drive model servers: one module for each kind of server, named after the kind's tag in `runner_config.py`.

`make` in that module makes the runner from its configuration and `RunnerOptions`.
"""

from importlib import import_module

from director.core.runner_config import RunnerConfig
from director.servers.runners.http_base import RunnerOptions
from director.servers.runners.runner import Runner

__all__ = ("RunnerOptions", "make_runner")


def make_runner(config: RunnerConfig, options: RunnerOptions) -> Runner:
    made: Runner = import_module(f"{__name__}.{config.__struct_config__.tag}").make(config, options)
    return made
