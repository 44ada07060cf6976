"""What the tests of `extend` share: they stand on the pipeline's world in miniature."""

from ..pipeline.conftest import ready_for_cpu  # noqa: F401  (autouse)
