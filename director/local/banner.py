"""What `up` prints when all is ready: where to ask, with what token, and two ways to do it that work as they stand.

Shows the service's token, which is for whoever started it, and never a password of Redis: that is for the parts alone.
"""

import json
import shlex

from director.broker.redis_client import has_password
from director.local import DEFAULT_HOME

__all__ = ("banner",)

EXAMPLE = "example/hello"
INPUT = {"text": "hello", "n": 3}


def banner(*, program: str, url: str, token: str, redis_url: str, home: str, promise: str, has_examples: bool) -> str:
    """The text. `program`: how this command is called; `promise`: what durability means for what is accepted."""
    facts = {"token": token, "page": f"{url}/ (log in with the token)", "data": f"{home} ({promise})"}
    parts = ["\n".join((f"\nDirector is up at {url}", *(f"  {name:<6} {value}" for name, value in facts.items())))]
    if has_examples:
        parts += [_curl(url, token), _python(url, token), f"Or: {_predict(program, home)}"]
    else:
        parts.append(f"Serve a model of yours, say a Cog server on port 5000:\n\n  {_serve(program, redis_url, home)}")
    parts.append("Webhooks may go to addresses of this machine. Ctrl-C ends everything; the data stays.\n")
    return "\n\n".join(parts)


def _predict(program: str, home: str) -> str:
    where = "" if home == DEFAULT_HOME else f" --home {shlex.quote(home)}"
    return f"{program} predict {EXAMPLE} -i text=hello -i n=3{where}"


def _serve(program: str, redis_url: str, home: str) -> str:
    command = f"{program} run --model owner/name --server http://127.0.0.1:5000"
    if not has_password(redis_url):
        return f"{command} --redis {shlex.quote(redis_url)}"
    return f"{command}\n\nwith the redis_url of {home}/up.json in DIRECTOR_REDIS_URL: it holds a password."


def _curl(url: str, token: str) -> str:
    body = json.dumps({"input": INPUT})
    return (
        f'Ask it:\n\n  curl -s {url}/v1/models/{EXAMPLE}/predictions -H "Authorization: Bearer {token}" '
        f"""-H "Content-Type: application/json" -H "Prefer: wait" -d '{body}'"""
    )


def _python(url: str, token: str) -> str:
    return f"""\
The same with Replicate's client for Python (pip install "replicate<2"):

  import replicate
  client = replicate.Client(api_token="{token}", base_url="{url}")
  print("".join(client.run("{EXAMPLE}", input={json.dumps(INPUT)})))"""
