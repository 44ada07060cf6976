"""From packages to text files and tasks: `ds-minimodel fetch-sample`."""

import json
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, atomic_folder, atomic_write, read_manifest, write_json, write_manifest
from ds_minimodel.sample import descriptions, sources
from ds_minimodel.sample.corpus import merge, write_text
from ds_minimodel.sample.headings import qa_and_pairs
from ds_minimodel.sample.languages import LANGUAGES
from ds_minimodel.sample.libreoffice_help import elements_of
from ds_minimodel.sample.licences import licences_page
from ds_minimodel.sample.lines import clean, same_text_key
from ds_minimodel.sample.splits import is_held_out
from ds_minimodel.sample.store import PackageStore
from ds_minimodel.sample.topic import topic_records

KIND = "sample"
SOURCE = "en"
DEFAULT_LANGUAGES = {"quickstart": ("en", "de"), "repro": ("en", "de", "es", "tr", "zh")}
PACKAGES_FOLDER = "debian-packages"


def fetch(out_folder, set_name, languages=None, log=print):
    """Write text/, tasks/, LICENSES.md and manifest.json of a set into `out_folder`; return the manifest.

    languages: codes; None: the set's own. English comes always: the tasks are trained in it. What is
    extracted from packages stays in the folder debian-packages beside `out_folder` and is used again, so
    an interrupted run goes on. A folder that has the set in these languages already is left as it is.
    UserError: unknown language or set, no apt, a package that can't be had, a folder with other contents.
    """
    out_folder = Path(out_folder)
    languages = _languages(set_name, languages)
    present = _present(out_folder, set_name)
    if present and set(languages) <= set(present["languages"]):
        log(f"{out_folder}: already there")
        return present
    store = PackageStore(out_folder.resolve().parent / PACKAGES_FOLDER, log)
    packages = sources.packages(set_name, languages)
    store.fill(packages)
    taken = {package.name: package.taken for package in packages}
    if set_name == "repro":
        store.fill_from_indexes(sources.DESCRIPTIONS, descriptions.extract, sources.DESCRIPTIONS_LICENCE)
        taken[sources.DESCRIPTIONS] = "descriptions of all packages"
    names = [name for name in taken if store.has(name)]
    pages = _help_pages(store, names, languages)
    with atomic_folder(out_folder) as folder:
        facts = {
            "text": _write_corpora(folder, store, names, pages, languages, log),
            "tasks": _write_tasks(folder, set_name, pages, languages),
        }
        origin = {name: {**store.facts(name), "taken": taken[name]} for name in names}
        with atomic_write(folder / "LICENSES.md", "w") as file:
            file.write(licences_page(origin))
        versions = {name: fact["version"] for name, fact in origin.items()}
        write_manifest(folder, kind=KIND, set=set_name, languages=languages, packages=versions, **facts)
    return read_manifest(out_folder)


def _languages(set_name, languages):
    if set_name not in DEFAULT_LANGUAGES:
        raise UserError(f"set {set_name}: unknown; choose from {', '.join(DEFAULT_LANGUAGES)}")
    chosen = list(dict.fromkeys([SOURCE, *(languages or DEFAULT_LANGUAGES[set_name])]))
    for language in chosen:
        if language not in LANGUAGES:
            raise UserError(f"language {language}: not in the samples; choose from {', '.join(LANGUAGES)}")
    return chosen


def _present(out_folder, set_name):
    """Manifest of a sample that is there already, None where there is nothing; never touch anything else."""
    if not out_folder.exists() or (out_folder.is_dir() and not any(out_folder.iterdir())):
        return None
    manifest = read_manifest(out_folder) if (out_folder / MANIFEST).is_file() else {}
    if manifest.get("kind") != KIND:
        raise UserError(f"{out_folder}: holds something else than a sample; give another folder with --out")
    if manifest["set"] != set_name:
        raise UserError(
            f"{out_folder}: holds the set {manifest['set']}, not {set_name}; "
            "give another folder with --out, or delete this one"
        )
    return manifest


def _help_pages(store, names, languages):
    """{language: {page: elements}} of LibreOffice's help."""
    pages = {language: {} for language in languages}
    for name in names:
        if name.startswith(sources.HELP_PREFIX):
            for document in store.documents(name):
                pages[document["language"]][document["page"]] = elements_of(document)
    return pages


def _write_corpora(folder, store, names, pages, languages, log):
    """Write text/LANGUAGE.txt; return {language: {documents, lines, bytes}}."""
    counts, english = {}, set()
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
        documents = [
            document["lines"]
            for name in names
            for document in store.documents(name)
            if document["language"] == language
        ]
        counts[language] = write_text(
            folder / "text" / f"{language}.txt", merge(documents, english, held_out, language)
        )
        if language == SOURCE:
            english = {same_text_key(clean(line)) for lines in documents for line in lines}
    return counts


def _write_tasks(folder, set_name, pages, languages):
    """Write the tasks of a set; return {task: {split.language: number of examples}}."""
    tasks = {"topic": topic_records(pages, languages)}
    questions = {}
    if set_name == "repro":
        questions, tasks["pair"] = qa_and_pairs(pages, languages)
    counts = {task: {} for task in (*tasks, *(["qa"] if questions else []))}
    for task, splits in tasks.items():
        for (split, language), records in splits.items():
            with atomic_write(folder / "tasks" / task / f"{split}.{language}.jsonl", "w") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            counts[task][f"{split}.{language}"] = len(records)
    for (split, language), squad in questions.items():
        write_json(folder / "tasks" / "qa" / f"{split}.{language}.json", squad)
        counts["qa"][f"{split}.{language}"] = sum(
            len(paragraph["qas"]) for article in squad["data"] for paragraph in article["paragraphs"]
        )
    return counts
