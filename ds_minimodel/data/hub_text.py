"""Text of data sets on a Hub of Hugging Face's, streamed by the library datasets: hf://datasets/NAME."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.hub import hub_api
from ds_minimodel.data.rows import document_of

PREFIX = "hf://"
_FORM = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^:@\s]+))?"
    r"(?::(?P<config>[\w.-]*)(?::(?P<split>[\w.-]+))?)?",
    re.ASCII,
)


class HubText(NamedTuple):
    """A data set on the Hub: hf://datasets/NAME[@REVISION][:CONFIG[:SPLIT]]."""

    name: str
    revision: str | None
    config: str | None
    split: str

    @classmethod
    def of(cls, text: str) -> Self:
        found = _FORM.fullmatch(text)
        if not found:
            raise UserError(f"{text}: not of the form hf://datasets/NAME[@REVISION][:CONFIG[:SPLIT]]")
        return cls(found["name"], found["revision"], found["config"] or None, found["split"] or "train")

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}datasets/{self.name}{revision}:{self.config or ''}:{self.split}"

    def pinned(self) -> Self:
        """The same at the commit that its revision names now."""
        with hub_api(str(self)) as (_, api):
            return self._replace(revision=api.dataset_info(self.name, revision=self.revision).sha)


def documents_of_hub(text: HubText, column: str) -> Iterator[bytes]:
    """The documents of a data set: `column` of its rows, as they are streamed."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            "data.text: datasets, which reads hf:// names, is not installed; pip install 'ds_minimodel[datasets]'"
        ) from None
    with hub_api(str(text)):
        rows: Any = datasets.load_dataset(
            text.name, text.config, split=text.split, revision=text.revision, streaming=True
        )
        for number, row in enumerate(rows, 1):
            yield document_of(row, column, f"{text}: row {number}")
