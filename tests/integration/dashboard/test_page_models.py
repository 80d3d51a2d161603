"""Test the pages of models in a real browser: pictures and sound of a real Cog, streamed texts, and what fails."""

import base64
import copy
import io
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec import Raw
from PIL import Image

from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.core.states import Status
from director.store.accounts import SCOPES, Accounts
from director.store.catalog import Catalog
from tests.integration.dashboard.conftest import ACCOUNT, TALLEST, Place, Service, opened
from tests.support.api import PlayedDirector, live_api
from tests.support.browser import Window
from tests.support.cog import cog_process, write_model
from tests.support.eventually import eventually
from tests.support.live_director import director_process, keeper_process
from tests.support.openai_server import OpenAiServer, openai_server
from tests.support.servers import redis_server
from tests.support.studio import BROKEN, CHAT_SCHEMA, HOSTILE, MESSAGES, PIXEL, SCHEMA, SOURCE, TEXT_SCHEMA

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the browser comes from a Debian package

STUDIO: Final = "acme/studio"
LLM: Final = "acme/llm"
FAILING: Final = "acme/failing"
WRITER: Final = "acme/writer"
WRITER_VERSION: Final = "d7" * 32
TALKER: Final = "acme/talker"
TALKER_VERSION: Final = "c3" * 32
TUNED: Final = "acme/tuned"
TUNED_VERSION: Final = "b9" * 32
TOKENS: Final = 2_000
FRAMES: Final = """
    () => {
        window.frames_ = [];
        let last = performance.now();
        const step = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(step); };
        requestAnimationFrame(step);
    }
"""


class Studio(Service, frozen=True, kw_only=True):
    """A service with a model of pictures, one that takes messages, and one whose setup fails."""

    llm: OpenAiServer


@pytest.fixture(scope="module")
async def studio(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Studio]:
    folder = tmp_path_factory.mktemp("studio")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        painter = write_model(folder / "painter", SOURCE, SCHEMA)
        cog = await stack.enter_async_context(cog_process(painter, stub="predict.py:Studio"))
        broken = write_model(folder / "broken", BROKEN)
        failing = await stack.enter_async_context(cog_process(broken, until="SETUP_FAILED"))
        llm = await stack.enter_async_context(openai_server())
        api = await stack.enter_async_context(live_api(server.url, env={"DIRECTOR_OPENAI": "true"}))
        await stack.enter_async_context(keeper_process(server.url, lease_s=3, port=0))
        given: dict[str, Any] = {"version": "", "port": 0}
        one = await stack.enter_async_context(director_process(server.url, cog.url, model=STUDIO, **given))
        config = json.dumps({"model": llm.model})
        of_llm = {"version": "e5" * 32, "port": 0, "runner": "openai", "runner_config": config, "model": LLM}
        two = await stack.enter_async_context(director_process(server.url, llm.url, **of_llm))
        await stack.enter_async_context(director_process(server.url, failing.url, model=FAILING, **given))
        await one.says("model registered")
        await two.says("model registered")
        token = await Accounts(redis).create_token(ACCOUNT, scopes=SCOPES)
        yield Studio(url=api.url, redis_url=server.url, redis=redis, hello=cog.url, frail="", token=token, llm=llm)


@pytest.fixture
async def window(chromium: tuple[Any, str], studio: Studio) -> AsyncIterator[Window]:
    window, context = await opened(chromium, studio.token, viewport={"width": 1440, "height": TALLEST})
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield window
    await context.close()


@pytest.fixture
async def writer(place: Place) -> PlayedDirector:
    """A model of text, whose director is the test."""
    catalog = Catalog(place.redis, place.scripts, SystemClock())
    schema = Raw(json.dumps(TEXT_SCHEMA).encode())
    queue = await catalog.register(WRITER, WRITER_VERSION, schema=schema, server="cog", policy=Policy(attempts=1))
    return PlayedDirector(place.scripts, queue)


@pytest.fixture
async def talker(place: Place) -> PlayedDirector:
    """A model of conversations, whose director is the test."""
    catalog = Catalog(place.redis, place.scripts, SystemClock())
    schema = Raw(json.dumps(CHAT_SCHEMA).encode())
    queue = await catalog.register(TALKER, TALKER_VERSION, schema=schema, server="cog", policy=Policy(attempts=1))
    return PlayedDirector(place.scripts, queue)


@pytest.fixture
async def reader(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token, viewport={"width": 1440, "height": TALLEST})
    yield window
    await context.close()


def result(window: Window) -> Any:
    return window.page.get_by_role("region", name="Result")


async def paint(window: Window, studio: Studio, prompt: str, **fields: str) -> None:
    """Run the model of pictures from its form, and wait for the end."""
    await window.page.goto(f"{studio.url}/#/models/{STUDIO}")
    await window.page.get_by_label("Prompt").fill(prompt)
    for name, value in fields.items():
        await window.page.locator(f"#in-{name}").fill(value)
    await window.page.get_by_role("button", name="Run").click()
    await ended(window)


async def ended(window: Window) -> None:
    await window.page.wait_for_function("() => location.hash.includes('?run=')")
    await result(window).get_by_text("succeeded").wait_for()


async def test_picture_model_is_run_changed_and_run_again(window: Window, studio: Studio) -> None:
    await paint(window, studio, "a lighthouse")
    first = window.page.url
    pictures = result(window).locator(".grid img")
    assert await pictures.count() == 1
    assert await pictures.first.evaluate("(img) => img.decode().then(() => img.naturalWidth)") == 320
    await window.page.get_by_label("Light").select_option(label="dawn")
    await window.page.get_by_role("slider", name="Count").fill("2")
    await window.page.get_by_role("button", name="Run").click()
    await window.page.wait_for_function("(first) => location.href !== first", arg=first)
    await ended(window)
    assert await pictures.count() == 2
    strip = window.page.get_by_role("region", name="Runs of your account")
    assert await strip.get_by_role("link").count() >= 2
    await strip.get_by_role("link").nth(1).click()
    await window.page.wait_for_function("(first) => location.href === first", arg=first)
    assert await pictures.count() == 1
    assert await window.page.get_by_label("Light").input_value() == "0", "its input is in the form"
    assert window.faults == []


