"""SentencePiece's unigram vocabularies: trained here, or XLM-R's. <mask> stands after the last piece."""

import io
import re

import sentencepiece

from ds_minimodel import files
from ds_minimodel.data import BOS, EOS, PAD, UNK
from ds_minimodel.data.reader import find_files, read_documents
from ds_minimodel.data.tokenizer import MASK, UNIGRAM_FILE, Tokenizer
from ds_minimodel.errors import UserError

_WORD_START = "▁"
_MAX_LINE_BYTES = 1 << 16            # SentencePiece leaves out longer lines; its own limit is 4192


def train_tokenizer(text, out, vocab_size, character_coverage, input_sentences):
    """Train a vocabulary of `vocab_size` ids, <mask> included, into the artifact folder `out`.

    `text` are paths or globs of raw text. At most `input_sentences` of its lines, sampled over all of
    it, are held in memory. The result is a function of the text and the arguments (SentencePiece
    samples with a fixed seed).

    Raises UserError where the text cannot fill so large a vocabulary or needs a larger one.
    """
    lines = _Lines(text)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="unigram",
            vocab_size=vocab_size - 1, character_coverage=character_coverage,
            input_sentence_size=input_sentences, shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            bos_id=BOS, pad_id=PAD, eos_id=EOS, unk_id=UNK, minloglevel=2)
    except RuntimeError as error:
        if lines.error is None:
            raise _explain(str(error), text, vocab_size) from error
    if lines.error is not None:      # SentencePiece up to 0.2.0 takes an error for the end of the text
        raise lines.error
    with files.atomic_folder(out) as folder:
        (folder / UNIGRAM_FILE).write_bytes(model.getvalue())
        files.write_manifest(folder, kind="tokenizer", vocab_size=vocab_size,
                             character_coverage=character_coverage, input_sentences=input_sentences,
                             text=[[path.name, path.stat().st_size] for path in find_files(text)])


class _Lines:
    """The lines of a text, one at a time; keeps the error that ended them, if one did."""

    def __init__(self, text):
        self._documents = read_documents(text)
        self.error = None

    def __iter__(self):
        try:
            for document in self._documents:
                for line in document:
                    yield line.replace(MASK, " ")        # so that no piece of text is spelt <mask>
        except UserError as error:
            self.error = error
            raise


def _explain(message, text, vocab_size):
    """SentencePiece's message in our terms; it does not count <mask>."""
    where = ", ".join(map(str, text))
    most = re.search(r"Vocabulary size too high .*value <= (\d+)", message)
    if most:
        return UserError(f"tokenizer.vocab_size={vocab_size}: the text ({where}) supports at most "
                         f"{int(most[1]) + 1}; lower it to that or add text")
    least = re.search(r"Vocabulary size is smaller than required_chars. \d+ vs (\d+)", message)
    if least:
        return UserError(f"tokenizer.vocab_size={vocab_size}: the text ({where}) has so many characters "
                         f"that it needs at least {int(least[1]) + 1}; raise it or lower "
                         "tokenizer.character_coverage")
    return UserError(f"{where}: SentencePiece cannot train on this text ({message})")


class UnigramTokenizer(Tokenizer):
    file_name = UNIGRAM_FILE

    def __init__(self, folder):
        super().__init__(folder)
        self._model = sentencepiece.SentencePieceProcessor(model_file=str(self.path))
        self.mask_id = self._model.get_piece_size()
        self.vocab_size = self.mask_id + 1

    def encode(self, texts):
        return self._model.encode(texts, num_threads=1)

    def encode_with_offsets(self, text):
        # SentencePiece's normalisation (NFKC, runs of white space) may change the text; its offsets are in
        # the original. A piece that is nothing but a word's start is empty.
        encoded = self._model.encode(text, return_type="offset_mapping")
        spans, offsets = [], encoded["offsets"]
        for number, (start, end) in enumerate(offsets):
            while start < end and text[start].isspace():
                start += 1
            if start == end and encoded["pieces"][number] != _WORD_START:
                end = next((later for _, later in offsets[number:] if later > start), start)
            spans.append((start, end))
        return encoded["ids"], spans

    def decode(self, ids):
        return self._model.decode([int(id) for id in ids if UNK <= id < self.mask_id])

    def pieces(self):
        return [self._model.id_to_piece(id) for id in range(self.mask_id)] + [MASK]
