"""Print the output of a model while it is made. Needs: pip install 'replicate<2'

python stream.py [MODEL]
"""

import os
import sys

import replicate

client = replicate.Client(
    api_token=os.environ["REPLICATE_API_TOKEN"],
    base_url=os.environ.get("REPLICATE_BASE_URL", "http://127.0.0.1:8080"),
)
model = sys.argv[1] if len(sys.argv) > 1 else "example/hello"
for event in client.stream(model, input={"text": "hello", "n": 3, "delay": 0.2}):
    if event.event.value == "output":
        print(event.data, end="", flush=True)
    elif event.event.value == "error":
        sys.exit(f"The model failed: {event.data}")
