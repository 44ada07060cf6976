"""Process of the part `prepare`: it imports what preparing text needs and no more, as its memory is
measured.

python -m benchmarks.prepare_once FOLDER WORKERS
"""

import sys
from pathlib import Path

import sentencepiece

from ds_minimodel.data.prepare import StoreText, prepare
from ds_minimodel.launch.process import processes_of_mpirun
from ds_minimodel.text.reader import CHUNK_BYTES
from ds_minimodel.tokenizers.tokenizer import UNIGRAM_FILE


def main(folder: str, workers: int) -> None:
    """Prepare the text in `folder`, as each process of a way does; without workers, encode it and
    keep nothing.
    """
    text, tokenizer, out = (str(Path(folder, name)) for name in ("text.txt", "tokenizer", "store"))
    if not workers:
        model = sentencepiece.SentencePieceProcessor(model_file=str(Path(tokenizer) / UNIGRAM_FILE))
        with open(text, encoding="utf-8") as file:
            while lines := file.readlines(CHUNK_BYTES):
                model.encode([line.strip() for line in lines], num_threads=1)
    elif processes := processes_of_mpirun():
        from ds_minimodel.text.workers import MpiRanks

        ranks = MpiRanks.join(processes)
        ranks.broadcast_from_rank0(lambda: prepare(StoreText([text]), tokenizer, out, ranks=ranks))
        ranks.end()
    else:
        prepare(StoreText([text]), tokenizer, out, workers=workers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
