"""What the tests of `extend` share: they stand on the pipeline's world in miniature."""

from ..hf.conftest import text_file  # noqa: F401
from ..pipeline.conftest import ready_for_cpu  # noqa: F401  (autouse)
