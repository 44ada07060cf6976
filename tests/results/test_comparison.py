"""Several runs side by side: what is averaged, what stays apart, and what does not compare."""

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.results.comparison import compare_runs
from ds_minimodel.results.curves import training_curves, with_language_average

from .some_runs import some_run


def finals(comparison, language="de", task="topic"):
    """{variant: last point} in one language."""
    made = with_language_average(training_curves(comparison.scores))
    return {system: curve[-1] for (system, of_task, name), curve in made.items() if (of_task, name) == (task, language)}


def test_one_run_keeps_its_names_and_seeds():
    comparison = compare_runs([some_run()])
    assert {row["system"] for row in comparison.scores} == {"bl_base", "minijoint"}
    assert {row["language"] for row in comparison.source_scores} == {"en"}
    assert comparison.facts == {"Model": "4 layers"} and not comparison.depths


def test_the_same_system_with_another_seed_is_averaged_over_all_seeds():
    comparison = compare_runs([some_run(), some_run("second", seed=2, better=4.0)])
    ends = finals(comparison)
    assert set(ends) == {"bl_base", "minijoint"}
    assert ends["bl_base"].by_seed == {(1, 1): 60.0, (1, 2): 61.0, (2, 2): 64.0, (2, 3): 65.0}
    assert ends["bl_base"].mean == pytest.approx(62.5)
    assert ends["bl_base"].std == pytest.approx((2 * (2.5**2 + 1.5**2) / 3) ** 0.5)


def test_depths_of_the_mini_model_are_variants_of_one_system():
    comparison = compare_runs(
        [
            some_run(),
            some_run("n1", systems=["minijoint"], mini={"depth": 1}),
            some_run("n3", systems=["minijoint"], mini={"depth": 3}),
        ]
    )
    assert comparison.depths == {"minijoint": {1: "minijoint N=1", 2: "minijoint", 3: "minijoint N=3"}}
    assert "mini.depth 2 → 3" in comparison.facts["n3"]
    costs = {row["system"]: row["formula_eflops"] for row in comparison.costs if row["step"] == "adapt"}
    assert costs["minijoint N=1"] < costs["minijoint"] < costs["minijoint N=3"] < costs["bl_base"]


def test_depth_does_not_concern_bl_base_and_a_repeated_seed_counts_once():
    comparison = compare_runs([some_run(), some_run("n1", mini={"depth": 1}, better=1.0)])
    assert {row["system"] for row in comparison.scores} == {"bl_base", "minijoint", "minijoint N=1"}
    assert finals(comparison)["bl_base"].by_seed == {(1, 1): 60.0, (1, 2): 61.0}
    assert "repeats BL_BASE of an earlier run" in comparison.facts["n1"]


def test_other_settings_make_another_variant_named_by_its_run():
    comparison = compare_runs([some_run(), some_run("fast", adapt={"lr": 1e-2})])
    assert set(finals(comparison)) == {"bl_base", "minijoint", "bl_base (fast)", "minijoint (fast)"}
    assert "adapt.lr 0.0007 → 0.01" in comparison.facts["fast"]
    assert not comparison.depths


def test_what_concerns_one_language_or_task_is_no_difference_to_runs_without_it():
    vectors = [
        {
            "adapt": {
                "initialisation": "wechsel",
                "word_vectors": {"en": "en.vec", language: "its.vec"},
                "dictionaries": {language: "words.txt"},
            },
            "languages": [language],
        }
        for language in ("de", "tr")
    ]
    comparison = compare_runs([some_run(**vectors[0]), some_run("more", **vectors[1], tasks=("topic", "qa"))])
    assert {row["system"] for row in comparison.scores} == {"bl_base", "minijoint"}


@pytest.mark.parametrize(
    "other, message",
    [
        ({"source": "fr"}, "source languages are fr and en"),
        ({"name": "first"}, "two runs are called first; name one of them"),
    ],
)
def test_runs_that_do_not_compare(other, message):
    with pytest.raises(UserError, match=message):
        compare_runs([some_run(), some_run(**{"name": "second", **other})])


def test_other_test_data_of_one_task_does_not_compare():
    other = some_run("second")
    other.tests["topic"]["files"]["tr"] = ["another"]
    with pytest.raises(UserError, match="second cannot be compared with first: task topic has other test data for tr"):
        compare_runs([some_run(), other])
    other.tests["topic"] |= {"metric": "F1", "files": {}}
    with pytest.raises(UserError, match="the scores of task topic are F1 and accuracy"):
        compare_runs([some_run(), other])


def test_systems_are_paired_within_their_run_by_depth_and_with_their_first_variant():
    both = ["bl_base", "minijoint"]
    runs = [
        some_run(systems=[*both, "bl_small"]),
        some_run("n1", systems=["minijoint"], mini={"depth": 1}),
        some_run("little", systems=both, data={"text of de": "2"}),
        some_run("fast", systems=["minijoint"], adapt={"lr": 1e-2}),
    ]
    comparison = compare_runs(runs)
    assert comparison.is_joint and set(comparison.pairs) == {
        ("bl_small", "bl_base"),
        ("minijoint", "bl_base"),
        ("minijoint", "bl_small"),
        ("minijoint", "minijoint N=1"),
        ("minijoint N=1", "bl_base"),
        ("minijoint (little)", "bl_base (little)"),
        ("minijoint (fast)", "bl_base"),
        ("bl_base (little)", "bl_base"),
        ("minijoint (little)", "minijoint"),
        ("minijoint (fast)", "minijoint"),
    }
    assert compare_runs([some_run(systems=["minijoint"]), some_run("n1", systems=["bl_small"])]).baseline_of == {}
