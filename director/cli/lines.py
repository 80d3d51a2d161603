"""Lines that show how each command is used: the end of its help, and of the table in this room's README. Pure."""

from collections.abc import Mapping
from typing import Final

__all__ = ("EXAMPLES", "EXIT_CODES")

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "it is done",
    1: "it failed, or what was looked at is not well; the line on stderr, or what was printed, says what to do",
    2: "the command line is wrong, and nothing was done",
    130: "Ctrl-C",
}

ID: Final = "06gzx0rcvbz008pmq2tvpfvnvc"

# by the words before the options
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "director up": ("director up", "director up --port 9000 --home /srv/director"),
    "director down": ("director down",),
    "director predict": (
        "director predict example/hello -i text=hi -i n=3",
        "director predict example/thumbnail -i image=@photo.png -o small.png",
    ),
    "director get": (f"director get {ID}",),
    "director cancel": (f"director cancel {ID}",),
    "director explain": (f"director explain {ID}", f"director explain {ID} --json"),
    "director queues": ("director queues", "director queues --json"),
    "director queues show": ("director queues show acme/painter",),
    "director queues pause": (
        "director queues pause acme/painter",
        "director queues pause acme/painter --account team-a",
    ),
    "director queues resume": ("director queues resume acme/painter --account team-a",),
    "director queues drain": ("director queues drain acme/painter --timeout 600",),
    "director queues resize": ("director queues resize acme/painter 8",),
    "director queues bound": (
        "director queues bound acme/painter bounded --max-queued 500",
        "director queues bound acme/painter absorb",
    ),
    "director queues migrate": (
        "director queues migrate acme/painter:0123456789ab acme/painter:ba9876543210 --dry-run",
        "director queues migrate acme/painter --to-redis redis://10.0.0.2:6379",
    ),
    "director scale": ("director scale acme/painter", "director scale acme/painter --json"),
    "director directors": ("director directors", "director directors --queue acme/painter"),
    "director top": ("director top", "director top --once"),
    "director tail": (
        "director tail --queue acme/painter --kind retried --kind ended",
        f"director tail {ID}",
        "director tail --json",
    ),
    "director dead": ("director dead list",),
    "director dead list": ("director dead list --queue acme/painter:0123456789ab -n 100",),
    "director dead show": (f"director dead show {ID}",),
    "director dead revive": (f"director dead revive {ID}", "director dead revive --all --rate 5"),
    "director dead drop": ("director dead drop --all --queue acme/painter:0123456789ab",),
    "director doctor": ("director doctor", "director doctor --json"),
    "director token": ("director token list",),
    "director token create": (
        "director token create --account team-a",
        "director token create --account ops --scopes admin --expires-hours 12",
    ),
    "director token list": ("director token list --account team-a",),
    "director token revoke": ("director token revoke --account team-a ci", "director token revoke < token.txt"),
    "director account": ("director account list",),
    "director account create": ("director account create team-a",),
    "director account list": ("director account list",),
    "director account show": ("director account show team-a",),
    "director account set": ("director account set team-a --rate 10 --max-running 4",),
    "director account suspend": ("director account suspend team-a --policy hold",),
    "director account resume": ("director account resume team-a",),
    "director account rotate-secret": ("director account rotate-secret team-a --keep-hours 24",),
    "director model": ("director models",),
    "director model list": ("director model list",),
    "director model set": ("director model set acme/painter --visibility private --description 'Paints.'",),
    "director model config": (
        "director model config acme/painter",
        "director model config acme/painter --set attempts=5 --unset slots",
    ),
    "director model example": (f"director model example acme/painter {ID} --default",),
    "director collection": ("director collection set best --name 'The best' --models acme/painter",),
    "director collection set": ("director collection set best --name 'The best' --models acme/painter acme/echo",),
    "director collection remove": ("director collection remove best",),
    "director hardware": ("director hardware set gpu-t4 'Nvidia T4'",),
    "director hardware set": ("director hardware set gpu-t4 'Nvidia T4'",),
    "director hardware remove": ("director hardware remove gpu-t4",),
    "director api": ("director api --port 8080",),
    "director run": (
        "director run --model acme/painter --server http://127.0.0.1:5000",
        "director run --config pool.toml",
    ),
    "director keeper": ("director keeper --port 9090",),
    "director audit": ("director audit --to /var/log/director/audit.jsonl",),
    "director bench": ("director bench latency",),
    "director bench latency": ("director bench latency -n 500",),
    "director bench throughput": ("director bench throughput --connections 64",),
    "director bench fairness": ("director bench fairness --salts 5",),
    "director bench depth": ("director bench depth --waiting 100000",),
    "director simulate": (
        "director simulate audit.jsonl --queue acme/painter:0123456789ab --slots 4,8,16",
        "director simulate trace.jsonl --policy fair --policy fifo --plot waits.svg",
        "director simulate --made heavy-light --minutes 30 --slots 4 --policy weights.toml",
    ),
    "director chaos": ("director chaos --seconds 60 --seed 7",),
    "director completion": (
        "director completion bash > ~/.local/share/bash-completion/completions/director",
        "director completion zsh > ~/.zfunc/_director",
        "director completion fish > ~/.config/fish/completions/director.fish",
    ),
}
