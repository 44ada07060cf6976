"""Tensors that are read when they are asked for: safetensors' own form, and the memory of one of them."""

import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from ds_minimodel.common.errors import UserError
from ds_minimodel.foreign.lazy import Lazy, LazyTensors, open_tensors, save_tensors, shapes_of

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
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "theirs", {"format": "pt"})
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        ours = open_tensors(path, "put it back")
        assert shapes_of(ours) == shapes_of(TENSORS)
        for found in (load_file(path), dict(ours)):
            assert found.keys() == TENSORS.keys()
            assert all(found[name].equal(own) and found[name].dtype == own.dtype for name, own in TENSORS.items())


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    made = []

    def read(number):
        assert not any(one() is not None for one in made), "the one before is still there"
        tensor = torch.full((64,), float(number))
        made.append(weakref.ref(tensor))
        return tensor

    source = {f"{number}": Lazy((64,), torch.float32, lambda number=number: read(number)) for number in range(4)}
    save_tensors(tmp_path / "file", LazyTensors(source))
    assert len(made) == 4 and load_file(tmp_path / "file")["3"].eq(3).all()


def test_parts_and_changes_are_made_when_they_are_read():
    reads = []
    whole = Lazy((3, 2), torch.bfloat16, lambda: reads.append(1) or torch.arange(6.0).view(3, 2).bfloat16())
    rows = Lazy.below([whole.rows(1, 3), whole.rows(0, 1)])
    named = LazyTensors({"body.rows": rows, "body.wide": whole.map(torch.Tensor.float, torch.float32), "pack.x": whole})
    assert shapes_of(named.under("body.")) == {"rows": (3, 2), "wide": (3, 2)} and not reads
    assert named["body.rows"].tolist() == [[2, 3], [4, 5], [0, 1]] and len(reads) == 2
    assert named["body.wide"].dtype == named.entries["body.wide"].dtype == torch.float32


@pytest.mark.parametrize(
    "written, words",
    [
        ({"a": torch.tensor([1.0, torch.inf])}, "'a' holds NaN or infinite numbers; put it back"),
        ({"a": torch.tensor([1, 2])}, "'a' is of type I64, where weights are fp32, bf16 or fp16; put it back"),
    ],
)
def test_what_is_no_weight_is_refused_when_it_is_read(tmp_path, written, words):
    save_file(written | {"b": torch.ones(2)}, tmp_path / "file")
    tensors = open_tensors(tmp_path / "file", "put it back")
    assert tensors["b"].eq(1).all()
    with pytest.raises(UserError, match=words):
        tensors["a"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, None])
def test_a_damaged_file_is_refused_when_it_is_opened(tmp_path, content):
    save_file({"a": torch.ones(2)}, tmp_path / "file")
    path = tmp_path / "file"
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(UserError, match="damaged or unreadable .*; put it back") as refusal:
        open_tensors(path, "put it back")
    assert "\n" not in str(refusal.value)
