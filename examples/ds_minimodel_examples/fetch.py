"""`ds-minimodel fetch-sample`: which packages each set takes, and their text and tasks written as
files.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    MANIFEST,
    atomic_folder,
    atomic_write,
    read_manifest,
    write_json,
    write_manifest,
)
from ds_minimodel.text.chats import Dialogue
from ds_minimodel_examples.chats import dialogue_about, sections, write_chats
from ds_minimodel_examples.extractors import (
    Element,
    application_documents,
    catalogue_documents,
    description_documents,
    elements_of,
    help_documents,
    mallard_by_folder,
    man_page_documents,
    pages_and_translations,
    pages_by_folder,
    pages_in,
    sayings_in,
)
from ds_minimodel_examples.packages import Log, Package, PackageStore, licences_page
from ds_minimodel_examples.repro import (
    Item,
    Splits,
    description_items,
    help_items,
    match_and_find_records,
    section_records,
    widget_items,
)
from ds_minimodel_examples.tasks import Split, is_held_out, questions_of, topic_records
from ds_minimodel_examples.text import (
    LANGUAGES,
    Document,
    clean,
    is_text,
    merge,
    same_text_key,
    write_text,
)

HELP_PREFIX = "libreoffice-help-"
DESCRIPTIONS = "package-descriptions"  # not a package: apt's own indexes
APPLICATIONS = "application-descriptions"  # nor is this: AppStream's index
APPLICATIONS_LICENCE = (
    "each application's own for its AppStream data, which AppStream wants to be a permissive one"
)
DESCRIPTIONS_LICENCE = (
    "each package's own; translations by the Debian Description Translation Project (no licence "
    "file in the indexes)"
)
MANUAL = "manual"
CAMPAIGNS = "did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs".split()


def packages_of_set(set_name: str, languages: list[str]) -> list[Package]:
    """All packages of a set, as Debian 12 names them; those that another release lacks are left
    out.

    Of lines that are repeated the first one stays, so the best running text comes first.
    """
    chosen = list(help_packages(languages))
    if set_name == LARGE_SET:
        for language in languages:
            chosen += _manuals(language)
        chosen += _in_many_languages()
        if "en" in languages:
            chosen += _english_manuals()
    return chosen


def help_packages(languages: Iterable[str]) -> Iterator[Package]:
    """Yield the packages of LibreOffice's help: text, and all tasks."""
    for language in languages:
        suffix = "en-us" if language == "en" else LANGUAGES[language].package
        yield Package(
            HELP_PREFIX + suffix, help_documents, "help pages: text and tasks", required=True
        )


def _manuals(language: str) -> Iterator[Package]:
    """Yield the packages for one language; those that a language has not are unknown to apt and
    left out.
    """
    suffix = LANGUAGES[language].package
    short = suffix.split("-")[0]  # some packages say zh where others say zh-cn
    english = language == "en"
    tail, short_tail = ("", "") if english else (f"-{suffix}", f"-{short}")
    if language != "zh":  # that one is hardly translated, and 50 MB
        yield Package(f"gimp-help-{suffix}", pages_in("usr/share/gimp/*/help/*", language), MANUAL)
    yield Package(
        f"lilypond-doc-html{short_tail}", pages_in("usr/share/doc/lilypond/html", language), MANUAL
    )
    yield Package(
        f"debian-reference-{suffix}", pages_in("usr/share/debian-reference", language), MANUAL
    )
    yield Package(f"debian-faq{tail}", pages_in("usr/share/doc/debian/FAQ", language), MANUAL)
    yield Package(
        f"aptitude-doc-{suffix}", pages_in("usr/share/doc/aptitude/html", language), MANUAL
    )
    yield Package(
        f"developers-reference{tail}", pages_in("usr/share/developers-reference", language), MANUAL
    )
    yield Package(f"maint-guide{tail}", pages_in("usr/share/doc/maint-guide*", language), MANUAL)
    yield Package(f"manpages{short_tail}", man_page_documents, "manual pages")
    yield Package(
        "manpages-dev" if english else f"manpages-{short}-dev", man_page_documents, "manual pages"
    )
    yield Package(f"fortunes{short_tail}", sayings_in(language), "sayings")
    if not english:
        yield Package(f"libreoffice-l10n-{suffix}", catalogue_documents, "messages of the programs")


