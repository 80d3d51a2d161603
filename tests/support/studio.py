"""A model that makes pictures and sound within a second, for the page that shows them."""

from typing import Any, Final

SOURCE: Final = """
    import math
    import struct
    import tempfile
    import wave
    from typing import List

    from cog import BasePredictor, Input, Path
    from PIL import Image, ImageDraw

    HUES = {"dusk": (28, 34, 92), "dawn": (226, 132, 92), "noon": (70, 150, 210), "night": (12, 18, 30)}

    def picture(prompt, light, size, number):
        top = HUES[light]
        image = Image.new("RGB", (size, size))
        draw = ImageDraw.Draw(image)
        for y in range(size):
            part = y / size
            draw.line([(0, y), (size, y)], fill=tuple(int(c + (255 - c) * part * 0.7) for c in top))
        x = int(size * (0.25 + 0.17 * number))
        draw.polygon([(x - size // 16, size), (x, size // 3), (x + size // 16, size)], fill=(240, 236, 226))
        draw.ellipse([x - 9, size // 3 - 9, x + 9, size // 3 + 9], fill=(255, 214, 102))
        for wave_ in range(6):
            y = int(size * (0.86 + 0.025 * wave_))
            draw.line([(0, y), (size, y)], fill=(30, 60 + 8 * wave_, 90 + 10 * wave_), width=3)
        path = Path(tempfile.mkdtemp()) / f"{light}-{number}.png"
        image.save(path)
        return path

    def sound():
        path = Path(tempfile.mkdtemp()) / "tone.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n / 3))) for n in range(8000)))
        return path

    class Studio(BasePredictor):
        def predict(
            self,
            prompt: str = Input(description="What to see."),
            count: int = Input(default=1, ge=1, le=4),
            size: int = Input(default=320, ge=64, le=1024),
            light: str = Input(default="dusk", choices=["dusk", "dawn", "noon", "night"]),
            with_sound: bool = Input(default=False),
            image: Path = Input(default=None),
        ) -> List[Path]:
            print(f"painting {prompt} at {light}")
            made = [picture(prompt, light, size, number) for number in range(count)]
            return [*made, sound()] if with_sound else made
"""
LIGHTS: Final = ["dusk", "dawn", "noon", "night"]
INPUT: Final[dict[str, Any]] = {
    "title": "Input",
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "prompt": {"type": "string", "title": "Prompt", "description": "What to see in the picture.", "x-order": 0},
        "count": {
            "type": "integer",
            "title": "Count",
            "description": "How many pictures to make.",
            "default": 1,
            "minimum": 1,
            "maximum": 4,
            "x-order": 1,
        },
        "size": {
            "type": "integer",
            "title": "Size",
            "description": "The side of the square, in pixels.",
            "default": 320,
            "minimum": 64,
            "maximum": 1024,
            "x-order": 2,
        },
        "light": {
            "allOf": [{"$ref": "#/components/schemas/light"}],
            "description": "The time of the day.",
            "default": "dusk",
            "x-order": 3,
        },
        "with_sound": {"type": "boolean", "title": "With Sound", "default": False, "x-order": 4},
        "image": {
            "type": "string",
            "format": "uri",
            "title": "Image",
            "description": "A picture to begin with.",
            "x-order": 5,
        },
    },
}
SCHEMA: Final[dict[str, Any]] = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {},
    "components": {
        "schemas": {
            "Input": INPUT,
            "light": {"title": "light", "description": "An enumeration.", "type": "string", "enum": LIGHTS},
            "Output": {"title": "Output", "type": "array", "items": {"type": "string", "format": "uri"}},
            "PredictionRequest": {
                "title": "PredictionRequest",
                "type": "object",
                "properties": {"input": {"$ref": "#/components/schemas/Input"}},
            },
            "PredictionResponse": {
                "title": "PredictionResponse",
                "type": "object",
                "properties": {"output": {"$ref": "#/components/schemas/Output"}},
            },
        }
    },
}
BROKEN: Final = """
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def setup(self) -> None:
            raise RuntimeError("no weights at /weights\\nlooked for /weights/model.bin\\nfound nothing")

        def predict(self, text: str) -> str:
            return text
"""

# A model that writes, with a list and an object in its input; and a text that has each kind of block
TEXT_SCHEMA: Final[dict[str, Any]] = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {"/predictions": {"post": {"x-cog-streaming": True}}},
    "components": {
        "schemas": {
            "Input": {
                "title": "Input",
                "type": "object",
                "required": ["topic"],
                "properties": {
                    "topic": {"type": "string", "title": "Topic", "x-order": 0},
                    "warmth": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.7, "x-order": 1},
                    "tags": {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 12},
                        "title": "Tags",
                        "x-order": 2,
                    },
                    "page": {
                        "type": "object",
                        "title": "Page",
                        "required": ["columns"],
                        "properties": {
                            "columns": {"type": "integer", "title": "Columns"},
                            "paper": {"enum": ["A4", "letter"], "type": "string", "title": "Paper"},
                        },
                        "x-order": 3,
                    },
                },
            },
            "Output": {
                "title": "Output",
                "type": "array",
                "items": {"type": "string"},
                "x-cog-array-type": "iterator",
                "x-cog-array-display": "concatenate",
            },
        }
    },
}
MESSAGES: Final[dict[str, Any]] = {"type": "array", "items": {"type": "object"}, "title": "Messages"}
CHAT_SCHEMA: Final[dict[str, Any]] = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {},
    "components": {
        "schemas": {
            "Input": {"title": "Input", "type": "object", "properties": {"messages": MESSAGES}},
            "Output": {"title": "Output", "type": "string"},
        }
    },
}
PIXEL: Final = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
HOSTILE: Final = f"""# A title <img src=x onerror="window.stolen=1">

<script>window.stolen = 1</script>

<iframe src="https://elsewhere.example/"></iframe>

[a link](https://elsewhere.example/page) and [a script](javascript:window.stolen=1) and
[data](data:text/html,<script>window.stolen=1</script>) and <https://elsewhere.example/auto>

![a picture](https://elsewhere.example/spy.png) ![own]({PIXEL})

| head | <b>bold</b> |
|---|---:|
| `code <i>` | 7 |

- [x] done
- [ ] to do

```html
<img src=x onerror="window.stolen=1">
```

&lt;b&gt; stays text, **this is bold** and *this is not plain*.
"""
