"""Write a tiny language model with random weights as GGUF: `python tiny_gguf.py FILE`. It says only a, b and c, so that
its text is valid, and never ends by itself.
"""

import sys

import gguf
import numpy as np

LETTERS = "abc"
SPECIAL = [b"<unk>", b"<s>", b"</s>"]
VOCABULARY = [*SPECIAL, *(f"<0x{byte:02X}>".encode() for byte in range(256)), *(f"▁{one}".encode() for one in LETTERS)]
UNKNOWN, CONTROL, BYTE, NORMAL = 2, 3, 6, 1
WIDTH, HIDDEN, LAYERS, HEADS = 64, 128, 2, 4
CONTEXT = 16_384

random = np.random.default_rng(0)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(HIDDEN)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_vocab_size(len(VOCABULARY))
writer.add_tokenizer_model("llama")
writer.add_token_list(VOCABULARY)
writer.add_token_scores([0.0] * len(VOCABULARY))
writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(LETTERS)])
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_unk_token_id(0)


def weights(*shape: int) -> np.ndarray:
    return (random.standard_normal(shape) * 0.05).astype(np.float32)


def keeping_first(rows: int, columns: int) -> np.ndarray:
    """Return weights that leave the first dimension of the residual stream as the embedding has it."""
    found = weights(rows, columns)
    found[0] = 0
    return found


embedding, output = weights(len(VOCABULARY), WIDTH), weights(len(VOCABULARY), WIDTH)
embedding[:, 0] = 1
output[:, 0] = -50
output[-len(LETTERS) :, 0] = 50
writer.add_tensor("token_embd.weight", embedding)
writer.add_tensor("output.weight", output)
writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
for layer in range(LAYERS):
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v"):
        writer.add_tensor(f"blk.{layer}.{name}.weight", weights(WIDTH, WIDTH))
    writer.add_tensor(f"blk.{layer}.attn_output.weight", keeping_first(WIDTH, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_gate.weight", weights(HIDDEN, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_up.weight", weights(HIDDEN, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_down.weight", keeping_first(WIDTH, HIDDEN))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
