"""Make the runner of one model server. This is the only place that knows which class drives which kind."""

from collections.abc import Mapping
from typing import assert_never

from director.core.runner_config import CogConfig, HttpConfig, OpenAiConfig, PollingConfig, RunnerConfig
from director.servers.runners.cog import CogRunner
from director.servers.runners.connections import NO_HEADERS
from director.servers.runners.http_batch import HttpBatchRunner
from director.servers.runners.http_sync import HttpRunner
from director.servers.runners.inbox import Inbox
from director.servers.runners.openai import OpenAiRunner
from director.servers.runners.polling import PollingRunner
from director.servers.runners.runner import Runner


def make_runner(
    config: RunnerConfig,
    url: str,
    *,
    slots: int,
    inbox: Inbox,
    max_output: int,
    max_files: int = 1 << 30,
    trains: bool = False,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Runner:
    """Return the runner of the server at `url`.

    `inbox`, `max_files` and `trains` are for Cog. `max_output` bounds the answers of all others. `headers`: secrets
    that go with every request.
    """
    match config:
        case CogConfig():
            return CogRunner(
                url,
                slots=slots,
                inbox=inbox,
                fast=config.fast,
                max_files=max_files,
                trains=trains,
                headers=headers,
            )
        case HttpConfig():
            made = HttpRunner if config.batch is None else HttpBatchRunner
            return made(url, config, slots=slots, max_body=max_output, headers=headers)
        case PollingConfig():
            return PollingRunner(url, config, slots=slots, max_body=max_output, headers=headers)
        case OpenAiConfig():
            return OpenAiRunner(url, config, slots=slots, max_body=max_output, headers=headers)
        case _:
            assert_never(config)
