"""Try each feature that a Python client of OpenAI's API has. Prints a JSON object: feature → how it went.

It runs in the client's own environment, which has no package of ours. `openai_python.py NAME`: a name of `CLIENTS`.
"""

import asyncio
import base64
import gc
import hashlib
import json
import os
import sys
import threading
import time
import urllib.request
from contextlib import aclosing, contextmanager
from uuid import uuid4

given = json.loads(os.environ["GIVEN"])
real, embedder, scripted, queued = (given[name] for name in ("real", "embedder", "scripted", "queued"))
IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode()
PATIENCE_S = 20
SHORT_S = 2
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "degrees", "description": "Degrees of a city", "parameters": CITY}}
DEGREES = {"Paris": "21", "Rome": "25"}
SCHEMA = {
    "title": "Weather",
    "description": "The weather of a city",
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
WEATHER = {"city": "Paris", "degrees": 21}


def control(what, mark="", at=scripted):
    with urllib.request.urlopen(f"{at['control']}/control/{what}/{mark}") as answer:
        return json.load(answer)


def until(is_so, what):
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends, f"never {what}"
        time.sleep(0.02)


def new_mark():
    return uuid4().hex[:12]


class InThread:
    def __init__(self, call):
        self._call, self._told = call, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._told = (self._call(), None)
        except Exception as error:
            self._told = (None, error)

    def result(self):
        self._thread.join(PATIENCE_S)
        assert self._told, "it never returned"
        if self._told[1]:
            raise self._told[1]
        return self._told[0]


def refused(call, name="Exception"):
    """Return the words of what a call raises, which is an exception of this name or of a class below it."""
    try:
        call()
    except Exception as error:
        said = f"{error} {getattr(error, 'body', '')} {getattr(error, 'code', '')}"
        assert name in [each.__name__ for each in type(error).__mro__], f"{type(error).__name__} for {name}: {said}"
        return said
    raise AssertionError(f"no {name}")


def equal(seen, wanted):
    assert seen == wanted, f"{seen!r}, not {wanted!r}"


class Client:
    """The features that each client has, on top of three of its functions: `ask` returns the text of the answer,
    `stream` yields the text in pieces, and both take a time-out and the most repeats.
    """

    TIMED_OUT = "APITimeoutError"

    def chat(self):
        text = self.ask(real, "hi", max_tokens=4)
        assert text.strip()
        equal(set(text) - set("abc "), set())

    def streamed(self):
        pieces = [piece for piece in self.stream(real, "hi", max_tokens=4) if piece]
        assert len(pieces) > 1, pieces
        equal(set("".join(pieces)) - set("abc "), set())

    def errors(self):
        refused(lambda: self.ask({**scripted, "key": "wrong"}, "hi"), "AuthenticationError")
        refused(lambda: self.ask({**scripted, "model": "acme/unknown"}, "hi"), "NotFoundError")
        for call in (self.ask, lambda *asked: list(self.stream(*asked))):
            said = refused(lambda call=call: call(scripted, f"bad:{new_mark()}"), "BadRequestError")
            for wanted in ("It is too warm for this model", "too_warm"):
                assert wanted in said, said
        with self.occupied():
            refused(lambda: self.ask(scripted, "hi"), "RateLimitError")

    def broken(self):
        pieces, wanted = [], f"break:{new_mark()}"

        def read():
            pieces.extend(self.stream(scripted, wanted))

        said = refused(read)
        assert "It broke" in said, said
        equal("".join(piece or "" for piece in pieces), "one ")

    def failed(self):
        mark = new_mark()
        said = refused(lambda: self.ask(scripted, f"fail:{mark}", repeats=2), "InternalServerError")
        assert "It went wrong" in said, said
        equal(control("seen", mark), {"calls": 1, "open": 0})

    def timeouts(self):
        mark = new_mark()
        refused(lambda: self.ask(scripted, f"hold:{mark}", timeout=SHORT_S), self.TIMED_OUT)
        self.is_free_after(mark)

    def waiting(self):
        before = control("counts", at=queued)["heads"]
        with self.occupied(queued):
            asked = InThread(lambda: "".join(piece or "" for piece in self.stream(queued, "hi")))
            until(lambda: control("counts", at=queued)["heads"] > before, "begun")
        equal(asked.result(), "one two")

    def repeats(self):
        mark, before = new_mark(), control("counts")["refused"]
        with self.occupied():
            asked = InThread(lambda: self.ask(scripted, f"count:{mark}", repeats=2))
            until(lambda: control("counts")["refused"] > before, "refused")
        equal(asked.result(), "one two")
        equal(control("seen", mark), {"calls": 1, "open": 0})
        mark = new_mark()
        asked = InThread(lambda: self.ask(scripted, f"hold:{mark}", timeout=SHORT_S, repeats=1))
        until(lambda: control("seen", mark)["calls"] == 2, "repeated after its time-out")
        control("release", mark)
        equal(asked.result(), "one two")
        equal(control("seen", mark), {"calls": 2, "open": 0})

    def cancel(self):
        mark = new_mark()
        for piece in self.stream(scripted, f"hold:{mark}"):
            if piece:
                equal(piece, "one ")
                break
        self.is_free_after(mark)

    def asynchronous(self):
        asyncio.run(self.try_in_loop())

    async def try_in_loop(self):
        equal(await self.ask_in_loop(scripted, "hi"), "one two")
        mark = new_mark()
        async with aclosing(self.stream_in_loop(scripted, f"hold:{mark}")) as pieces:
            equal(await anext(piece async for piece in pieces if piece), "one ")
        await asyncio.to_thread(self.is_free_after, mark)
        mark = new_mark()
        asked = asyncio.create_task(self.ask_in_loop(scripted, f"hold:{mark}"))
        await asyncio.to_thread(until, lambda: self.is_open(mark), "running")
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled()
        await asyncio.to_thread(self.is_free_after, mark)

    def is_open(self, mark):
        return control("seen", mark)["open"]

    def is_free_after(self, mark):
        until(lambda: not self.is_open(mark), "closed")
        equal(self.ask(scripted, "hi", repeats=5), "one two")
        equal(control("seen", mark)["calls"], 1)

    @contextmanager
    def occupied(self, server=scripted):
        """Have the server's only slot taken."""
        mark = new_mark()
        held = InThread(lambda: self.ask(server, f"hold:{mark}", repeats=5))
        until(lambda: control("seen", mark, server)["open"], "running")
        try:
            yield
        finally:
            control("release", mark, server)
            equal(held.result(), "one two")

    def tools(self):
        for streams in (False, True):
            equal(self.with_tool("How warm is it?", streams), "21 25")


class OpenAi(Client):
    def __init__(self):
        import openai

        self.lib = openai

    def client(self, server, *, timeout=60, repeats=0, kind="OpenAI"):
        about = {"base_url": server["base"], "api_key": server["key"]}
        return getattr(self.lib, kind)(**about, timeout=timeout, max_retries=repeats)

    def create(self, server, text, *, timeout=60, repeats=0, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        client = self.client(server, timeout=timeout, repeats=repeats)
        return client.chat.completions.create(model=server["model"], messages=messages, **more)

    def ask(self, *asked, **more):
        return self.create(*asked, **more).choices[0].message.content

    def stream(self, *asked, **more):
        with self.create(*asked, stream=True, **more) as chunks:
            for chunk in chunks:
                yield chunk.choices[0].delta.content

    async def ask_in_loop(self, server, text):
        async with self.client(server, kind="AsyncOpenAI") as client:
            about = {"model": server["model"], "messages": [{"role": "user", "content": text}]}
            return (await client.chat.completions.create(**about)).choices[0].message.content

    async def stream_in_loop(self, server, text):
        async with self.client(server, kind="AsyncOpenAI") as client:
            about = {"model": server["model"], "messages": [{"role": "user", "content": text}]}
            async with await client.chat.completions.create(**about, stream=True) as chunks:
                async for chunk in chunks:
                    yield chunk.choices[0].delta.content

    def streamed(self):
        super().streamed()
        for wanted in (False, True):
            options = {"stream_options": {"include_usage": True}} if wanted else {}
            chunks = list(self.create(real, "hi", max_tokens=4, stream=True, **options))
            equal([chunk.usage.completion_tokens for chunk in chunks if chunk.usage], [4] if wanted else [])
            equal([chunk for chunk in chunks if not chunk.choices], chunks[-1:] if wanted else [])

    def with_tool(self, text, streams):
        messages = [{"role": "user", "content": text}]
        if streams:
            client = self.client(scripted)
            with client.chat.completions.stream(model=scripted["model"], messages=messages, tools=[TOOL]) as events:
                choice = events.get_final_completion().choices[0]
        else:
            choice = self.create(scripted, messages, tools=[TOOL]).choices[0]
        equal(choice.finish_reason, "tool_calls")
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            equal(call.function.name, "degrees")
            answer = DEGREES[json.loads(call.function.arguments)["city"]]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        return self.ask(scripted, messages, tools=[TOOL])

    def schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
        equal(json.loads(self.ask(scripted, "Weather?", response_format=wanted)), WEATHER)
        equal(json.loads("".join(p or "" for p in self.stream(scripted, "?", response_format=wanted))), WEATHER)

    def logprobs(self):
        asked = {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}
        found = self.create(real, "hi", **asked).choices[0].logprobs.content
        equal([len(each.top_logprobs) for each in found], [2] * 4)
        chunks = [chunk.choices[0].logprobs for chunk in self.create(real, "hi", stream=True, **asked)]
        equal(sum(len(each.content) for each in chunks if each), 4)

    def choices(self):
        equal(len(self.create(real, "hi", max_tokens=4, n=2).choices), 2)
        texts = {}
        for chunk in self.create(scripted, "hi", n=2, stream=True):
            choice = chunk.choices[0]
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        equal(texts, {0: "one two", 1: "one two"})

    def images(self):
        content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        equal(self.ask(scripted, [{"role": "user", "content": content}]), DIGEST)

    def parts(self):
        equal(self.create(scripted, f"refuse:{new_mark()}").choices[0].message.refusal, "That I will not say")
        thought = self.create(scripted, f"think:{new_mark()}")
        equal(thought.choices[0].message.reasoning_content, "Let me see")
        equal(thought.usage.prompt_tokens_details.cached_tokens, 8)
        deltas = [c.choices[0].delta for c in self.create(scripted, f"think:{new_mark()}", stream=True)]
        equal("".join(getattr(each, "reasoning_content", None) or "" for each in deltas), "Let me see")

    def embeddings(self):
        create = self.client(embedder).embeddings.create
        packed = create(model=embedder["model"], input=["a", "b", "c"]).data  # it asks for base64
        floats = create(model=embedder["model"], input=["a", "b", "c"], encoding_format="float").data
        raw = create(model=embedder["model"], input="b", encoding_format="base64").data
        equal([len(packed), len(floats), len(raw)], [3, 3, 1])
        assert all(abs(a - b) < 1e-5 for a, b in zip(packed[1].embedding, floats[1].embedding, strict=True))
        assert isinstance(raw[0].embedding, str)

    def models(self):
        client = self.client(scripted)
        assert scripted["model"] in [each.id for each in client.models.list()]
        equal(client.models.retrieve(scripted["model"]).id, scripted["model"])


class LangChain(Client):
    def model(self, server, *, timeout=60, repeats=0, **more):
        from langchain_openai import ChatOpenAI

        about = {"base_url": server["base"], "api_key": server["key"], "model": server["model"]}
        return ChatOpenAI(**about, timeout=timeout, max_retries=repeats, **more)

    def ask(self, server, text, **more):
        return self.model(server, **more).invoke(text).text

    def stream(self, server, text, **more):
        for chunk in self.model(server, **more).stream(text):
            yield chunk.text

    async def ask_in_loop(self, server, text):
        return (await self.model(server).ainvoke(text)).text

    async def stream_in_loop(self, server, text):
        async with aclosing(self.model(server).astream(text)) as chunks:
            async for chunk in chunks:
                yield chunk.text

    def with_tool(self, text, streams):
        from langchain_core.messages import HumanMessage, ToolMessage

        model = self.model(scripted).bind_tools([TOOL])
        messages = [HumanMessage(text)]
        if streams:
            first, *rest = model.stream(messages)
            said = sum(rest, first)
        else:
            said = model.invoke(messages)
        messages.append(said)
        messages += [ToolMessage(DEGREES[call["args"]["city"]], tool_call_id=call["id"]) for call in said.tool_calls]
        return model.invoke(messages).text

    def schema(self):
        equal(self.model(scripted).with_structured_output(SCHEMA, method="json_schema").invoke("Weather?"), WEATHER)

    def logprobs(self):
        model = self.model(real, max_tokens=4, logprobs=True, top_logprobs=2)
        equal(len(model.invoke("hi").response_metadata["logprobs"]["content"]), 4)
        first, *rest = model.stream("hi")
        equal(len(sum(rest, first).response_metadata["logprobs"]["content"]), 4)

    def choices(self):
        from langchain_core.messages import HumanMessage

        equal(len(self.model(real, max_tokens=4, n=2).generate([[HumanMessage("hi")]]).generations[0]), 2)

    def images(self):
        content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        equal(self.model(scripted).invoke([{"role": "user", "content": content}]).text, DIGEST)

    def parts(self):
        refusal = self.model(scripted).invoke(f"refuse:{new_mark()}")
        equal(refusal.additional_kwargs["refusal"], "That I will not say")
        equal(refusal.usage_metadata["input_token_details"]["cache_read"], 8)
        first, *rest = self.model(scripted, stream_usage=True).stream(f"think:{new_mark()}")
        equal(sum(rest, first).usage_metadata["input_token_details"]["cache_read"], 8)

    def embeddings(self):
        from langchain_openai import OpenAIEmbeddings

        about = {"base_url": embedder["base"], "api_key": embedder["key"], "model": embedder["model"]}
        model = OpenAIEmbeddings(**about, max_retries=0, check_embedding_ctx_length=False)
        found = model.embed_documents(["a", "b", "c"])
        equal(len(found), 3)
        assert all(abs(a - b) < 1e-5 for a, b in zip(model.embed_query("b"), found[1], strict=True))


class LlamaIndex(Client):
    def is_open(self, mark):
        gc.collect()  # nothing else closes the connection of a stream that was left early
        return super().is_open(mark)

    def model(self, server, *, timeout=60, repeats=0, **more):
        from llama_index.llms.openai_like import OpenAILike

        about = {"api_base": server["base"], "api_key": server["key"], "model": server["model"]}
        kinds = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
        return OpenAILike(**about, **kinds, timeout=timeout, max_retries=repeats, **more)

    def messages(self, text):
        from llama_index.core.llms import ChatMessage

        return [ChatMessage(role="user", content=text)]

    def ask(self, server, text, **more):
        return self.model(server, **more).chat(self.messages(text)).message.content

    def stream(self, server, text, **more):
        for each in self.model(server, **more).stream_chat(self.messages(text)):
            yield each.delta

    async def ask_in_loop(self, server, text):
        return (await self.model(server).achat(self.messages(text))).message.content

    async def stream_in_loop(self, server, text):
        async for each in await self.model(server).astream_chat(self.messages(text)):
            yield each.delta

    def with_tool(self, text, streams):
        from llama_index.core.llms import ChatMessage
        from llama_index.core.tools import FunctionTool

        def degrees(city: str) -> str:
            """Degrees of a city"""
            return DEGREES[city]

        model, tools = self.model(scripted), [FunctionTool.from_defaults(degrees)]
        messages = self.messages(text)
        if streams:
            *_, said = model.stream_chat_with_tools(tools, chat_history=messages, allow_parallel_tool_calls=True)
        else:
            said = model.chat_with_tools(tools, chat_history=messages, allow_parallel_tool_calls=True)
        messages.append(said.message)
        for call in model.get_tool_calls_from_response(said):
            equal(call.tool_name, "degrees")
            answer = degrees(**call.tool_kwargs)
            about = {"tool_call_id": call.tool_id}
            messages.append(ChatMessage(role="tool", content=answer, additional_kwargs=about))
        return model.chat(messages).message.content

    def schema(self):
        from pydantic import BaseModel

        class Weather(BaseModel):
            city: str
            degrees: int

        found = self.model(scripted).as_structured_llm(Weather).chat(self.messages("Weather?"))
        equal(json.loads(found.message.content), WEATHER)

    def logprobs(self):
        found = self.model(real, max_tokens=4, logprobs=True, top_logprobs=2).chat(self.messages("hi"))
        equal([len(each) for each in found.logprobs], [2] * 4)

    def choices(self):
        found = self.model(real, max_tokens=4).chat(self.messages("hi"), n=2)
        equal(len(found.raw.choices), 2)

    def images(self):
        from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock

        blocks = [TextBlock(text="What?"), ImageBlock(url=IMAGE)]
        equal(self.model(scripted).chat([ChatMessage(role="user", blocks=blocks)]).message.content, DIGEST)

    def parts(self):
        found = self.model(scripted).chat(self.messages(f"refuse:{new_mark()}"))
        equal(found.raw.choices[0].message.refusal, "That I will not say")
        equal(found.raw.usage.prompt_tokens_details.cached_tokens, 8)

    def embeddings(self):
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding

        about = {"api_base": embedder["base"], "api_key": embedder["key"], "model_name": embedder["model"]}
        model = OpenAILikeEmbedding(**about, max_retries=0)
        found = model.get_text_embedding_batch(["a", "b", "c"])
        equal(len(found), 3)
        assert all(abs(a - b) < 1e-5 for a, b in zip(model.get_text_embedding("b"), found[1], strict=True))


class LiteLlm(Client):
    TIMED_OUT = "Timeout"

    def __init__(self):
        import litellm

        litellm.suppress_debug_info = True
        self.lib = litellm

    def about(self, server):
        return {"model": f"openai/{server['model']}", "api_base": server["base"], "api_key": server["key"]}

    def create(self, server, text, *, timeout=60, repeats=0, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return self.lib.completion(
            **self.about(server), messages=messages, timeout=timeout, max_retries=repeats, **more
        )

    def ask(self, *asked, **more):
        return self.create(*asked, **more).choices[0].message.content

    def stream(self, *asked, **more):
        chunks = self.create(*asked, stream=True, **more)
        try:
            for chunk in chunks:
                yield chunk.choices[0].delta.content
        finally:
            chunks.close()  # garbage collection would do so, perhaps much later

    async def ask_in_loop(self, server, text):
        about = {**self.about(server), "messages": [{"role": "user", "content": text}], "max_retries": 0}
        return (await self.lib.acompletion(**about)).choices[0].message.content

    async def stream_in_loop(self, server, text):
        about = {**self.about(server), "messages": [{"role": "user", "content": text}], "max_retries": 0}
        async with aclosing(await self.lib.acompletion(**about, stream=True)) as chunks:
            async for chunk in chunks:
                yield chunk.choices[0].delta.content

    def with_tool(self, text, streams):
        messages = [{"role": "user", "content": text}]
        said = self.create(scripted, messages, tools=[TOOL], stream=streams)
        choice = (self.lib.stream_chunk_builder(list(said)) if streams else said).choices[0]
        equal(choice.finish_reason, "tool_calls")
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            answer = DEGREES[json.loads(call.function.arguments)["city"]]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        return self.ask(scripted, messages, tools=[TOOL])

    def schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
        equal(json.loads(self.ask(scripted, "Weather?", response_format=wanted)), WEATHER)

    def logprobs(self):
        found = self.create(real, "hi", max_tokens=4, logprobs=True, top_logprobs=2).choices[0].logprobs
        equal([len(each.top_logprobs) for each in found.content], [2] * 4)

    def choices(self):
        equal(len(self.create(real, "hi", max_tokens=4, n=2).choices), 2)

    def images(self):
        content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        equal(self.ask(scripted, [{"role": "user", "content": content}]), DIGEST)

    def parts(self):
        thought = self.create(scripted, f"think:{new_mark()}")
        equal(thought.choices[0].message.reasoning_content, "Let me see")
        equal(thought.usage.prompt_tokens_details.cached_tokens, 8)
        chunks = [each.choices[0].delta for each in self.create(scripted, f"think:{new_mark()}", stream=True)]
        equal("".join(getattr(each, "reasoning_content", None) or "" for each in chunks), "Let me see")

    def embeddings(self):
        def create(**more):
            found = self.lib.embedding(**self.about(embedder), max_retries=0, **more)
            return [each["embedding"] for each in found.data]

        floats = create(input=["a", "b", "c"], encoding_format="float")
        equal(len(floats), 3)
        assert isinstance(create(input="b", encoding_format="base64")[0], str)

    def models(self):
        about = {"api_key": scripted["key"], "api_base": scripted["base"].removesuffix("/v1")}
        found = self.lib.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", **about)
        assert any(name.endswith(scripted["model"]) for name in found), found


DIGEST = hashlib.sha256(IMAGE.encode()).hexdigest()
CLIENTS = {
    "openai": OpenAi,
    "langchain-openai": LangChain,
    "llama-index-llms-openai-like": LlamaIndex,
    "litellm": LiteLlm,
}


def told(client, name):
    if not hasattr(client, name):
        return "–"
    try:
        getattr(client, name)()
    except Exception as error:  # each is a cell of the table
        return f"{type(error).__name__}: {error}"[:300]
    return "yes"


client = CLIENTS[sys.argv[1]]()
print(json.dumps({name: told(client, name) for name in given["features"]}))
