"""What the columns of labelled tables are called: the official files' forms, and a user's own."""

from dataclasses import dataclass, field

from ds_minimodel.errors import UserError


@dataclass(frozen=True)
class Columns:
    """One form of table.

    texts: the one or two columns of text. label: the column of labels. language: the column that
    says a row's language, in files that mix them. spellings: {another spelling: label}. left_out:
    labels whose rows are no examples; no_text: texts whose rows are none. header: all columns in
    their order, for a form that is told apart by them.
    """
    texts: tuple[str, ...]
    label: str = "label"
    language: str | None = None
    spellings: dict[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    no_text: frozenset[str] = frozenset()
    header: tuple[str, ...] | None = None

    @property
    def names(self):
        """The columns that are read."""
        return [*self.texts, self.label, *([self.language] if self.language else [])]

    def fits(self, header):
        return list(self.header) == list(header) if self.header else set(self.names) <= set(header)


# XNLI's translated training files spell one label otherwise (facebookresearch/XNLI#11), and MultiNLI and
# XNLI mark pairs without a majority label "-".
_NLI = {"spellings": {"contradictory": "contradiction"}, "left_out": frozenset("-")}
SENTENCE = Columns(("text",))
PAIR = Columns(("sentence1", "sentence2"))
XNLI = Columns(("sentence1", "sentence2"), "gold_label", "language", **_NLI)
MULTINLI = Columns(("sentence1", "sentence2"), "gold_label", **_NLI)
XNLI_TRAIN = Columns(("premise", "hypo"), **_NLI)
# Pairs that were not translated are blank or "NS" (google-research-datasets/paws#4).
PAWSX = Columns(("sentence1", "sentence2"), left_out=frozenset(("", "NS")), no_text=frozenset(("", "NS")),
                header=("id", "sentence1", "sentence2", "label"))

# What the columns of each kind of task are for, and the forms that they are known in, those that say most
# first.
ROLES = {"classification": ("text",), "pair": ("sentence1", "sentence2")}
FORMS = {"classification": (SENTENCE,), "pair": (PAWSX, XNLI, MULTINLI, XNLI_TRAIN, PAIR)}


def forms_of(kind, named):
    """The forms that a task's files may have: those known, or the one that `named`, {role: column}, is."""
    if not named:
        return FORMS[kind]
    texts = tuple(named.get(role, role) for role in ROLES[kind])
    return (Columns(texts, named.get("label", "label"), named.get("language")),)


def recognise(forms, header, where):
    """The first of `forms` that a table with these columns has; UserError where it has none."""
    fitting = [form for form in forms if form.fits(header)]
    if fitting:
        return fitting[0]
    if len(forms) == 1:
        return forms[0]                     # whoever reads it names the column that is missing
    known = "; ".join(", ".join(form.names) for form in forms if not form.header)
    raise UserError(f"{where}: no known set of columns ({known}); there are: "
                    f"{', '.join(map(str, header)) or 'none'}; name them in the recipe, for example "
                    "columns: {sentence1: premise, sentence2: hypothesis, label: gold}")
