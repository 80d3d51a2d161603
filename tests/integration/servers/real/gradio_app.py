"""A model behind Gradio: `python gradio_app.py PORT`."""

import sys
import time

import gradio


def up(text: str, delay: float) -> str:
    time.sleep(delay)  # the model's own time
    if text == "boom":
        raise gradio.Error("no booms here")
    return text.upper()


with gradio.Blocks() as demo:
    text, delay, said = gradio.Textbox(), gradio.Number(0), gradio.Textbox()
    gradio.Button().click(up, [text, delay], said, api_name="up")

if __name__ == "__main__":
    demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]))
