"""Tasks `qa` and `pair`: a heading of a help page and the one-sentence description that follows it.

qa (SQuAD 1.1): the heading is the question, the page's paragraphs around its description the context,
the description the answer. pair (like PAWS-X): does the description belong to the heading? Half of the
pairs have the description of another heading of the same context.
"""

import random
from collections import Counter

from ds_minimodel.sample.lines import same_text_key
from ds_minimodel.sample.splits import split_of, wanted_splits

MAX_SAME_HEADING = 4  # more often, and it names nothing in particular ("Options", "Example")
MIN_ANSWER_WORDS = 4
MIN_ITEMS_A_PAGE = 3
MAX_CONTEXT_WORDS = 160


def qa_and_pairs(pages, languages, source="en"):
    """({(split, language): SQuAD 1.1 data}, {(split, language): pair records}) of the pages.

    pages: {language: {page: elements}}. What is asked and how a page is cut into contexts is decided on the
    source's text, so it is the same in all languages; what is not translated is left out there.
    """
    frequency = Counter(element.text for elements in pages[source].values() for element in elements if element.heading)
    descriptions = Counter(
        same_text_key(element.extended)
        for elements in pages[source].values()
        for element in elements
        if element.key and element.extended
    )
    questions, pairs = {}, {}
    for language in languages:
        for split in wanted_splits(language, source):
            questions[split, language], pairs[split, language] = [], []
    for page, original in sorted(pages[source].items()):
        headings = _described_headings(original, frequency, descriptions)
        split = split_of(page)
        for language in languages if len(headings) >= MIN_ITEMS_A_PAGE else ():
            if (split, language) not in questions:
                continue
            paragraphs = _contexts(page, pages[language].get(page, []), original, headings)
            if paragraphs:
                questions[split, language].append({"title": page, "paragraphs": paragraphs})
                pairs[split, language].extend(_pairs(paragraphs))
    return {key: {"version": "1.1", "data": data} for key, data in questions.items()}, pairs


def _described_headings(elements, frequency, descriptions):
    """{key of a described paragraph: key of its heading} of a page in the source language.

    A description that stands in two places is left out: it could be in two splits.
    """
    own = [element for element in elements if element.key]
    found = {}
    for heading, paragraph in zip(own, own[1:]):
        if (
            heading.heading
            and not paragraph.heading
            and paragraph.extended
            and frequency[heading.text] <= MAX_SAME_HEADING
            and descriptions[same_text_key(paragraph.extended)] == 1
            and len(paragraph.extended.split()) >= MIN_ANSWER_WORDS
        ):
            found[paragraph.key] = heading.key
    return found


def _contexts(page, elements, original, headings):
    """SQuAD paragraphs {context, qas} of a page in one language, each with two questions or more."""
    source_of = {element.key: element for element in original if element.key}
    heading_text = {element.key: element.text for element in elements if element.key and element.heading}
    contexts = []
    for chunk in _chunks(elements, source_of):
        context, questions = [], []
        length = 0
        for element in chunk:
            answer = _answer(element, source_of[element.key], elements is original)
            heading = headings.get(element.key)
            if answer and heading in heading_text:
                questions.append(
                    {
                        "id": f"{page}|{element.key}",
                        "question": heading_text[heading],
                        "answers": [{"text": answer, "answer_start": length + element.text.index(answer)}],
                    }
                )
            context.append(element.text)
            length += len(element.text) + 1
        if len(questions) >= 2:
            contexts.append({"context": " ".join(context), "qas": questions})
    return contexts


def _chunks(elements, source_of):
    """Runs of whole paragraphs of at most 160 words, counted in the source's text."""
    chunk, words = [], 0
    for element in elements:
        if element.heading or element.key not in source_of:
            continue
        more = len(source_of[element.key].text.split())
        if chunk and words + more > MAX_CONTEXT_WORDS:
            yield chunk
            chunk, words = [], 0
        chunk.append(element)
        words += more
    if chunk:
        yield chunk


def _answer(element, original, is_source):
    """The description in the paragraph; None where it is not translated or not one piece of the text."""
    answer = element.extended
    if not answer or answer not in element.text or (not is_source and answer == original.extended):
        return None
    return answer


def _pairs(paragraphs):
    for paragraph in paragraphs:
        items = paragraph["qas"]
        answers = [item["answers"][0]["text"] for item in items]
        for index, item in enumerate(items):
            draw = random.Random(f"pair {item['id']}")
            others = [answer for answer in answers if answer != answers[index]]
            matches = draw.random() < 0.5 or not others
            yield {
                "sentence1": item["question"],
                "sentence2": answers[index] if matches else draw.choice(others),
                "label": "1" if matches else "0",
                "id": item["id"],
            }
