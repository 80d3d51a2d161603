"""Try what a library over the Python client does with a language model. Prints a JSON object: feature → how it went.

It runs in the library's own environment, which has no package of ours.
"""

import asyncio
import json
import os
import sys

given = json.loads(os.environ["GIVEN"])
writer, captioner = given["models"]["writer"], given["models"]["captioner"]
pieces = ["About ", "llamas", "."]


class LangChain:
    def __init__(self):
        from langchain_community.llms import Replicate

        self.writer = Replicate(model=writer["ref"], prompt_key="prompt")
        self.failing = Replicate(model=captioner["ref"], prompt_key="prompt", model_kwargs={"then": "raise"})

    def complete(self):
        assert self.writer.invoke("llamas") == "".join(pieces)

    def stream(self):
        assert list(self.writer.stream("llamas")) == pieces

    def asynchronous(self):
        assert asyncio.run(self.writer.ainvoke("llamas")) == "".join(pieces)

    def many(self):
        assert self.writer.batch(["llamas", "llamas"]) == ["".join(pieces)] * 2

    def stop(self):
        assert self.writer.invoke("llamas", stop=["llamas"]) == "About "

    def failure(self):
        refused(lambda: self.failing.invoke("hi"))


class LlamaIndex:
    def __init__(self):
        from llama_index.core.llms import ChatMessage
        from llama_index.llms.replicate import Replicate

        self.messages = [ChatMessage(role="user", content="llamas")]
        self.writer = Replicate(model=writer["name"])
        self.failing = Replicate(model=writer["name"], additional_kwargs={"then": "raise"})

    def complete(self):
        assert self.writer.complete("llamas").text == "".join(pieces)

    def stream(self):
        deltas = [piece.delta for piece in self.writer.stream_complete("llamas")]
        assert [delta for delta in deltas if delta] == pieces  # the end of the stream is an empty one

    def asynchronous(self):
        assert asyncio.run(self.writer.acomplete("llamas")).text == "".join(pieces)

    def chat(self):
        assert "llamas" in self.writer.chat(self.messages).message.content

    def failure(self):
        refused(lambda: self.failing.complete("llamas"))


def refused(call):
    try:
        call()
    except Exception as error:
        assert "it went wrong" in str(error), repr(error)
    else:
        raise AssertionError("no error was raised")


def told(library, feature):
    if not hasattr(library, feature):
        return "–"
    try:
        getattr(library, feature)()
    except Exception as error:  # each is a cell of the table
        return f"{type(error).__name__}: {error}"[:300]
    return "yes"


made = LlamaIndex() if sys.argv[1].startswith("llama-index") else LangChain()
features = ("complete", "stream", "asynchronous", "many", "chat", "stop", "failure")
print(json.dumps({feature: told(made, feature) for feature in features}))
