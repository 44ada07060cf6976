"""Pairs of translations: forms of files, what is left out, what is held out."""

import gzip
import itertools
import json
import struct
import time
from string import ascii_lowercase

import pytest

from ds_minimodel.text.pair_files import DIGITS
from ds_minimodel.text.pairs import Pair, PairText, normalised, read_pairs, split_pairs
from tests.helpers.refusals import refuses

EN = "The house stands at the end of a long street."
DE = "Das Haus steht am Ende einer langen Straße."
TWO = [Pair(EN, DE), Pair("House", "Haus")]
LANGUAGES = ("en", "de")

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"/><body>
<tu><prop type="x">7</prop><tuv xml:lang="DE-de"><seg>{de}</seg></tuv>
    <tuv xml:lang="en-US"><seg>{en}</seg></tuv><tuv xml:lang="fr"><seg>La maison</seg></tuv></tu>
<tu><tuv lang="en">
    <seg><bpt i="1">&lt;b&gt;</bpt>Ho<hi>use</hi><ept i="1">&lt;/b&gt;</ept></seg></tuv>
    <tuv lang="de"><seg>Haus<ph>{{0}}</ph></seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only here</seg></tuv></tu>
</body></tmx>"""
XLIFF_1 = f"""<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en-US" target-language="de" original="a" datatype="plaintext"><body>
<group><trans-unit id="1"><source>{EN}</source><target>{DE}</target></trans-unit></group>
<trans-unit id="2"><source><g id="1">House</g><x id="2"/></source><target>Haus</target></trans-unit>
<trans-unit id="3"><source>Not yet</source></trans-unit></body></file></xliff>"""
XLIFF_2 = f"""<xliff version="2.0" srcLang="en" trgLang="de-DE"
 xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="1">
<segment><source>{EN}</source><target>{DE}</target></segment>
<segment><source><pc id="1">House</pc><ph id="2"/></source><target>Haus</target></segment>
</unit></file></xliff>"""
PO = f"""msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: de_AT\\n"

msgid ""
"The house stands at the end "
"of a long street."
msgstr "{DE}"

msgid "House"
msgstr "Haus"

#, fuzzy
msgid "Door"
msgstr "Wand"

