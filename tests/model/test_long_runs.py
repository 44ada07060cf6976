"""200 optimizer steps: what only changes rounding leaves the losses within rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 200
HERE = Path(__file__).parent


def train(everywhere):
    """Losses of step 2 (frozen body, dropout on). everywhere: no position of the last layer is skipped."""
    import torch
    from model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise, read_everywhere

    from tests.small_models import masked_lm

    model = randomise(masked_lm(body_config(dropout=0.1, attention_dropout=0.1), VOCAB_SIZE)).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("pack."))
    optimizer = torch.optim.AdamW([model.pack.tokens, model.pack.bias], lr=1e-2)
    losses = []
    for step in range(STEPS):
        batch = mlm_batch(seed=step % 20)
        count = (batch["targets"] >= 0).sum()
        loss = model(read_everywhere(batch) if everywhere else batch).sum() / count
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of_references():
    """The same by torch's operators, in a process that loads no kernels."""
    script = "import json, test_long_runs as t; print(json.dumps(t.train(False)))"
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DSMM_OPS": "reference", "PYTHONPATH": path},
    )
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def product():
    losses = train(everywhere=False)
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])  # it learns: else rounding could not show
    return losses


@pytest.mark.parametrize(
    "losses_of", [losses_of_references, lambda: train(everywhere=True)], ids=["references", "everywhere"]
)
def test_losses_over_many_steps_agree_within_rounding(product, losses_of):
    assert losses_of() == pytest.approx(product, rel=2e-4)