async def test_each_picture_is_shown_and_opens_larger(window: Window, studio: Studio) -> None:
    await paint(window, studio, "four of them", count="4")
    shown = result(window).locator(".grid img")
    assert await shown.count() == 4
    widths = [await shown.nth(n).evaluate("(img) => img.decode().then(() => img.naturalWidth)") for n in range(4)]
    assert widths == [320] * 4
    assert len({await shown.nth(n).get_attribute("src") for n in range(4)}) == 4
    await result(window).get_by_role("button", name="Picture 2 of 4, larger").click()
    large = window.page.get_by_role("dialog")
    await large.get_by_text("2 of 4").wait_for()
    await window.page.keyboard.press("ArrowRight")
    await large.get_by_text("3 of 4").wait_for()
    assert await window.barriers() == []
    await window.page.keyboard.press("Escape")
    await large.wait_for(state="detached")
    assert window.faults == []


async def test_sound_of_an_output_has_a_player_that_reads_it(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/models/{STUDIO}")
    await window.page.get_by_label("Prompt").fill("with a tone")
    await window.page.locator("#in-count").fill("1")
    await window.page.get_by_label("With sound").check()
    await window.page.get_by_role("button", name="Run").click()
    await ended(window)
    player = result(window).locator("audio")
    await player.wait_for()

    async def length() -> float:
        return float(await player.evaluate("(it) => it.duration || 0"))

    assert 0.9 < await eventually(length, "the sound is read", until=bool) < 1.1
    assert await result(window).locator(".grid img").count() == 1
    assert "16 kB" in await result(window).locator(".player").inner_text()
    assert window.faults == []


async def test_reload_keeps_the_run_and_its_input(window: Window, studio: Studio) -> None:
    await paint(window, studio, "kept over a reload", count="3")
    before = window.page.url
    await window.page.reload()
    await result(window).get_by_text("succeeded").wait_for()
    assert window.page.url == before
    assert await result(window).locator(".grid img").count() == 3
    assert await window.page.get_by_label("Prompt").input_value() == "kept over a reload"
    assert await window.page.locator("#in-count").input_value() == "3"


async def test_model_is_run_by_keyboard_alone(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/models")
    card = window.page.get_by_role("link", name=STUDIO)
    await card.wait_for()

    async def until(name: str, *, key: str = "Tab", most: int = 60) -> None:
        for _ in range(most):
            if name in await window.page.evaluate("(document.activeElement.id || document.activeElement.textContent)"):
                return
            await window.page.keyboard.press(key)
        raise AssertionError(f"the focus never came to {name}")

    await until("acme/studio")
    await window.page.keyboard.press("Enter")
    await window.page.get_by_label("Prompt").wait_for()
    await until("in-prompt")
    await window.page.keyboard.press("Control+A")
    await window.page.keyboard.type("typed alone")
    await window.page.keyboard.press("Control+Enter")
    await ended(window)
    await until("Copy link")
    assert window.faults == []


async def test_file_is_dropped_with_a_preview_and_sent(window: Window, studio: Studio, tmp_path: Path) -> None:
    picture = tmp_path / "small.png"
    Image.new("RGB", (20, 10), "teal").save(picture)
    await window.page.goto(f"{studio.url}/#/models/{STUDIO}")
    await window.page.get_by_label("Prompt").fill("from a file")
    await window.page.get_by_label("A file for Image").set_input_files(picture)
    shown = window.page.locator(".preview img")
    await shown.wait_for()
    assert await shown.evaluate("(img) => img.decode().then(() => img.naturalWidth)") == 20
    async with window.page.expect_request(lambda asked: asked.method == "POST") as sent:
        await window.page.get_by_role("button", name="Run").click()
    image = (await sent.value).post_data_json["input"]["image"]
    assert base64.b64decode(image.partition(",")[2]) == picture.read_bytes()
    await ended(window)
    assert window.faults == []


async def test_setup_that_fails_shows_its_log(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/models")
    card = window.page.get_by_role("listitem").filter(has_text="failing")
    await card.get_by_text("setup failed").wait_for()
    await card.get_by_role("link").click()
    why = window.page.get_by_role("region", name="State")
    await why.get_by_text("no weights at /weights").first.wait_for()
    assert "looked for /weights/model.bin" in await why.locator("pre").inner_text()
    assert await window.barriers() == []
    assert window.faults == []


async def test_former_addresses_lead_to_the_page_of_the_model(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/run")
    await window.page.get_by_role("heading", name="Models").wait_for()
    await window.page.goto(f"{studio.url}/#/run/{STUDIO}?run=none")
    await window.page.wait_for_function(f"() => location.hash === '#/models/{STUDIO}?run=none'")
    await window.page.goto(f"{studio.url}/{STUDIO}")
    await window.page.get_by_label("Prompt").wait_for()
    assert window.page.url == f"{studio.url}/#/models/{STUDIO}"


async def test_owner_describes_a_model_with_a_picture(window: Window, studio: Studio, tmp_path: Path) -> None:
    cover = tmp_path / "cover.png"
    Image.effect_noise((900, 600), 90).convert("RGB").save(cover)
    await window.page.goto(f"{studio.url}/#/models/{STUDIO}")
    await window.page.get_by_role("button", name="Edit").click()
    await window.page.get_by_label("What it does").fill("Paints a lighthouse by the sea.")
    await window.page.get_by_label("A picture of the model").set_input_files(cover)
    await window.page.locator(".edits img.cover").wait_for()
    await window.page.get_by_role("button", name="Save").click()
    await window.page.locator(".model-head img.cover").wait_for()
    assert await window.page.evaluate("document.activeElement.textContent") == "Edit", "the focus is where it was"
    await window.page.goto(f"{studio.url}/#/models")
    card = window.page.get_by_role("listitem").filter(has_text="studio")
    await card.get_by_text("Paints a lighthouse by the sea.").wait_for()
    src = str(await card.locator("img.cover").get_attribute("src"))
    with Image.open(io.BytesIO(base64.b64decode(src.partition(",")[2]))) as kept:
        assert kept.width * 9 == kept.height * 16
    assert len(src) <= 12_000
    assert window.faults == []


async def test_code_follows_the_form(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/models/{STUDIO}")
    await window.page.get_by_label("Prompt").fill("it's code")
    code = window.page.get_by_role("region", name="The same in code")
    for language, words in {
        "curl": """"prompt":"it'\\''s code\"""",
        "Python": '"prompt": "it\'s code"',
        "Node": 'replicate.run("acme/studio"',
    }.items():
        await code.get_by_role("button", name=language).click()
        assert words in await code.locator("pre").inner_text()
    await window.page.get_by_role("link", name="API", exact=True).click()
    await window.page.get_by_role("region", name="Call it").get_by_text("it's code").wait_for()
    await window.page.get_by_role("link", name="Playground").click()
    assert await window.page.get_by_label("Prompt").input_value() == "it's code", "the form is as it was"


async def test_conversation_goes_on_and_survives_a_reload(window: Window, studio: Studio) -> None:
    await window.page.goto(f"{studio.url}/#/models/{LLM}")
    said = window.page.get_by_role("log", name="Conversation")
    message = window.page.get_by_label("Message")
    await window.page.get_by_label("System prompt").fill("Be short.")
    await message.fill("Hello?")
    await message.press("Enter")
    await said.get_by_text("one two").wait_for()
    await window.page.get_by_role("button", name="New conversation").wait_for()
    await message.fill("And now?")
    await message.press("Enter")
    await window.page.wait_for_function("() => document.querySelectorAll('.bubble.assistant .md').length === 2")
    await window.page.get_by_role("button", name="New conversation").wait_for()
    sent = json.loads(studio.llm.calls[-1].body)["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "user"]
    assert sent[2]["content"] == "one two"
    assert await window.barriers() == []
    await window.page.reload()
    await said.get_by_text("And now?").wait_for()
    assert await said.locator(".bubble").count() == 4
    assert await window.page.get_by_label("System prompt").input_value() == "Be short."
    code = window.page.get_by_role("region", name="The same in code")
    await code.get_by_role("button", name="OpenAI").click()
    assert "/openai/v1" in await code.locator("pre").inner_text()
    assert window.faults == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_pages_of_models_have_no_accessibility_violation(
    chromium: tuple[Any, str], studio: Studio, width: int, theme: str, tmp_path: Path
) -> None:
    window, context = await opened(chromium, studio.token, viewport={"width": width, "height": 900}, color_scheme=theme)
    await paint(window, studio, "a lighthouse at dusk", count="4")
    ran = window.page.url.partition("#")[2]
    views = ["/models", ran, f"/models/{LLM}", f"/models/{FAILING}"]
    views += [f"/models/{STUDIO}/{tab}" for tab in ("api", "examples", "versions", "runs")]
    for view in views:
        await window.page.goto(f"{studio.url}/#{view}")
        await window.page.locator(".chip").first.wait_for()
        await window.page.wait_for_function("() => !document.querySelector('[aria-busy]')")
        assert await window.barriers() == [], view
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    assert window.faults == []
    await context.close()


async def begun(place: Place, writer: PlayedDirector, **given: Any) -> tuple[str, Any, int]:
    """Make a run of the model of text whose director is the test: its id, its claim, and where its events stand."""
    async with place.caller() as caller:
        made = await caller.post(f"/v1/models/{WRITER}/predictions", json={"input": {"topic": "sea", **given}})
    assert made.status_code == 201, made.text
    while (claim := await writer.claim()).id != made.json()["id"]:
        pass  # another test left it
    return made.json()["id"], claim, await writer.begin(claim)


async def stream(place: Place, claim: Any, seq: int, *pieces: str) -> int:
    events = [("output", json.dumps(piece).encode()) for piece in pieces]
    return int((await place.scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=0, events=events)).seq)


async def test_hostile_markdown_stays_text_and_loads_nothing(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    asked: list[str] = []
    reader.page.on("request", lambda request: asked.append(request.url))
    made, claim, seq = await begun(place, writer)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={made}")
    output = reader.page.get_by_role("region", name="Output")
    for start in range(0, len(HOSTILE), 7):
        seq = await stream(place, claim, seq, HOSTILE[start : start + 7])
    await output.get_by_text("this is bold").wait_for()
    streamed = await output.inner_html()
    await writer.finish(claim, output=json.dumps([HOSTILE]).encode(), seq=seq)
    await result(reader).get_by_text("succeeded").wait_for()
    await reader.page.reload()
    await result(reader).get_by_text("succeeded").wait_for()
    whole = await output.inner_html()
    for page in (streamed, whole):
        assert not re.search(r"<(script|iframe|b|i)\b", page)
    assert await output.locator("img").count() == 1, "the one within the text itself"
    links = await output.locator("a").evaluate_all("(all) => all.map((one) => [one.href, one.rel, one.target])")
    assert {href for href, _, _ in links} == {
        "https://elsewhere.example/page",
        "https://elsewhere.example/auto",
        "https://elsewhere.example/spy.png",
    }
    assert all("noopener" in rel and "noreferrer" in rel and target == "_blank" for _, rel, target in links)
    words = await output.inner_text()
    for part in ("<script>window.stolen = 1</script>", 'onerror="window.stolen=1"', "<b> stays text", "<iframe"):
        assert part in words
    assert await output.locator("strong").inner_text() == "this is bold"
    assert await output.locator("table td").count() == 2
    assert await reader.page.evaluate("window.stolen") is None
    assert [url for url in asked if not url.startswith((place.url, "data:"))] == []
    assert reader.faults == []


async def test_markdown_is_the_same_piece_by_piece_as_at_once(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    await reader.page.goto(place.url)
    same = await reader.page.evaluate(
        """async (text) => {
            const { LiveText } = await import("/dashboard/live_text.js");
            const { markdown } = await import("/dashboard/markdown.js");
            const differing = [];
            for (const size of [1, 3, 17, 1000]) {
                const live = new LiveText();
                for (let at = 0; at < text.length; at += size) {
                    live.append(text.slice(at, at + size));
                    live.settle();
                }
                if (live.node.firstChild.innerHTML !== markdown(text).innerHTML) differing.push(size);
            }
            return differing;
        }""",
        HOSTILE + "\n1. one\n2. two\n   - nested\n\n3. three\n\n> quoted\n> on\n\nTitle\n=====\n\n    indented\n\nend",
    )
    assert same == []


async def test_stream_of_two_thousand_tokens_keeps_the_frames(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    made, claim, seq = await begun(place, writer)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={made}")
    output = reader.page.get_by_role("region", name="Output")
    seq = await stream(place, claim, seq, "# Begin\n\n")
    await output.get_by_text("Begin").wait_for()
    await reader.page.evaluate(FRAMES)
    for number in range(TOKENS // 10):
        words = [f"word{n} " for n in range(9)]
        seq = await stream(place, claim, seq, *words, "\n\n- **item** `x`\n\n" if number % 5 == 0 else "and ")
        await anyio.sleep(0.02)  # as a model of 500 tokens a second
    seq = await stream(place, claim, seq, "the end")
    await output.get_by_text("the end").wait_for()
    frames = sorted(await reader.page.evaluate("window.frames_"))
    late = [one for one in frames if one > 50]
    median, rare = frames[len(frames) // 2], frames[len(frames) * 99 // 100]
    text = f"{len(frames)} frames, median {median:.1f} ms, 99 % within {rare:.1f} ms, {len(late)} above 50 ms"
    print(text)
    assert median < 20, text
    assert len(late) < len(frames) * 0.05, text
    assert "pieces/s" in await result(reader).inner_text()
    await writer.finish(claim, output=json.dumps([]).encode(), seq=seq)


async def test_wrong_values_are_marked_at_their_own_fields(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    run = reader.page.get_by_role("button", name="Run")
    await run.wait_for()
    assert await reader.page.locator(".ask .trouble:visible").count() == 0, "nothing is wrong yet"
    await reader.page.get_by_label("Topic").fill("")
    await run.click()
    await reader.page.locator("#in-topic-error").get_by_text("needed").wait_for()
    assert await reader.page.evaluate("document.activeElement.id") == "in-topic"
    await reader.page.get_by_label("Topic").fill("the sea")
    await reader.page.get_by_role("button", name="Add to Tags").click()
    await reader.page.keyboard.type("short")
    await reader.page.get_by_role("button", name="Add to Tags").click()
    await reader.page.locator("#in-tags-1").evaluate(
        "(it) => { it.removeAttribute('maxlength'); it.value = 'much too long a tag'; }"
    )
    await reader.page.get_by_label("Paper").select_option("letter")
    await run.click()
    await reader.page.locator("#in-page-columns-error").get_by_text("needed").wait_for()
    await reader.page.get_by_label("Columns").fill("2")
    await run.click()
    await reader.page.locator("#in-tags-1-error").get_by_text("12").wait_for()
    assert await reader.page.locator("#in-tags-0-error").inner_text() == ""
    await reader.page.get_by_role("button", name="Remove Tags 2").click()
    async with reader.page.expect_request(lambda asked: asked.method == "POST") as sent:
        await run.click()
    expected = {"topic": "the sea", "warmth": 0.7, "tags": ["short"], "page": {"columns": 2, "paper": "letter"}}
    assert (await sent.value).post_data_json == {"input": expected}
    assert reader.faults == [] or all("422" in one for one in reader.faults)


async def test_header_that_is_refused_is_marked_under_advanced(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_label("Topic").fill("the sea")
    await reader.page.get_by_text("Advanced").click()
    await reader.page.get_by_label("Has to end within").fill("soon")
    await reader.page.get_by_text("Advanced").click()
    await reader.page.get_by_role("button", name="Run").click()
    await reader.page.get_by_role("alert").get_by_text("Cancel-After must be").wait_for()


@pytest.mark.parametrize("text", [">" * 3000, "- " * 1500], ids=["quotes", "lists"])
async def test_output_that_nests_too_deep_is_shown_and_ends(
    reader: Window, place: Place, writer: PlayedDirector, text: str
) -> None:
    made, claim, seq = await begun(place, writer)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={made}")
    output = reader.page.get_by_role("region", name="Output")
    seq = await stream(place, claim, seq, text)
    await output.get_by_text(text[:50]).wait_for()
    await writer.finish(claim, output=json.dumps([text]).encode(), seq=seq)
    for _ in range(2):
        await result(reader).get_by_text("succeeded").wait_for()
        await reader.page.get_by_role("button", name="Copy text").wait_for()
        assert text.strip() in await output.text_content()
        await reader.page.reload()
    assert reader.faults == []


async def test_conversation_with_a_text_that_nests_too_deep_is_shown(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    deep = ">" * 3000
    said = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": deep},
        {"role": "user", "content": "Go on."},
    ]
    async with place.caller() as caller:
        made = await caller.post(f"/v1/models/{TALKER}/predictions", json={"input": {"messages": said}})
    await reader.page.goto(f"{place.url}/#/models/{TALKER}?run={made.json()['id']}")
    log = reader.page.get_by_role("log", name="Conversation")
    await log.get_by_text("Go on.").wait_for()
    assert deep in await log.text_content()
    assert reader.faults == []


async def test_run_of_a_view_that_was_left_changes_no_other(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    """The answer to the create comes when another view is shown."""
    is_left = anyio.Event()
    asked: list[str] = []

    async def hold(route: Any) -> None:
        await is_left.wait()
        await route.continue_()

    await reader.page.route("**/v1/models/*/*/predictions", hold)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_label("Topic").fill("the sea")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_role("button", name="Run").click()
        await reader.page.evaluate("() => { location.hash = '#/models'; }")
        await reader.page.get_by_role("heading", name="Models", exact=True).wait_for()
        reader.page.on("request", lambda request: asked.append(request.url))
        is_left.set()
    made = (await (await answered.value).json())["id"]
    async with reader.page.expect_request("**/v1/models/states*"):
        pass  # a later fact
    assert reader.page.url == f"{place.url}/#/models"
    assert [url for url in asked if made in url] == [], "its run is not followed"


async def test_reset_form_stays_reset_after_another_tab(reader: Window, place: Place, writer: PlayedDirector) -> None:
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_label("Topic").fill("the sea")
    await reader.page.get_by_label("Warmth", exact=True).fill("1.5")
    await reader.page.get_by_role("button", name="Add to Tags").click()
    await reader.page.get_by_role("button", name="Reset").click()
    assert await reader.page.evaluate("document.activeElement.textContent") == "Reset"
    await reader.page.get_by_role("link", name="API", exact=True).click()
    await reader.page.get_by_role("link", name="Playground").click()
    assert await reader.page.get_by_label("Topic").input_value() == ""
    assert await reader.page.get_by_label("Warmth", exact=True).input_value() == "0.7"
    assert await reader.page.locator("#in-tags .item").count() == 0
    assert reader.faults == []


async def test_input_of_a_run_is_all_that_the_form_shows(reader: Window, place: Place, writer: PlayedDirector) -> None:
    rich = {"topic": "the sea", "warmth": 1.5, "tags": ["salt"], "page": {"columns": 3, "paper": "letter"}}
    ids = []
    for given in (rich, {"topic": "the moon"}):
        made, claim, seq = await begun(place, writer, **given)
        await writer.finish(claim, Status.SUCCEEDED, output=b'["it is wide"]', seq=seq)
        ids.append(made)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={ids[1]}")
    strip = reader.page.get_by_role("region", name="Runs of your account")
    for made in ids:
        link = strip.locator(f"a[href$='{made}']")
        await link.click()
        await strip.locator(f"a[href$='{made}'][aria-current]").wait_for()
        assert await link.evaluate("(it) => it === document.activeElement"), "the focus stays"
        if made == ids[0]:
            assert await reader.page.locator("#in-page-columns").input_value() == "3"
    async with reader.page.expect_request(lambda asked: asked.method == "POST") as sent:
        await reader.page.get_by_role("button", name="Run").click()
    assert (await sent.value).post_data_json == {"input": {"topic": "the moon", "warmth": 0.7}}


async def test_viewer_is_told_why_a_model_cannot_be_run(
    chromium: tuple[Any, str], place: Place, writer: PlayedDirector, talker: PlayedDirector
) -> None:
    token = await Accounts(place.redis).create_token("looker", scopes=("read", "view"))
    window, context = await opened(chromium, token)
    sent: list[str] = []
    window.page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    await window.page.goto(f"{place.url}/#/models/{WRITER}")
    await window.page.get_by_label("Topic").fill("the sea")
    await window.page.get_by_text("and not run them").wait_for()
    await window.page.keyboard.press("Control+Enter")
    await window.page.get_by_role("alert").get_by_text("and not run them").wait_for()
    await window.page.goto(f"{place.url}/#/models/{TALKER}")
    await window.page.get_by_label("Message").fill("Hello?")
    await window.page.get_by_label("Message").press("Enter")
    await window.page.get_by_role("alert").get_by_text("and not run them").wait_for()
    assert await window.page.locator(".starts button").count() == 0
    assert sent == []
    assert await window.barriers() == []
    await context.close()


async def test_model_page_that_failed_at_first_asks_again(reader: Window, place: Place, writer: PlayedDirector) -> None:
    async def fail(route: Any) -> None:
        await route.fulfill(status=503, json={"code": "unavailable"})

    await reader.page.route("**/v1/models/states*", fail, times=1)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_text("It is asked again every few seconds.").wait_for()
    await reader.page.get_by_label("Topic").wait_for()


async def test_narrow_screen_shows_the_current_tab(
    chromium: tuple[Any, str], place: Place, writer: PlayedDirector
) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": 320, "height": 640})
    await window.page.goto(f"{place.url}/#/models/{WRITER}/runs")
    bar = window.page.get_by_role("navigation", name="Parts of this model")
    tab = bar.locator("[aria-current]")
    await tab.wait_for()
    assert await bar.evaluate("one => one.scrollWidth > one.clientWidth")
    box = await tab.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320
    seen = bar.get_by_text("Versions")
    before = await seen.bounding_box()
    await seen.click()
    assert await seen.bounding_box() == before, "what is seen stays in its place"
    await context.close()


async def test_newer_version_is_offered_and_the_form_is_kept(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    catalog = Catalog(place.redis, place.scripts, SystemClock())

    async def register(version: str, schema: dict[str, Any]) -> None:
        body = Raw(json.dumps(schema).encode())
        await catalog.register("acme/growing", version, schema=body, server="cog", policy=Policy(attempts=1))

    await register("a1" * 32, TEXT_SCHEMA)
    await reader.page.goto(f"{place.url}/#/models/acme/growing")
    await reader.page.get_by_label("Topic").fill("the sea")
    await register("b2" * 32, CHAT_SCHEMA)
    await reader.page.get_by_text("A newer version is there").wait_for()
    assert await reader.page.get_by_label("Topic").input_value() == "the sea"
    await reader.page.get_by_role("button", name="Show it").click()
    await reader.page.get_by_role("log", name="Conversation").wait_for()


async def test_message_without_an_answer_is_not_sent_again_by_itself(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    await reader.page.goto(f"{place.url}/#/models/{TALKER}")
    message = reader.page.get_by_label("Message")
    await message.fill("Hello?")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await message.press("Enter")
    made = (await (await answered.value).json())["id"]
    while (claim := await talker.claim()).id != made:
        pass
    seq = await talker.begin(claim)
    await talker.finish(claim, Status.FAILED, error="no memory", seq=seq)
    await reader.page.get_by_role("button", name="New conversation").wait_for()
    assert await message.input_value() == "Hello?", "it can be sent again"
    async with reader.page.expect_request(lambda asked: asked.method == "POST") as sent:
        await message.press("Enter")
    assert (await sent.value).post_data_json["input"]["messages"] == [{"role": "user", "content": "Hello?"}]


async def test_objects_of_a_form_send_only_what_was_changed(reader: Window, place: Place) -> None:
    await reader.page.goto(place.url)
    found = await reader.page.evaluate(
        """async () => {
            const { schemaForm } = await import("/dashboard/schema_form.js");
            const sizes = { type: "array", items: { type: "integer" }, default: [1, 2] };
            const page = { type: "object", properties: { sizes, name: { type: "string" } }, required: ["name"] };
            const width = { type: "integer", default: 1 };
            const frame = { type: "object", properties: { width }, default: { width: 7 } };
            const Input = { type: "object", properties: { page, frame } };
            const form = schemaForm({ components: { schemas: { Input } } });
            const all = [form.now()];
            form.take({ page: { sizes: [3], name: "wide" } });
            all.push(form.now());
            form.take({});
            all.push(form.now(), form.node.querySelector("#in-frame-width").value);
            return all;
        }"""
    )
    assert found == [{}, {"page": {"sizes": [3], "name": "wide"}}, {}, "7"]


async def test_result_of_a_run_is_in_view_on_a_phone(
    chromium: tuple[Any, str], place: Place, writer: PlayedDirector
) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": 390, "height": 700})
    await window.page.goto(f"{place.url}/#/models/{WRITER}")
    await window.page.get_by_label("Topic").fill("the sea")
    await window.page.get_by_role("button", name="Run", exact=True).click()
    await window.page.wait_for_function("() => location.hash.includes('?run=')")
    place_of = "(it) => { const { top } = it.getBoundingClientRect(); return top >= 0 && top < innerHeight / 2; }"
    assert await result(window).get_by_role("heading", name="Output").evaluate(place_of)
    await context.close()


async def test_run_that_waits_says_so_in_the_strip(reader: Window, place: Place, writer: PlayedDirector) -> None:
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_label("Topic").fill("the sea")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_role("button", name="Run", exact=True).click()
    made = (await (await answered.value).json())["id"]
    link = reader.page.get_by_role("region", name="Runs of your account").locator(f"a[href$='{made}']")
    await link.get_by_text("waits").wait_for()
    while (claim := await writer.claim()).id != made:
        pass
    seq = await writer.begin(claim)
    await link.get_by_text("runs now").wait_for()
    await writer.finish(claim, Status.FAILED, error="no memory", seq=seq)
    await link.get_by_text("failed").wait_for()


async def test_run_again_in_the_form_leaves_other_visits_a_conversation(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    async with place.caller() as caller:
        said = {"messages": [{"role": "user", "content": "Hello?"}]}
        made = await caller.post(f"/v1/models/{TALKER}/predictions", json={"input": said})
    await reader.page.goto(f"{place.url}/#/models/{TALKER}?again={made.json()['id']}")
    await reader.page.get_by_role("button", name="Form", pressed=True).wait_for()
    await reader.page.goto(f"{place.url}/#/models/{TALKER}")
    await reader.page.get_by_role("log", name="Conversation").wait_for()
    await reader.page.get_by_role("button", name="Form").click()
    await reader.page.reload()
    await reader.page.get_by_role("button", name="Form", pressed=True).wait_for()


async def test_file_that_comes_leaves_the_others_as_they_are(reader: Window, place: Place) -> None:
    await reader.page.goto(place.url)
    stay, labels, gone = await reader.page.evaluate(
        """async (pixel) => {
            const { OutputArea } = await import("/dashboard/output.js");
            const area = new OutputArea();
            document.body.append(area.node);
            area.add(pixel);
            const first = area.node.querySelector("img");
            for (let n = 0; n < 3; n += 1) area.add(pixel);
            area.settle([pixel, pixel, pixel, pixel]);
            const labels = [...area.node.querySelectorAll(".picture")].map((one) => one.getAttribute("aria-label"));
            const isStill = area.node.querySelector("img") === first;
            area.add(`${location.origin}/v1/outputs/none/gone.png`);
            const last = [...area.node.querySelectorAll(".grid li")].at(-1);
            last.scrollIntoView();
            while (last.querySelector("img")) await new Promise((done) => setTimeout(done, 50));
            return [isStill, labels, last.textContent];
        }""",
        PIXEL,
    )
    assert stay
    assert labels == [f"Picture {n} of 4, larger" for n in range(1, 5)]
    assert "cannot be loaded" in gone


async def test_operator_makes_a_run_the_example(reader: Window, place: Place, writer: PlayedDirector) -> None:
    made, claim, seq = await begun(place, writer, topic="the stars")
    await writer.finish(claim, Status.SUCCEEDED, output=b'["the stars are many"]', seq=seq)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={made}")
    await reader.page.get_by_role("button", name="Make it an example").click()
    await reader.page.get_by_text("It is the example of this model now.").first.wait_for()
    await reader.page.get_by_role("link", name="Examples").click()
    await reader.page.get_by_role("listitem").get_by_text("the stars are many").wait_for()
    assert reader.faults == []


async def test_link_to_a_run_leads_a_colleague_to_it(
    chromium: tuple[Any, str], reader: Window, place: Place, writer: PlayedDirector
) -> None:
    await reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    made, claim, seq = await begun(place, writer)
    await writer.finish(claim, Status.SUCCEEDED, output=b'["the sea is wide"]', seq=seq)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await reader.page.get_by_role("region", name="Output").get_by_text("the sea is wide").wait_for()
    await reader.page.get_by_role("button", name="Copy link").click()
    await reader.page.get_by_text("Copied.").first.wait_for()
    link = await reader.page.evaluate("() => navigator.clipboard.readText()")
    assert link == f"{place.url}/p/{made}"
    other, context = await opened(chromium, place.token)
    await other.page.goto(link)
    await other.page.get_by_role("region", name="Output").get_by_text("the sea is wide").wait_for()
    await context.close()


async def test_model_without_a_good_run_shows_an_example_and_its_input(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    token = await Accounts(place.redis).create_token("umbrella", scopes=("read", "run"))
    made, claim, seq = await begun(place, writer, topic="the moon")
    await writer.finish(claim, Status.SUCCEEDED, output=b'["the moon is far"]', seq=seq)
    async with place.caller() as caller:
        line = ["model", "example", WRITER, made, "--default"]
        shown = await caller.post("/v1/admin/commands", json={"line": line})
        assert shown.json()["code"] == 0, shown.text

        async def stands() -> bool:
            example = (await caller.get(f"/v1/models/{WRITER}")).json()["default_example"]
            return bool(example) and example["id"] == made

        await eventually(stands, "the cache of the API has it")
    await reader.page.add_init_script(f"if (origin !== 'null') sessionStorage.setItem('director.token', '{token}')")
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    await result(reader).get_by_text("an example").wait_for()
    await reader.page.get_by_role("region", name="Output").get_by_text("the moon is far").wait_for()
    assert await reader.page.get_by_label("Topic").input_value() == "the moon"
    assert reader.faults == []


async def test_form_of_a_conversation_shows_its_newest_run(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    async with place.caller() as caller:
        given = {"messages": [{"role": "user", "content": "Hello?"}]}
        first = (await caller.post(f"/v1/models/{TALKER}/predictions", json={"input": given})).json()["id"]
    while (claim := await talker.claim()).id != first:
        pass
    await talker.finish(claim, output=b'"Hi."', seq=await talker.begin(claim))
    await reader.page.goto(f"{place.url}/#/models/{TALKER}?run={first}")
    await reader.page.get_by_role("button", name="New conversation").wait_for()
    await reader.page.get_by_label("Message").fill("And now?")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_label("Message").press("Enter")
    newest = (await (await answered.value).json())["id"]
    await reader.page.wait_for_function("(id) => location.hash.endsWith(`?run=${id}`)", arg=newest)
    await reader.page.get_by_role("button", name="Form").click()
    await result(reader).get_by_role("link", name=newest).wait_for()
    assert reader.page.url == f"{place.url}/#/models/{TALKER}?run={newest}"
    assert reader.faults == []


async def test_conversation_begins_with_the_newest_run_of_the_form(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    await reader.page.goto(f"{place.url}/#/models/{TALKER}")
    await reader.page.get_by_role("button", name="Form").click()
    await reader.page.reload()  # the form is shown alone
    await reader.page.get_by_role("button", name="Reset").click()
    await reader.page.get_by_role("group", name="Messages").get_by_role("button", name="Add to Messages").click()
    await reader.page.locator("#in-messages-0").fill('{"role": "user", "content": "From the form."}')
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_role("button", name="Run", exact=True).click()
    made = (await (await answered.value).json())["id"]
    await result(reader).get_by_role("link", name=made).wait_for()
    await reader.page.get_by_role("button", name="Chat").click()
    await reader.page.get_by_role("log", name="Conversation").get_by_text("From the form.").wait_for()
    assert reader.page.url == f"{place.url}/#/models/{TALKER}?run={made}"


async def test_run_of_the_address_that_comes_late_replaces_no_question(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    is_asked = anyio.Event()

    async def hold(route: Any) -> None:
        await is_asked.wait()
        await route.continue_()

    async with place.caller() as caller:
        given = {"messages": [{"role": "user", "content": "An old question."}]}
        former = (await caller.post(f"/v1/models/{TALKER}/predictions", json={"input": given})).json()["id"]
    await reader.page.route(f"**/v1/predictions/{former}", hold)
    await reader.page.goto(f"{place.url}/#/models/{TALKER}?run={former}")
    await reader.page.get_by_label("Message").fill("A new one.")
    await reader.page.get_by_label("Message").press("Enter")
    log = reader.page.get_by_role("log", name="Conversation")
    await log.get_by_text("A new one.").wait_for()
    async with reader.page.expect_response(f"**/v1/predictions/{former}") as answered:
        is_asked.set()
    await (await answered.value).finished()
    await reader.page.evaluate("() => new Promise((done) => setTimeout(done))")  # the page has read the answer
    assert await log.get_by_text("A new one.").count() == 1
    assert await log.get_by_text("An old question.").count() == 0
    assert former not in reader.page.url
    await reader.page.get_by_role("button", name="Stop").wait_for()
    assert reader.faults == []


async def test_address_names_the_run_of_the_way_to_ask_that_is_shown(
    reader: Window, place: Place, talker: PlayedDirector
) -> None:
    begun = f"{place.url}/#/models/{TALKER}?run="
    await reader.page.goto(f"{place.url}/#/models/{TALKER}")
    await reader.page.get_by_label("Message").fill("Hello?")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_label("Message").press("Enter")
    chatted = (await (await answered.value).json())["id"]
    await reader.page.wait_for_function("(id) => location.hash.endsWith(`?run=${id}`)", arg=chatted)
    await reader.page.get_by_role("button", name="Form").click()
    await result(reader).get_by_role("link", name=chatted).wait_for()
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_role("button", name="Run", exact=True).click()
    made = (await (await answered.value).json())["id"]
    await result(reader).get_by_role("link", name=made).wait_for()
    assert reader.page.url == begun + made
    await reader.page.get_by_role("button", name="Chat").click()
    assert reader.page.url == begun + chatted, "a reload shows the conversation that is here"
    await reader.page.get_by_role("button", name="Form").click()
    assert reader.page.url == begun + made
    assert reader.faults == []


@pytest.mark.parametrize("other", ["Form", "API"])
async def test_run_made_while_another_part_is_shown_keeps_its_address(
    reader: Window, place: Place, talker: PlayedDirector, other: str
) -> None:
    is_left = anyio.Event()

    async def hold(route: Any) -> None:
        await is_left.wait()
        await route.continue_()

    await reader.page.route("**/v1/models/*/*/predictions", hold)
    await reader.page.goto(f"{place.url}/#/models/{TALKER}")
    await reader.page.get_by_label("Message").fill("Hello?")
    way = {"Form": "button", "API": "link"}[other]
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_label("Message").press("Enter")
        await reader.page.get_by_role(way, name=other, exact=True).click()
        left = reader.page.url
        is_left.set()
    made = (await (await answered.value).json())["id"]
    async with reader.page.expect_request(f"**/v1/predictions/{made}**"):
        pass  # the conversation follows it
    assert reader.page.url == left
    back = {"Form": ("button", "Chat"), "API": ("link", "Playground")}[other]
    await reader.page.get_by_role(back[0], name=back[1]).click()
    await reader.page.get_by_role("button", name="Stop").wait_for()
    assert reader.page.url == f"{place.url}/#/models/{TALKER}?run={made}"
    assert reader.faults == []


async def test_runs_are_there_to_choose_though_that_of_the_address_is_not(
    reader: Window, place: Place, writer: PlayedDirector
) -> None:
    made, claim, seq = await begun(place, writer, topic="the moon")
    await writer.finish(claim, output=b'["the moon is far"]', seq=seq)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={'0' * len(made)}")
    await result(reader).get_by_role("alert").wait_for()
    await reader.page.get_by_role("region", name="Runs of your account").locator(f"a[href$='{made}']").click()
    await result(reader).get_by_text("the moon is far").wait_for()


async def test_input_of_a_run_takes_former_faults_away(reader: Window, place: Place, writer: PlayedDirector) -> None:
    made, claim, seq = await begun(place, writer, topic="the moon")
    await writer.finish(claim, output=b'["the moon is far"]', seq=seq)
    await reader.page.goto(f"{place.url}/#/models/{WRITER}?run={made}")
    await result(reader).get_by_text("succeeded").wait_for()
    await reader.page.get_by_role("button", name="Reset").click()
    await reader.page.get_by_role("button", name="Run", exact=True).click()
    fault = reader.page.locator("#in-topic-error")
    await fault.get_by_text("needed").wait_for()
    strip = reader.page.get_by_role("region", name="Runs of your account")
    await strip.locator(f"a[href$='{made}']").click()
    await reader.page.wait_for_function("() => document.getElementById('in-topic').value === 'the moon'")
    assert await fault.inner_text() == ""
    assert await reader.page.locator("#in-topic").get_attribute("aria-invalid") == "false"
    assert await reader.page.locator(".ask .trouble:visible").count() == 0


@pytest.fixture
async def tuned(place: Place) -> str:
    """A model of conversations with a setting, which takes only those of two messages or more."""
    schema = copy.deepcopy(CHAT_SCHEMA)
    schema["components"]["schemas"]["Input"]["properties"] = {
        "messages": {**MESSAGES, "minItems": 2},
        "tone": {"type": "string", "title": "Tone", "pattern": "^[a-z]+$"},
    }
    body = Raw(json.dumps(schema).encode())
    catalog = Catalog(place.redis, place.scripts, SystemClock())
    await catalog.register(TUNED, TUNED_VERSION, schema=body, server="cog", policy=Policy(attempts=1))
    return TUNED


async def test_conversation_tells_each_fault_of_a_refused_message(reader: Window, place: Place, tuned: str) -> None:
    await reader.page.goto(f"{place.url}/#/models/{tuned}")
    await reader.page.get_by_text("Sampling and limits").click()
    await reader.page.get_by_label("Tone").fill("LOUD")
    await reader.page.get_by_text("Sampling and limits").click()
    await reader.page.get_by_label("Message").fill("Hello?")
    async with reader.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await reader.page.get_by_label("Message").press("Enter")
    refused = await (await answered.value).json()
    assert len(refused["invalid_fields"]) == 2, refused
    unplaced = next(one["description"] for one in refused["invalid_fields"] if "messages" in one["field"])
    await result(reader).get_by_role("alert").get_by_text(unplaced).wait_for()
    await reader.page.locator("#in-tone-error").filter(has_text=re.compile("[a-z]")).wait_for()
    assert await reader.page.get_by_label("Tone").is_visible(), "the details around it are open"


async def test_refused_header_of_a_conversation_is_in_view_on_a_phone(
    chromium: tuple[Any, str], place: Place, talker: PlayedDirector
) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": 390, "height": 700})
    await window.page.goto(f"{place.url}/#/models/{TALKER}")
    for name in ("Settings", "Advanced"):
        await window.page.locator("summary").get_by_text(name).click()
    await window.page.get_by_label("Has to end within").fill("soon")
    for name in ("Advanced", "Settings"):
        await window.page.locator("summary").get_by_text(name).click()
    await window.page.get_by_label("Message").fill("Hello?")
    await window.page.get_by_role("button", name="Send").click()
    await result(window).get_by_role("alert").get_by_text("See Advanced.").wait_for()
    assert await window.page.get_by_label("Has to end within").is_visible()
    await context.close()


async def test_items_of_a_list_are_numbered_as_they_stand(reader: Window, place: Place, writer: PlayedDirector) -> None:
    await reader.page.goto(f"{place.url}/#/models/{WRITER}")
    add = reader.page.get_by_role("button", name="Add to Tags")
    await add.click()
    await add.click()
    await reader.page.get_by_role("button", name="Remove Tags 1").click()
    await add.click()
    rows = reader.page.locator("#in-tags .item")
    assert await rows.locator("label").evaluate_all("(all) => all.map((one) => one.firstChild.data)") == [
        "Tags 1",
        "Tags 2",
    ]
    removes = await rows.get_by_role("button").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
    assert removes == ["Remove Tags 1", "Remove Tags 2"]


async def test_items_that_hold_fields_are_named_by_their_new_number(reader: Window, place: Place) -> None:
    await reader.page.goto(place.url)
    found = await reader.page.evaluate(
        """async () => {
            const { schemaForm } = await import("/dashboard/schema_form.js");
            const kinds = {
                file: { items: { type: "string", format: "uri" }, default: ["a", "b"] },
                either: { items: { anyOf: [{ type: "string" }, { type: "integer" }] }, default: ["a", "b"] },
                inner: { items: { type: "array", items: { type: "integer" } }, default: [[1], [2, 3]] },
            };
            const found = {};
            for (const [kind, about] of Object.entries(kinds)) {
                const Input = { type: "object", properties: { list: { type: "array", title: "Parts", ...about } } };
                const { node } = schemaForm({ components: { schemas: { Input } } });
                node.querySelector("[aria-label='Remove Parts 1']").click();
                const named = [...node.querySelectorAll(".item [aria-label]")].map((one) => one.ariaLabel);
                const labels = [...node.querySelectorAll(".item label, .item legend")];
                found[kind] = [...named, ...labels.map((one) => one.firstChild.data)];
            }
            return found;
        }"""
    )
    inner = ["Parts 1", "Parts 1 1", "Parts 1 2"]
    assert found == {
        "file": ["A file for Parts 1", "Parts 1, as an address", "Remove Parts 1", "Parts 1"],
        "either": ["Kind of Parts 1", "Remove Parts 1", "Parts 1", "Parts 1, as text"],
        "inner": ["Remove Parts 1 1", "Remove Parts 1 2", "Add to Parts 1", "Remove Parts 1", *inner],
    }


async def test_large_picture_closes_beside_its_dialog_and_not_within(reader: Window, place: Place) -> None:
    await reader.page.goto(place.url)
    await reader.page.get_by_role("button", name="Log out").wait_for()
    await reader.page.evaluate(
        """async (pixel) => {
            const { OutputArea } = await import("/dashboard/output.js");
            const area = new OutputArea();
            document.getElementById("main").replaceChildren(area.node);
            area.add(pixel);
            area.node.querySelector(".picture").click();
        }""",
        PIXEL,
    )
    large = reader.page.get_by_role("dialog")
    box = await large.bounding_box()
    picture = await large.locator("img").bounding_box()
    assert box is not None
    assert picture is not None
    assert picture["x"] > box["x"] + 30, "the picture is narrow"
    await reader.page.mouse.click(box["x"] + 20, picture["y"])
    await reader.page.mouse.click(box["x"] + 4, box["y"] + 4)
    assert await large.count() == 1
    await reader.page.mouse.click(box["x"] - 20, box["y"])
    await large.wait_for(state="detached")
    assert reader.faults == []