#~ msgid "Gone"
#~ msgstr "Weg"
"""


def write(path, text, encoding="utf-8"):
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def base_64(value):
    return DIGITS[value] if value < 64 else base_64(value // 64) + DIGITS[value % 64]


def dictd(folder, entries, compress=gzip.compress):
    """A dictionary of dictd: {word: the text of its entry}; the path of its index."""
    text = b""
    index = ""
    for word, entry in entries.items():
        index += f"{word}\t{base_64(len(text))}\t{base_64(len(entry.encode()))}\n"
        text += entry.encode()
    write(folder / ("words.dict.dz" if compress is gzip.compress else "words.dict"), compress(text))
    return write(folder / "words.index", index)


def stardict(folder, entries, kind="m", bits=32):
    text = b""
    index = b""
    for word, entry in entries.items():
        numbers = struct.pack(">QI" if bits == 64 else ">II", len(text), len(entry.encode()))
        index += word.encode() + b"\0" + numbers
        text += entry.encode()
    write(folder / "words.dict", text)
    write(folder / "words.idx", index)
    facts = f"version=3.0.0\nwordcount={len(entries)}\nidxfilesize={len(index)}\n"
    facts += f"bookname=b\nsametypesequence={kind}\nidxoffsetbits={bits}\n"
    return write(folder / "words.ifo", f"StarDict's dict ifo file\n{facts}")


def json_lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def parquet(path, rows):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.Table.from_pylist(rows), path)
    return path


ROWS = [{"id": "1", "de": DE, "en": EN}, {"id": "2", "de": "Haus", "en": "House"}]
AS_TEXT = {
    "plain.tsv": f"{EN}\t{DE}\nHouse\tHaus\n",
    "end.txt": f"{EN}\t{DE}\r\n\r\nHouse\tHaus",
    "header.tsv": f"id\tde-DE\ten_US\n1\t{DE}\t{EN}\n2\tHaus\tHouse\n",
    "quoted.csv": f'en,de\n"{EN}","{DE}"\nHouse,Haus\n',
    "rows.jsonl": json_lines(*ROWS),
    "inner.ndjson": json_lines(*({"translation": row, "n": 1} for row in ROWS)),
    "memory.tmx": TMX.format(encoding="utf-8", en=EN, de=DE),
    "one.xlf": XLIFF_1,
    "two.xliff": XLIFF_2,
    "catalog.po": PO,
}


@pytest.mark.parametrize("name", AS_TEXT)
def test_forms_of_files(name, tmp_path):
    (text,) = read_pairs([write(tmp_path / name, AS_TEXT[name])], LANGUAGES)
    assert text.pairs == TWO
    assert text.lines == TWO[:1]
    assert text.name == name.partition(".")[0]
    assert not text.is_dictionary


def test_compressed_files_and_other_encodings(tmp_path):
    packed = write(tmp_path / "a.tsv.gz", gzip.compress(AS_TEXT["plain.tsv"].encode()))
    wide = write(tmp_path / "b.tmx", TMX.format(encoding="utf-16", en=EN, de=DE), "utf-16")
    marked = write(tmp_path / "c.csv", AS_TEXT["quoted.csv"], "utf-8-sig")
    assert [text.pairs for text in read_pairs([packed, wide, marked], LANGUAGES)] == [TWO] * 3


@pytest.mark.parametrize("rows", [ROWS, [{"translation": row} for row in ROWS]])
def test_parquet(rows, tmp_path):
    (text,) = read_pairs([parquet(tmp_path / "rows.parquet", rows)], LANGUAGES)
    assert text.pairs == TWO


def test_columns_by_name_or_number(tmp_path):
    named = write(tmp_path / "a.csv", f"n,left,right\n1,{DE},{EN}\n2,Haus,House\n")
    assert read_pairs([named], LANGUAGES, ("right", "left"))[0].pairs == TWO
    numbered = write(tmp_path / "b.tsv", f"7\t{EN}\t8\t{DE}\n9\tHouse\t0\tHaus\n")
    assert read_pairs([numbered], LANGUAGES, ("2", "4"))[0].pairs == TWO


def test_a_compiled_catalog(tmp_path):
    polib = pytest.importorskip("polib")
    polib.pofile(str(write(tmp_path / "a.po", PO))).save_as_mofile(str(tmp_path / "a.mo"))
    (text,) = read_pairs([tmp_path / "a.mo"], LANGUAGES)
    assert sorted(text.pairs) == sorted(TWO)


ENTRIES = {
    "00databaseshort": "English-German\n",
    "house": (
        'house /haʊs/\n1. Haus [archi.], Gebäude\nsee: {home}\n  "a big house" - ein großes Haus\n'
    ),
    "door": "door\nSynonym: gate\n2) Tür\nPforte\n",
    "wall": 'wall <n>\n\nNote: built\n "within walls" - in Mauern\n',
}
TRANSLATIONS = [("house", "Haus , Gebäude"), ("a big house", "ein großes Haus"), ("door", "Tür")]
TRANSLATIONS += [("within walls", "in Mauern")]


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_dictd(compress, tmp_path):
    index = dictd(tmp_path, ENTRIES, compress)
    (text,) = read_pairs([index], LANGUAGES)
    assert text.is_dictionary
    assert not text.lines
    assert text.name == "words"
    assert text.pairs == TRANSLATIONS
    (other,) = read_pairs([next(tmp_path.glob("words.dict*"))], LANGUAGES)
    assert other.pairs == TRANSLATIONS


@pytest.mark.parametrize(("kind", "bits"), [("m", 32), ("h", 64)])
def test_stardict(kind, bits, tmp_path):
    entries = {"house": "Haus", "door": "<b>Tür</b><br/>Pforte" if kind == "h" else "Tür\nPforte"}
    path = stardict(tmp_path, entries, kind, bits)
    for name in (path, path.with_suffix(".idx")):
        (text,) = read_pairs([name], LANGUAGES)
        assert text.is_dictionary
        assert text.pairs == [("house", "Haus"), ("door", "Tür")]


@pytest.mark.parametrize("sign", ["<", "[", "{", "/", '"', "<br", "1"])
def test_an_entry_of_one_sign_takes_no_longer_than_it_is_long(sign, tmp_path):
    entries = {"house": f"x\n{sign * 200_000}\n", "door": "x\nTür <noun>\n"}
    began = time.process_time()
    (text,) = read_pairs([dictd(tmp_path, entries)], LANGUAGES)
    assert time.process_time() - began < 5  # 20 and more where each is searched to the end
    assert ("door", "Tür") in text.pairs


def test_the_direction_of_a_dictionary_is_told_by_its_words(tmp_path):
    pytest.importorskip("py3langid")
    german = "Straße Gebäude Überschrift Werkzeug Fenster schreiben zwischen öffnen".split()
    english = "street building heading toolbox window writing between opening".split()
    entries = dict(zip(german, (f"x\n{word}\n" for word in english), strict=True))
    (text,) = read_pairs([dictd(tmp_path, entries)], LANGUAGES)
    assert text.pairs == list(zip(english, german, strict=True))


def test_what_teaches_nothing_is_counted(tmp_path):
    rows = ["a  b\tc", "a b\tc ", "same\tsame", "\tx", "y\t "]
    path = write(tmp_path / "a.tsv", "\n".join(rows))
    (text,) = read_pairs([path], LANGUAGES)
    assert text.pairs == [("a b", "c")]
    assert text.counts.read == 5
    assert str(text.counts) == "2 empty on a side, 1 equal on both sides, 1 there twice"


def test_a_list_of_words_is_a_dictionary(tmp_path):
    rows = [f"word {letter}\tWort {letter}" for letter in ascii_lowercase]
    path = write(tmp_path / "a.tsv", "\n".join([*rows, f"{EN}\t{DE}"]))
    (text,) = read_pairs([path], LANGUAGES)
    assert text.is_dictionary
    assert not text.lines


def test_names_of_kinds_differ(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write(folder / "help.tsv", AS_TEXT["plain.tsv"])
    texts = read_pairs([folder / "help.tsv" for folder in folders], LANGUAGES)
    assert len({text.name for text in texts}) == 2


BOMB = """<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>
<tmx><body><tu><tuv lang="en"><seg>x &b;</seg></tuv><tuv lang="de"><seg>y</seg></tuv></tu></body>
</tmx>"""


def test_entities_are_not_resolved(tmp_path):
    secret = write(tmp_path / "secret.txt", "what nobody may read")
    outside = BOMB.replace('"aaaaaaaaaa"', f'SYSTEM "{secret.as_uri()}"')
    for text in (BOMB, outside):
        (found,) = read_pairs([write(tmp_path / "a.tmx", text)], LANGUAGES)
        assert "aaaa" not in found.pairs[0].source
        assert "nobody" not in found.pairs[0].source


BAD = {
    "gone.tsv": (None, "no such file of pairs"),
    "page.pdf": ("x", "a file of pairs is expected"),
    "noname": ("x", "a file of pairs is expected"),
    "empty.tsv": ("", "holds no pair of en and de"),
    "equal.tsv": ("a\ta\n", "left out: 1 equal on both sides"),
    "one.tsv": ("only\nonly this\n", "no columns 'en' and 'de'; there are: only"),
    "three.tsv": ("a\tb\tc\n", "no columns 'en' and 'de'; there are: a, b, c"),
    "short.tsv": ("en\tde\nonly\n", "short.tsv:2: 1 fields where the first line has 2"),
    "long.csv": ("a,b\nc,d,e\n", "long.csv:2: 3 fields where the first line has 2"),
    "quotes.csv": ('en,de\n"a,b\n', "not CSV"),
    "latin.tsv": (f"{EN}\t{DE}\n".encode("latin-1"), "not UTF-8 text"),
    "wide.tsv": (f"{EN}\t{DE}\n".encode("utf-16"), "not UTF-8 text"),
    "nul.tsv": ("a\0\tb\n", "holds a NUL character"),
    "cut.tsv.gz": (gzip.compress(b"a\tb\n" * 99)[:-9], "cannot be read"),
    "plain.tsv.gz": ("a\tb\n", "cannot be read"),
    "broken.jsonl": ('{"en": ', "broken.jsonl:1: not JSON"),
    "list.jsonl": ("[1, 2]\n", "not a JSON object"),
    "keys.jsonl": (json_lines({"en": "a", "fr": "b"}), "no columns 'en' and 'de'; there are: en"),
    "number.jsonl": (json_lines({"en": 7, "de": "b"}), "'en' is 7, not text"),
    "half.jsonl": ('{"en": "\\ud800", "de": "b"}', "half a surrogate pair"),
    "no.parquet": (b"PAR1 not", "cannot be read"),
    "text.tmx": ("no XML at all", "not XML"),
    "cut.tmx": (TMX.format(encoding="utf-8", en=EN, de=DE)[:400], "not XML"),
    "other.tmx": (
        TMX.format(encoding="utf-8", en=EN, de=DE).replace("DE-de", "it").replace('"de"', '"it"'),
        "languages there: it, en-US",
    ),
    "root.tmx": ("<html/>", "no translation of en into de; languages there: none"),
    "other.xlf": (XLIFF_1.replace('="de"', '="cs"'), "languages there: en-US, cs"),
    "none.xlf": (XLIFF_1.replace(' target-language="de"', ""), "no translation of en into de"),
    "other.po": (PO.replace("de_AT", "cs"), "a catalog of cs, not of de"),
    "broken.po": ("no catalog at all\n", "not a gettext catalog"),
    "latin.po": (PO.encode("latin-1"), "not a gettext catalog"),
    "empty.po": ('msgid "a"\nmsgstr ""\n', "holds no pair"),
    "broken.mo": (b"\0" * 40, "not a gettext catalog"),
    "alone.index": ("a\tA\tB\n", "is missing, which belongs to it"),
    "alone.ifo": ("sametypesequence=m\n", "is missing, which belongs to it"),
    "alone.dict": ("text", "alone.index is missing, which belongs to it"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_file_of_pairs_gets_one_line(name, tmp_path):
    content, said = BAD[name]
    if content is not None:
        write(tmp_path / name, content)
    with refuses() as error:
        read_pairs([tmp_path / name], LANGUAGES)
    assert said in str(error.value)
    assert str(tmp_path / name.partition(".")[0]) in str(error.value)


def test_damaged_dictionaries(tmp_path):
    index = dictd(tmp_path, ENTRIES)
    for damaged, said in (
        ("house\tA\tzzzz\n", "'house' lies outside"),
        ("house\tA\n", "words.index:1: not an entry"),
        ("house\tä\tB\n", "words.index:1: not an entry"),
    ):
        with refuses(said):
            read_pairs([write(index, damaged)], LANGUAGES)
    write(tmp_path / "words.dict.dz", b"no gzip")
    with refuses("cannot be read"):
        read_pairs([index], LANGUAGES)
    path = stardict(tmp_path, {"a": "b"})
    (tmp_path / "words.dict.dz").unlink()
    write(tmp_path / "words.idx", b"a\0\0\0")
    with refuses("not a StarDict index, or cut short"):
        read_pairs([path], LANGUAGES)
    stardict(tmp_path, {"a": "b"}, "W")
    with refuses("entries of the kind 'W', not text"):
        read_pairs([path], LANGUAGES)


@pytest.mark.parametrize(
    ("columns", "said"),
    [(("en", "en"), "named for both"), (("en", "xx"), "no columns 'en' and 'xx'")],
)
def test_wrong_columns(columns, said, tmp_path):
    path = write(tmp_path / "a.csv", "en,de\na,b\n")
    with refuses(said):
        read_pairs([path], LANGUAGES, columns)
    with refuses("two languages are expected"):
        read_pairs([path], ("de", "de"))


def test_swapped_sides_are_seen(tmp_path):
    pytest.importorskip("py3langid")
    path = write(
        tmp_path / "a.tsv", f"{DE}\t{EN}\n" + "Wir schreiben heute\tWe are writing today\n"
    )
    with refuses(r"a.tsv: its sources look like de and its targets like en"):
        read_pairs([path], LANGUAGES)
    assert read_pairs([path], LANGUAGES, ("2", "1"))[0].pairs[0] == (EN, DE)


# What is held out.


def lines(count):
    names = ["".join(letters) for letters in itertools.product(ascii_lowercase, repeat=2)]
    return [
        Pair(f"this is the long line of text {name}", f"das ist die Zeile {name}")
        for name in names[:count]
    ]


def sides_of(texts):
    return {normalised(side) for text in texts for pair in text.pairs for side in pair}


def test_nothing_that_is_learned_from_shares_a_side_with_a_held_out_line():
    pairs = lines(400)
    planted = [Pair(f" {pair.source.upper()}", f"ganz anders {pair.target}") for pair in pairs]
    planted += [Pair(f"wholly else than {pair.source}", pair.target) for pair in pairs]
    entries = [Pair(f"entry {pair.target}", f"{pair.target} 7".upper()) for pair in pairs]
    numbers = [Pair(f"{pair.source} 12", f"{pair.target} 7") for pair in pairs]
    tests = [PairText("test", [Pair("THIS is the long line  of text ab", "etwas anderes")])]
    texts = [
        PairText("a", pairs),
        PairText("b", planted),
        PairText("d", entries, is_dictionary=True),
    ]
    split = split_pairs([*texts, PairText("n", numbers)], tests)
    assert len(split.held_out[0].pairs) == 40
    assert not split.held_out[2].pairs
    learned = sides_of(split.training)
    assert sides_of(split.held_out).isdisjoint(learned)
    assert normalised("this is the long line of text ab") not in learned
    for text, held, left in zip(texts, split.held_out, split.training, strict=False):
        assert {*held.pairs, *left.pairs} <= {*text.pairs}
        assert len(left.pairs) > 0.6 * len(text.pairs)


def test_what_is_held_out_depends_on_the_lines_and_the_seed_alone():
    pairs = lines(300)

    def held_out(pairs, **choice):
        return {*split_pairs([PairText("a", pairs)], **choice).held_out[0].pairs}

    held = held_out(pairs)
    assert held == held_out(pairs[::-1])
    assert len(held) == 30
    assert held_out(pairs, seed=1) != held
    assert len(held_out(pairs, limit=7)) == 7


def test_lines_that_hang_together_through_many_are_learned_from():
    common = [
        Pair(f"this is the long line of text {letter}", "gleich") for letter in ascii_lowercase
    ]
    split = split_pairs([PairText("a", [*lines(100), *common])])
    assert {*common} <= {*split.training[0].pairs}