def _in_many_languages() -> Iterator[Package]:
    """Yield the packages that hold many languages, English among them."""
    yield Package("debian-handbook", pages_by_folder("usr/share/doc/debian-handbook/html"), MANUAL)
    yield Package(
        "installation-guide-amd64",
        pages_by_folder("usr/share/doc/installation-guide-amd64"),
        MANUAL,
    )
    yield Package("gnome-user-docs", mallard_by_folder, MANUAL)
    for part in ["data", *CAMPAIGNS]:
        yield Package(
            f"wesnoth-1.16-{part}", catalogue_documents, "stories and messages of the game"
        )


def _english_manuals() -> Iterator[Package]:
    yield Package("python3.11-doc", pages_in("usr/share/doc/python3.11/html", "en"), MANUAL)
    yield Package(
        "postgresql-doc-15", pages_in("usr/share/doc/postgresql-doc-15/html", "en"), MANUAL
    )
    yield Package(
        "linux-doc-6.1", pages_and_translations("usr/share/doc/linux-doc-6.1/html"), MANUAL
    )


# --- the command


KIND = "sample"
SOURCE = "en"
DEFAULT_LANGUAGES = {"quickstart": ("en", "de"), "repro": ("en", "de", "es", "tr", "zh")}
LARGE_SET = "repro"
PACKAGES_FOLDER = "debian-packages"


def fetch(
    out_folder: str | Path, set_name: str, languages: list[str] | None = None, log: Log = print
) -> dict:
    """Write a set into `out_folder`; return the manifest.

    It is text/, test/, chats/, pairs/, tasks/, LICENSES.md and manifest.json.

    languages: codes; None: the set's own. English comes always: the tasks are trained in it. What
    is extracted from packages stays in the folder debian-packages beside `out_folder` and is used
    again, so an interrupted run goes on. A folder that has the set in these languages already is
    left as it is. UserError: unknown language or set, no apt, a package that can't be had, a folder
    with other contents.
    """
    out_folder = Path(out_folder)
    languages = _languages(set_name, languages)
    present = _present(out_folder, set_name)
    if present and {f"test/{language}.txt" for language in languages} <= present["files"].keys():
        log(f"{out_folder}: already there")
        return present
    if present:  # all of it is written anew, with its other languages
        there = {
            str(path.relative_to(out_folder)) for path in out_folder.rglob("*") if path.is_file()
        }
        if others := sorted(there - present["files"].keys() - {MANIFEST}):
            raise UserError(
                f"{out_folder / others[0]}: not of the sample, which is to be written anew; move "
                "it away"
            )
        languages = [*dict.fromkeys([*languages, *present["languages"]])]
    store = PackageStore(
        out_folder.resolve().parent / PACKAGES_FOLDER, log, with_components=set_name == LARGE_SET
    )
    packages = packages_of_set(set_name, languages)
    store.fill(packages)
    taken = {package.name: package.taken for package in packages}
    if set_name == LARGE_SET:
        store.fill_from_indexes(DESCRIPTIONS, description_documents, DESCRIPTIONS_LICENCE)
        taken[DESCRIPTIONS] = "descriptions of all packages"
        store.fill_from_indexes(APPLICATIONS, application_documents, APPLICATIONS_LICENCE)
        taken[APPLICATIONS] = "descriptions of applications: tasks"
    names = [name for name in taken if store.has(name)]
    pages = _help_pages(store, names, languages)
    splits = None
    if set_name == LARGE_SET:
        splits = Splits(document["page"] for document in store.documents(APPLICATIONS))
    with atomic_folder(out_folder) as folder:
        text = _write_corpora(folder, store, names, pages, languages, splits, log)
        log("tasks")
        tasks: Tables = {"topic": topic_records(pages, languages)}
        questions: Questions = {}
        if splits:
            _add_large_tasks(tasks, questions, store, names, pages, splits)
        facts = {"text": text, "tasks": _write_tasks(folder, tasks, questions)}
        origin = {name: {**store.facts(name), "taken": taken[name]} for name in names}
        with atomic_write(folder / "LICENSES.md", "w") as file:
            file.write(licences_page(origin))
        versions = {name: fact["version"] for name, fact in origin.items()}
        write_manifest(
            folder, kind=KIND, set=set_name, languages=languages, packages=versions, **facts
        )
    return read_manifest(out_folder)


