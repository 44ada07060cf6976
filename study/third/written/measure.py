"""What the models of cells write in the language that was added, for readers.

    python -m study.third.written.measure FOLDER [WORD…]

FOLDER is that of cells.py. Adds to FOLDER/written.jsonl what is missing there, for "untouched" and
each cell (with words, for those whose names have one): the likeliest 40 tokens after some openings
and questions, and bytes a second.
"""

import sys
from pathlib import Path

from ds_minimodel.artifacts.base import module_of
from ds_minimodel.extend.generations import continued, settings_of
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.ops.gpu import device
from study.third.cells import read
from study.third.chats import add, answered, models

OPENINGS = {
    "de": ("Um eine Datei zu öffnen,", "Das Wetter in Berlin ist heute", "In der Küche stehen"),
    "el": ("Για να ανοίξετε ένα αρχείο,", "Ο καιρός στην Αθήνα σήμερα", "Στην κουζίνα υπάρχουν"),
    "tr": ("Bir dosyayı açmak için", "Bugün Ankara'da hava", "Mutfakta"),
}
QUESTIONS = {
    "de": ("Was ist die Hauptstadt von Frankreich?", "Nenne drei Farben."),
    "el": ("Ποια είναι η πρωτεύουσα της Γαλλίας;", "Πες τρία χρώματα."),
    "tr": ("Fransa'nın başkenti neresidir?", "Üç renk söyle."),
}


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    languages = {
        row["cell"]: [row["language"]]
        for row in read(folder / "results.jsonl")
        if "language" in row
    }
    for cell, model in models(folder, list(languages), words, folder / "written.jsonl"):
        rows = []
        for language in languages.get(cell, OPENINGS):
            module, openings = module_of(str(model)).to(device()), OPENINGS[language]
            texts, speed = continued(module, tokenizer_of(model), openings, settings_of(module))
            row = {"cell": cell, "language": language, "bytes_per_second": speed}
            row["answers"] = answered(model, QUESTIONS[language])
            rows.append(row | {"continued": dict(zip(openings, texts, strict=True))})
        add(rows, folder / "written.jsonl")


if __name__ == "__main__":
    main()
