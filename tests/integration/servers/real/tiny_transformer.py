"""Write a tiny language model with random weights for transformers: `python tiny_transformer.py FOLDER`. It says only
letters, and never ends by itself.
"""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", *"abcdefgh"]
CONTEXT = 16_384

torch.manual_seed(0)
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
fast.save_pretrained(sys.argv[1])

config = LlamaConfig(
    vocab_size=len(WORDS),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=CONTEXT,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
model = LlamaForCausalLM(config)
model.generation_config.suppress_tokens = [0, 1, 2]
model.save_pretrained(sys.argv[1])