def _languages(set_name: str, languages: list[str] | None) -> list[str]:
    if set_name not in DEFAULT_LANGUAGES:
        raise UserError(f"set {set_name}: unknown; choose from {', '.join(DEFAULT_LANGUAGES)}")
    chosen = list(dict.fromkeys([SOURCE, *(languages or DEFAULT_LANGUAGES[set_name])]))
    for language in chosen:
        if language not in LANGUAGES:
            raise UserError(
                f"language {language}: not in the samples; choose from {', '.join(LANGUAGES)}"
            )
    return chosen


def _present(out_folder: Path, set_name: str) -> dict | None:
    """Manifest of a sample that is there already, None where there is nothing; never touch anything
    else.
    """
    if not out_folder.exists() or (out_folder.is_dir() and not any(out_folder.iterdir())):
        return None
    manifest = read_manifest(out_folder) if (out_folder / MANIFEST).is_file() else {}
    if manifest.get("kind") != KIND:
        raise UserError(
            f"{out_folder}: holds something else than a sample; give another folder with --out"
        )
    held = manifest["set"]
    if held != set_name:
        raise UserError(
            f"{out_folder}: holds the set {held}, not {set_name}; give another folder with --out, "
            "or delete this one"
        )
    return manifest


def _help_pages(
    store: PackageStore, names: list[str], languages: list[str]
) -> dict[str, dict[str, list[Element]]]:
    """Return {language: {page: elements}} of LibreOffice's help."""
    pages: dict[str, dict[str, list[Element]]] = {language: {} for language in languages}
    for name in names:
        if name.startswith(HELP_PREFIX):
            for document in store.documents(name):
                pages[document["language"]][document["page"]] = elements_of(document)
    return pages


def _write_corpora(
    folder: Path,
    store: PackageStore,
    names: list[str],
    pages: dict[str, dict[str, list[Element]]],
    languages: list[str],
    splits: Splits | None,
    log: Log,
) -> dict[str, dict[str, int]]:
    """Write text/LANGUAGE.txt and, of LibreOffice's help, test/LANGUAGE.txt,
    chats/LANGUAGE.jsonl and pairs/LANGUAGE.tsv; return {language: {documents, lines, bytes, chats,
    pairs}}.

    Held-out pages of LibreOffice's help are test/LANGUAGE.txt alone, and what is asked of their
    headings is chats/LANGUAGE.test.jsonl, their pairs are pairs/LANGUAGE.test.tsv. Where `splits`
    are given all pages that these hold out are left out of the text.
    """
    counts: dict[str, dict[str, int]] = {}
    english: set[str] = set()
    for language in languages:
        log(f"text: {language}")
        held_out = {
            same_text_key(text)
            for page, elements in pages[language].items()
            if is_held_out(page)
            for element in elements
            for text in (element.text, element.extended)
            if text
        }
        if splits:
            held_out |= set(_held_out_keys(store, names, language, splits))
        documents = [
            document["lines"]
            for name in names
            for document in store.documents(name)
            if document["language"] == language
        ]
        counts[language] = write_text(
            folder / "text" / f"{language}.txt", merge(documents, english, held_out, language)
        )
        tests = [
            [own.text for own in elements]
            for page, elements in pages[language].items()
            if is_held_out(page)
        ]
        write_text(folder / "test" / f"{language}.txt", merge(tests, english, set(), language))
        for name, left_out, held in (("", english | held_out, False), (".test", english, True)):
            asked = {
                page: elements
                for page, elements in pages[language].items()
                if is_held_out(page) == held
            }
            path = folder / "chats" / f"{language}{name}.jsonl"
            counts[language][f"chats{name}"] = write_chats(
                path, _dialogues(asked, left_out, language)
            )
        if language == SOURCE:
            english = {same_text_key(clean(line)) for lines in documents for line in lines}
        else:
            tested = _pairs(pages[SOURCE], pages[language], True)
            learned = _pairs(pages[SOURCE], pages[language], False)
            for text in tested:
                learned.pop(text, None)
            for name, pairs in (("", learned), (".test", tested)):
                path = folder / "pairs" / f"{language}{name}.tsv"
                counts[language][f"pairs{name}"] = _write_pairs(path, language, pairs)
    return counts


