"""Write a Llama of random weights in bf16, with the tokenizer of another model, tensor by tensor.

    python -m benchmarks.llama OUT --tokenizer SmolLM2-135M-Instruct \
        --layers 18 --hidden 2048 --ffn 8192

The defaults are a model of 1.2 billion weights, by which memory and speed are measured where none
can be had.
"""

import argparse
import functools
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ds_minimodel.hf.lazy import Lazy, LazyTensors, save_tensors


def write_llama(out: Path, config: LlamaConfig) -> None:
    """Write config.json and weights drawn with a spread by which a deep model's logits stay
    finite.
    """
    with torch.device("meta"):
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in LlamaForCausalLM(config).named_parameters()
        }

    def drawn(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=draw).mul_(0.5 / math.sqrt(shape[1])).bfloat16()

    entries = {
        name: Lazy(
            shape,
            torch.bfloat16,
            functools.partial(drawn, name, shape, seed),
        )
        for seed, (name, shape) in enumerate(shapes.items())
    }
    out.mkdir(parents=True, exist_ok=True)
    config.dtype = torch.bfloat16
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(out)
    save_tensors(out / "model.safetensors", LazyTensors(entries))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--tokenizer", required=True, help="folder of Hugging Face's with the tokenizer"
    )
    for name, default in (
        ("layers", 18),
        ("hidden", 2048),
        ("ffn", 8192),
        ("heads", 32),
        ("key-heads", 8),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--untied", action="store_true")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    tokenizer.save_pretrained(options.out)
    write_llama(
        options.out,
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=options.hidden,
            intermediate_size=options.ffn,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=options.key_heads,
            max_position_embeddings=8192,
            tie_word_embeddings=not options.untied,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
    )


if __name__ == "__main__":
    main()
