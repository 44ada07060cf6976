"""Static vectors of pieces, trained by fastText on a token store (gensim's implementation)."""

import numpy as np

from ds_minimodel.data import EOS
from ds_minimodel.errors import UserError

MAX_TOKENS = 20_000_000              # the first of the store
# What FOCUS's published code sets; the rest is fastText's own. CBOW "is more closely aligned" with masked LM.
_SETTINGS = {"vector_size": 100, "epochs": 3, "min_count": 10, "negative": 10, "sg": 0, "window": 5,
             "alpha": 0.05, "sample": 1e-4, "min_n": 3, "max_n": 6, "bucket": 1 << 18}


def train_piece_vectors(store, tokenizer, seed):
    """A vector of each piece (V, 100) from the store's text; zero for pieces seen fewer than 10 times.

    One thread, so that the result is a function of store and seed. UserError where gensim is missing.
    """
    try:
        from gensim.models import FastText
    except ModuleNotFoundError:
        raise UserError("adapt.initialisation: focus trains its vectors with gensim, which is not installed; "
                        "pip install 'ds_minimodel[focus]', or give adapt.word_vectors") from None
    pieces = tokenizer.pieces()
    vectors = np.zeros((len(pieces), _SETTINGS["vector_size"]), np.float32)
    model = FastText(seed=seed, workers=1, **_SETTINGS)
    model.build_vocab(_Sentences(store, pieces))
    if len(model.wv):
        model.train(_Sentences(store, pieces), total_examples=model.corpus_count, epochs=model.epochs)
    for id, piece in enumerate(pieces):
        if piece in model.wv.key_to_index:
            vectors[id] = model.wv[piece]
    return vectors


class _Sentences:
    """The sentences of a store as lists of pieces, as often as they are asked for."""

    def __init__(self, store, pieces):
        self.store, self.pieces = store, pieces

    def __iter__(self):
        for number in range(self.store.num_documents):
            start, stop = self.store.document(number)
            if start >= MAX_TOKENS:
                return
            tokens = self.store.read(start, stop)
            for sentence in np.split(tokens, np.flatnonzero(tokens == EOS) + 1):
                if len(sentence) > 1:
                    yield [self.pieces[id] for id in sentence[:-1]]
