"""Tensors that are read when they are asked for: safetensors' own form, and the memory of one of
them.
"""

import weakref

import torch
from safetensors.torch import load_file, save_file

from ds_minimodel.hf.lazy import Lazy, LazyTensors, open_tensors, save_tensors, shapes_of

TENSORS = {
    "z.weight": torch.randn(3, 5),
    "a.weight": torch.randn(2, 3, 4).bfloat16(),
    "half": torch.randn(7).half(),
    "one": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "transposed": torch.randn(4, 6).T,
}


def test_files_are_safetensors(tmp_path):
    save_tensors(tmp_path / "ours", TENSORS)
    save_file(
        {name: tensor.contiguous() for name, tensor in TENSORS.items()},
        tmp_path / "theirs",
        {"format": "pt"},
    )
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        ours = open_tensors(path, "put it back")
        assert shapes_of(ours) == shapes_of(TENSORS)
        for found in (load_file(path), dict(ours)):
            assert found.keys() == TENSORS.keys()
            assert all(
                found[name].equal(tensor) and found[name].dtype == tensor.dtype
                for name, tensor in TENSORS.items()
            )


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    made = []

    def read(number):
        assert not any(one() is not None for one in made), "the one before is still there"
        tensor = torch.full((64,), float(number))
        made.append(weakref.ref(tensor))
        return tensor

    source = {
        f"{number}": Lazy((64,), torch.float32, lambda number=number: read(number))
        for number in range(4)
    }
    save_tensors(tmp_path / "file", LazyTensors(source))
    assert len(made) == 4
    assert load_file(tmp_path / "file")["3"].eq(3).all()


def test_parts_and_changes_are_made_when_they_are_read():
    reads = []
    whole = Lazy(
        (3, 2), torch.bfloat16, lambda: reads.append(1) or torch.arange(6.0).view(3, 2).bfloat16()
    )
    rows = Lazy.concat([whole.rows(1, 3), whole.rows(0, 1)])
    named = LazyTensors(
        {
            "body.rows": rows,
            "body.wide": whole.map(torch.Tensor.float, torch.float32),
            "pack.x": whole,
        }
    )
    assert shapes_of(named.under("body.")) == {"rows": (3, 2), "wide": (3, 2)}
    assert not reads
    assert named["body.rows"].tolist() == [[2, 3], [4, 5], [0, 1]]
    assert len(reads) == 2
    assert named["body.wide"].dtype == named.entries["body.wide"].dtype == torch.float32
