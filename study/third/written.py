"""What the models of cells write in the language that was added, for readers.

    python study/third/written.py FOLDER [WORD…]

FOLDER is that of cells.py. Adds to FOLDER/written.jsonl what is missing there, for "untouched" and each cell (with
words, for those whose names have one): the likeliest 40 tokens after some openings and questions, and bytes a second.
"""

import json
import sys
from pathlib import Path

from chats import exported

from ds_minimodel.hf.samples import samples

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
    folder, out = Path(sys.argv[1]), Path(sys.argv[1]) / "written.jsonl"
    done = {json.loads(line)["cell"] for line in out.read_text("utf-8").splitlines()} if out.exists() else set()
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text("utf-8").splitlines()]
    languages = {"untouched": list(OPENINGS)} | {row["cell"]: [row["language"]] for row in rows if "language" in row}
    for cell, of_cell in languages.items():
        if cell in done or not any(word in cell for word in ("untouched", *(sys.argv[2:] or [""]))):
            continue
        with exported(folder, cell) as model:
            if model is None:
                continue
            found = {language: samples(model, OPENINGS[language], QUESTIONS[language]) for language in of_cell}
        with out.open("a", encoding="utf-8") as file:
            for language, own in found.items():
                row = {"cell": cell, "language": language, "bytes_per_second": own.bytes_per_second}
                row |= {"continued": dict(own.continued), "answers": dict(own.answers)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
