"""Carry out calls of the shipped scripts on a real Valkey, each on a state of choice. Nothing here waits for an event
loop: the typed calls of `Scripts` are driven by hand, so many calls on many states leave in one write.
"""

import socket
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import hiredis

from director.broker.gatherer import Arg, Script
from director.broker.scripts import Scripts
from director.core.errors import DirectorError

READ_BYTES: Final = 1 << 20
LIVES_MS: Final = 10**9  # of a key with a lifetime: virtual time lets nothing expire

PUT: Final = """
local all = redis.call('KEYS', '*')
if #all > 0 then redis.call('DEL', unpack(all)) end
for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 2], ARGV[i + 1]) end
"""
# The log is for auditors: no script reads it
LOOK: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.sub(key, -4) ~= ':log' then
    local kind, value = redis.call('TYPE', key).ok, nil
    if kind == 'hash' then
      value = redis.call('HGETALL', key)
    elseif kind == 'zset' then
      value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    elseif kind == 'list' then
      value = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'set' then
      value = redis.call('SMEMBERS', key)
    elseif kind == 'string' then
      value = redis.call('GET', key)
    else
      local groups, held = redis.call('XINFO', 'GROUPS', key), {}
      for _, row in ipairs(#groups > 0 and redis.call('XPENDING', key, 'directors', '-', '+', 100) or {}) do
        held[#held + 1] = { row[1], row[2] } -- not its idle time, which is real
      end
      value = { redis.call('XRANGE', key, '-', '+'), groups, held }
    end
    found[#found + 1] = { key, redis.call('DUMP', key), redis.call('PTTL', key) > 0 and 1 or 0, value }
  end
end
return found
"""


class Edit(NamedTuple):
    """A change of the scripts' text, in `script` or in each that has the text. It has to be there once."""

    wanted: str
    instead: str = ""
    script: str = ""


class Asked:
    """A call that waits for its reply, as the coroutine of a typed call awaits it."""

    def __init__(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> None:
        self.name, self.keys, self.args = name, keys, args

    def __await__(self) -> Generator["Asked", Any, Any]:
        return (yield self)


class ByHand:
    """Stands where `Scripts` has its gatherer: each call is handed to who drives the coroutine."""

    def call(self, name: str, keys: Sequence[str], args: Sequence[Arg], **_: object) -> Asked:
        return Asked(name, keys, args)

    def pack(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> bytes:
        raise NotImplementedError


class Fault(Exception):
    """A script replied with an error."""


class Server:
    """One Valkey, and one connection. `edits`: changes of the scripts, to see whether they are found."""

    def __init__(self, url: str, edits: Sequence[Edit] = ()) -> None:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(unquote(parts.path))
        else:
            self._socket = socket.create_connection((parts.hostname or "", parts.port or 0))
        self._reader = hiredis.Reader()
        self._edits = edits
        self._known: dict[str, tuple[bytes, bool]] = {}
        self.scripts = Scripts(ByHand())  # type: ignore[arg-type]
        if parts.password:
            self.ask([_pack("AUTH", parts.password)])
        self._put = self._load(PUT)
        self._look = self._load(LOOK)

    def close(self) -> None:
        self._socket.close()

    def ask(self, commands: list[bytes]) -> list[Any]:
        """Return the replies to all commands. Errors are values."""
        self._socket.sendall(b"".join(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("the server ended")
                self._reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def put(self, found: Sequence[Any]) -> bytes:
        """Return the command that makes the server's state what `look` found."""
        words: list[Any] = ["EVALSHA", self._put, 0]
        for name, dump, has_lifetime, _ in found:
            words += (name, dump, LIVES_MS if has_lifetime else 0)
        return _pack(*words)

    def forget(self, gone: Sequence[str]) -> bytes:
        return _pack("DEL", "", *gone)

    def look(self) -> bytes:
        return _pack("EVALSHA", self._look, 0)

    def pack(self, asked: Asked) -> bytes:
        sha, takes_items = self._script(asked.name)
        args: list[Any] = ["" if arg is None else arg for arg in asked.args]
        if takes_items:
            args.insert(0, len(args))
        return _pack("EVALSHA", sha, len(asked.keys), *asked.keys, *args)

    def answer(self, call: Coroutine[Any, Any, Any], name: str, reply: Any) -> Any:
        """Hand a typed call its reply, and return its result, or its refusal. Raises Fault for an error of the
        script.
        """
        if self._script(name)[1] and isinstance(reply, list):
            reply = reply[0]
        if isinstance(reply, Exception):
            call.close()
            raise Fault(f"{name}: {reply}")
        try:
            call.send(reply)
        except StopIteration as ended:
            return ended.value
        except DirectorError as refused:
            return refused
        raise AssertionError(f"{name} asks twice")

    def do(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Carry out one typed call on the state that the server has, of one script or of several."""
        try:
            asked = call.send(None)
            while True:
                [reply] = self.ask([self.pack(asked)])
                if self._script(asked.name)[1] and isinstance(reply, list):
                    reply = reply[0]
                if isinstance(reply, Exception):
                    raise Fault(f"{asked.name}: {reply}")
                asked = call.send(reply)
        except StopIteration as ended:
            return ended.value

    def _script(self, name: str) -> tuple[bytes, bool]:
        if name not in self._known:
            script = Script.load(name)
            text = script.text
            for edit in self._edits:
                if edit.script in ("", name):
                    text = text.replace(edit.wanted, edit.instead)
            self._known[name] = self._load(text), script.takes_items
        return self._known[name]

    def _load(self, text: str) -> bytes:
        [sha] = self.ask([_pack("SCRIPT", "LOAD", text)])
        if isinstance(sha, Exception):
            raise Fault(f"it does not compile: {sha}")
        return bytes(sha)


def _pack(*words: Any) -> bytes:
    command: bytes = hiredis.pack_command(words)
    return command
