"""Folders below a recipe's workdir."""

from pathlib import Path

from ds_minimodel.config.systems import System

CORPUS = "corpus"
TOKENIZER = "tokenizer"
TOKENS = "tokens"
PRETRAIN = "pretrain"
BUILD_MINI = "build-mini"
ADAPT = "adapt"
FINETUNE = "finetune"
EVALUATE = "evaluate"
# Folders of jobs; the report has no record.
STEP_FOLDERS = (CORPUS, TOKENIZER, TOKENS, PRETRAIN, BUILD_MINI, ADAPT, FINETUNE, EVALUATE)
REPORT = "report"
# It stands in the place of a language's name: no language is called so.
OWN_REPLAY = "self-replay"


# In the folder of `extend`, above the workdir: what was asked for, what is made of it, its lock.
CALL = "call.json"
RECIPE = "recipe.yaml"
LOCK = ".lock"


class WorkdirLayout:
    """Folders below the recipe's workdir."""

    def __init__(self, workdir: str | Path) -> None:
        self.root = Path(workdir)

    @property
    def lock(self) -> Path:
        """File that a process locks while it makes anything here."""
        return self.root / LOCK

    def corpus(self, language: str) -> Path:
        """Text of a language."""
        return self.root / CORPUS / language

    def pairs(self, language: str) -> Path:
        """Pairs of texts in a target language and the source."""
        return self.root / CORPUS / f"pairs-{language}"

    def tokenizer(self, language: str) -> Path:
        """Vocabulary of a language."""
        return self.root / TOKENIZER / language

    def tokens(self, language: str) -> Path:
        """Token store of a language's text, or of the lines of its pairs."""
        return self.root / TOKENS / language

    def own_replay(self) -> Path:
        """Token store of self-generated replay."""
        return self.root / TOKENS / OWN_REPLAY

    def chats(self, language: str) -> Path:
        """Token store of dialogues by which a target language's model learns to answer."""
        return self.root / TOKENS / f"chats-{language}"

    def targets(self, language: str) -> Path:
        """Vectors that the untouched model has for the source's side of the lines in `tokens`."""
        return self.root / PRETRAIN / f"targets-{language}"

    def pretrain(self, system: System) -> Path:
        """Folder of the job of the model that the system adapts."""
        return self.root / PRETRAIN / system.body_name

    def model(self, system: System) -> Path:
        """The model that the system adapts: its body, and the source language."""
        return self.pretrain(system) / "model"

    def build_mini(self, system: System) -> Path:
        """Folder of the job that builds a system's mini-model."""
        return self.root / BUILD_MINI / system.name

    def adapt(self, system: System, language: str) -> Path:
        """Folder of the job that adapts a system to a language."""
        return self.root / ADAPT / system.name / language

    def finetune(self, system: System, task: str, seed: int) -> Path:
        """Folder of a task model of the body that the system adapts."""
        return self.root / FINETUNE / system.body_name / task / f"seed-{seed}"

    def evaluate(self, system: System, language: str, task: str, seed: int) -> Path:
        """Folder of a system's scores on a task in a language, with the task model of a seed."""
        return self.root / EVALUATE / system.name / language / task / f"seed-{seed}"

    def kept(self, system: System, language: str) -> Path:
        """File of what a decoder can still do beside the untouched one, made by `extend`."""
        return self.root / "kept" / system.name / f"{language}.json"

    def changes(self, system: System, language: str) -> Path:
        """File of what a finished encoder gained and lost, made by `extend`."""
        return self.root / "changes" / system.name / f"{language}.json"

    def report(self) -> Path:
        """Folder of the report."""
        return self.root / REPORT


def command_of(folder: Path) -> str:
    """Return the command that makes all of the workdir in which a job's folder lies."""
    if any((parent / CALL).is_file() for parent in folder.parents):
        return "the same call of `ds-minimodel extend`"
    return "`ds-minimodel run`"
