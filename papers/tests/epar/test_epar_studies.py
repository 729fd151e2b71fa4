"""The studies of EPAR: the protocol is its source's, sizes are what is said of them, and seeds suffice for a claim."""

import runpy

import pytest

from whence.models import ModelSpec, build, parameter_table
from whence.position.expression import ModelDims
from whence.records import find_folders
from whence_papers import FOLDER

STUDIES = FOLDER / "studies/epar"
PROTOCOL = runpy.run_path(str(STUDIES / "protocol.py"))


@pytest.mark.parametrize("scale", ["cpu", "gpu", "source"])
def test_the_protocol_is_the_sources_at_every_scale(scale):
    books, words = PROTOCOL["studies"](scale)
    for study in (books, words):
        assert study.seeds == (42, 43, 44, 45, 46) and len(study.arms) == 7
        assert study.decision.alpha == 0.01 and study.comparisons == 6
    assert (books.task, words.task) == ("books", "wikitext2") and books.arms == words.arms
    if scale == "source":
        assert (books.model["layers"], books.model["embed_dim"], books.model["heads"]) == (12, 768, 12)
        assert PROTOCOL["SCALES"]["source"].parameters("wikitext2") == pytest.approx(110e6, rel=0.01)


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_parameters_and_tokens_are_those_that_are_stated(scale):
    size = PROTOCOL["SCALES"][scale]
    for study in PROTOCOL["studies"](scale):
        spec = ModelSpec("decoder", vocab_size=size.vocab_size(study.task), **study.model)
        assert f"{parameter_table(build(spec)).total:,} parameters" in study.about
        tokens = study.budget.steps * study.budget.batch_size * study.task_settings["context"]
        assert f"trained on {tokens:,} " in study.about
        dims = ModelDims(spec.heads, spec.effective_head_dim, spec.embed_dim, study.task_settings["context"], True)
        for arm in study.arms:
            arm.build(dims)


@pytest.mark.parametrize("name", ["when_it_helps", "recommended_parameters"])
def test_studies_are_corrected_for_all_comparisons(name):
    file = runpy.run_path(str(STUDIES / f"{name}.py"))
    studies = file["studies"]()
    first = len(file.get("FIRST", studies))
    for number, study in enumerate(studies):
        conditions = (
            studies[:first] if number < first else studies
        )  # all conditions that had been asked when it was decided
        assert study.comparisons == sum(len(one.arms) - 1 for one in conditions)


def test_added_conditions_do_not_change_the_hashes_of_the_first():
    studies = runpy.run_path(str(STUDIES / "when_it_helps.py"))["studies"]()
    folders = {folder.name for folder in find_folders(FOLDER / "results/epar_when", "study.json")}
    assert {f"{study.name}-{study.hash}" for study in studies} == folders
