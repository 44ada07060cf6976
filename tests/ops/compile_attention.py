"""Compile attention's Triton kernels without a GPU: `python compile_attention.py sm_80 sm_90`.

Prints a line of JSON for each architecture, kernel and width of a head: what the assembler and the code say of it.
"""

import contextlib
import io
import itertools
import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ds_minimodel.ops import attention_triton

WIDTHS = 64, 128
TYPES = {"logsumexp": "*fp32", "means": "*fp32", "lengths": "*i32", "row_keys": "*i32"}
TYPES |= {"positions": "*i64", "ranges": "*i32"}
TYPES |= {"scale": "fp32", "kept_scale": "fp32", "threshold": "i32"}


def type_of(argument, dtype):
    if argument.startswith(("num_", "query_pitch", "key_pitch", "out_pitch", "before", "after", "share")):
        return "i32"
    if argument.endswith("_step"):
        return "i32"
    return TYPES.get(argument, f"*{dtype}")


def source(kernel, blocks, width, dtype, windowed):
    """A kernel as a launch with padding and dropout makes it: pointers and pitches are multiples of 16."""
    sizes = {"WIDTH": width, "BLOCK_Q": blocks.queries, "BLOCK_K": blocks.keys, "BLOCK_D": width}
    names = kernel.arg_names
    if not windowed:  # as Triton compiles a launch with these values
        sizes |= {"positions": None, "share": 1} | ({"ranges": None} if "ranges" in names else {})
    signature = {name: "constexpr" if name in sizes else type_of(name, dtype) for name in names}
    aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or name.endswith("_pitch")]
    return ASTSource(kernel, signature, sizes, {(i,): [["tt.divisibility", 16]] for i in aligned})


def main(architectures):
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    for architecture, (name, kernel) in itertools.product(architectures, attention_triton.KERNELS.items()):
        target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
        for width, windowed in itertools.product(WIDTHS, (False, True)):
            blocks = attention_triton.blocks_of(name, width, windowed)
            log = io.StringIO()
            with contextlib.redirect_stdout(log):
                compiled = triton.compile(
                    source(kernel, blocks, width, "bf16", windowed), target, attention_triton.options_of(blocks)
                )
            ptx = compiled.asm["ptx"]
            found = {
                "architecture": architecture,
                "kernel": name,
                "width": width,
                "windowed": windowed,
                "registers": int(re.search(r"Used (\d+) registers", log.getvalue())[1]),
                "spilt": int(re.search(r"(\d+) bytes spill stores", log.getvalue())[1]),
                "shared": compiled.metadata.shared,
                "products": re.findall(r"wgmma(?=\.mma_async)|mma\.sync", ptx),
                "asynchronous": ptx.count("cp.async.cg"),
            }
            print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
