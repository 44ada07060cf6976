"""Preparing a store: what is in it, and that a kill changes no byte of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tokenizers import Tokenizer

from ds_minimodel.common.files import read_manifest
from ds_minimodel.data.prepare import StoreText, prepare
from ds_minimodel.data.store import TokenStore
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

from .conftest import content

pytestmark = pytest.mark.usefixtures("small_chunks")
EOS = 2


def test_sentences_end_in_eos_and_documents_in_one_more(reference, corpus, tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder)
    store = TokenStore(reference, tokenizer.sha256)
    assert len(content(reference)) > 3 * 3
    assert store.num_documents == len(corpus)
    for number, lines in enumerate(corpus):
        expected = [id for ids in tokenizer.encode(lines) for id in [*ids, EOS]] + [EOS]
        assert store.read(*store.document(number)).tolist() == expected


def test_bytes_without_a_piece_are_counted_whatever_number_of_tokens_they_become(
    tmp_path, tokenizer_folder
):
    """A run of unknown characters is one token; held-out documents count too."""
    known = "abc def. " * 20
    unknown = "ሰላም" * 100
    documents = (f"{'a' * number} {known}\n{unknown}" for number in range(40))
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents))
    other = shutil.copy(path, tmp_path / "other.txt")
    share = prepare(StoreText([path], held_out=[other]), tokenizer_folder, tmp_path / "store")
    facts = read_manifest(tmp_path / "store")
    assert facts["unknown_bytes"] == 80 * len(unknown.encode())
    assert share == facts["unknown_bytes"] / (2 * path.stat().st_size)


def test_a_folder_may_get_another_tokenizer(tmp_path, tokenizer_folder, byte_folder):
    (tmp_path / "text.txt").write_text("abc def.\n")
    for number, folder in enumerate((tokenizer_folder, byte_folder)):
        shutil.copytree(folder, tmp_path / "tokenizer")
        prepare(StoreText([tmp_path / "text.txt"]), tmp_path / "tokenizer", tmp_path / f"{number}")
        prepare(StoreText([tmp_path / "text.txt"]), folder, tmp_path / f"{number}-expected")
        assert content(tmp_path / f"{number}") == content(tmp_path / f"{number}-expected")
        shutil.rmtree(tmp_path / "tokenizer")


def test_a_row_comes_back_byte_for_byte_from_a_decoders_store(tmp_path, byte_folder):
    """But for line ends."""
    rows = ["# T\n\nA.\n\n- b\n    - c\n\n\n    def f():\r\n\tpass  \n", "\n x", "y"]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in rows)
    )
    prepare(
        StoreText([tmp_path / "rows.jsonl"], whole_documents=True), byte_folder, tmp_path / "store"
    )
    store = TokenStore(tmp_path / "store")
    tokenizer = Tokenizer.from_file(str(byte_folder / "tokenizer.json"))
    found = [
        tokenizer.decode(store.read(*store.document(number)))
        for number in range(store.num_documents)
    ]
    assert found == [text.replace("\r\n", "\n") for text in rows]


SCRIPT = """
import sys, time
from ds_minimodel.data import prepare
from ds_minimodel.text import reader

def slowly(*facts):
    print(*facts, flush=True)
    time.sleep(0.05)

if __name__ == "__main__":
    reader.CHUNK_BYTES = 5000
    text, tokenizer, out, workers = sys.argv[1:]
    prepare.prepare(
        prepare.StoreText([text]),
        tokenizer,
        out,
        workers=int(workers),
        shard_bytes=30_000,
        progress=slowly,
    )
"""


def test_a_killed_run_leaves_no_process_and_the_next_one_makes_the_same_bytes(
    tmp_path, text_file, tokenizer_folder, reference
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out/store"
    command = [sys.executable, script, text_file, tokenizer_folder, out, "2"]
    environment = {**os.environ, "PYTHONPATH": "."}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    for _ in range(8):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    started = time.monotonic()
    # This ends when the last process that holds the pipe has ended.
    process.stdout.read()
    assert process.wait() == -signal.SIGKILL
    assert time.monotonic() - started < 10
    assert not out.exists()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    assert content(out) == content(reference)
    assert [path.name for path in out.parent.iterdir()] == [out.name]