def _pairs(
    english: dict[str, list[Element]], other: dict[str, list[Element]], held: bool
) -> dict[str, str]:
    """Return {English text: translation} of the pages that are held out, or of those that are not.

    Pages pair where they have as many elements; what is not translated is left out, and of equal
    English texts the first counts.
    """
    pairs: dict[str, str] = {}
    for page in sorted(english.keys() & other.keys()):
        if is_held_out(page) == held and len(english[page]) == len(other[page]):
            for source, target in zip(english[page], other[page], strict=True):
                if source.text != target.text:
                    pairs.setdefault(source.text, target.text)
    return pairs


def _write_pairs(path: Path, language: str, pairs: dict[str, str]) -> int:
    """Write pairs as a table with a header of language codes; return how many there are."""
    with atomic_write(path, "w") as file:
        file.write(f"{SOURCE}\t{language}\n")
        for texts in pairs.items():
            file.write("\t".join(" ".join(text.split()) for text in texts) + "\n")
    return len(pairs)


def _dialogues(
    pages: dict[str, list[Element]], left_out: set[str], language: str
) -> Iterator[Dialogue | None]:
    """Yield what is asked of each heading, and the text below it; without lines whose
    `same_text_key` is left out.
    """
    for elements in pages.values():
        own = [element for element in elements if not element.embedded]
        lines = [f"# {each.text}" if each.heading else each.text for each in own]
        for heading, below in sections([lines], is_marked=True):
            if same_text_key(heading) not in left_out:
                kept = [
                    line
                    for line in below
                    if same_text_key(line) not in left_out and is_text(line, language)
                ]
                yield dialogue_about(heading, kept, language)


def _documents_of_pages(store: PackageStore, names: list[str]) -> Iterator[Document]:
    """Yield the documents that the large set's tasks are made of, or that share text with them."""
    for name in names:
        if name in (DESCRIPTIONS, APPLICATIONS) or name.startswith("libreoffice-"):
            yield from (document for document in store.documents(name) if "page" in document)


def _held_out_keys(
    store: PackageStore, names: list[str], language: str, splits: Splits
) -> Iterator[str]:
    """Yield the keys of all lines and of all texts of pairs that are on held-out pages."""
    for document in _documents_of_pages(store, names):
        if document["language"] == language and splits.is_held_out(document["page"]):
            for line in [
                *document["lines"],
                *(text for pair in document.get("pairs", ()) for text in pair),
            ]:
                yield same_text_key(clean(line))


Tables = dict[str, dict[Split, list[dict[str, str]]]]  # {task: {(split, language): records}}
Questions = dict[str, dict[Split, dict]]  # {task: {(split, language): SQuAD 1.1 data}}


def _add_large_tasks(
    tables: Tables,
    questions: Questions,
    store: PackageStore,
    names: list[str],
    pages: dict[str, dict[str, list[Element]]],
    splits: Splits,
) -> None:
    """Add the tasks of the large set: `section`, `match` and `find`."""
    descriptions: dict[str, list[Document]] = {language: [] for language in pages}
    items: dict[str, list[Item]] = {language: [] for language in pages}
    for document in _documents_of_pages(store, names):
        language = document["language"]
        if language in items and "label" in document:
            descriptions[language].append(document)
            items[language].extend(description_items(document))
        elif language in items and "pairs" in document:
            items[language].extend(widget_items(document))
    for (_, language), asked in questions_of(pages, list(pages)).items():
        items[language].extend(help_items(asked))
    tables["section"] = section_records(descriptions, splits)
    tables["match"], questions["find"] = match_and_find_records(items, splits)


def _write_tasks(folder: Path, tables: Tables, questions: Questions) -> dict[str, dict[str, int]]:
    """Write the tasks of a set; return {task: {split.language: number of examples}}."""
    counts: dict[str, dict[str, int]] = {task: {} for task in (*tables, *questions)}
    for task, splits in tables.items():
        for (split, language), records in splits.items():
            with atomic_write(folder / "tasks" / task / f"{split}.{language}.jsonl", "w") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            counts[task][f"{split}.{language}"] = len(records)
    for task, of_splits in questions.items():
        for (split, language), squad in of_splits.items():
            write_json(folder / "tasks" / task / f"{split}.{language}.json", squad)
            counts[task][f"{split}.{language}"] = sum(
                len(paragraph["qas"])
                for article in squad["data"]
                for paragraph in article["paragraphs"]
            )
    return counts
