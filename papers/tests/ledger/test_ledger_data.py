"""The ledger's data: what is refused, and that every claim has a test or a reason."""

import inspect
import runpy

import pytest

from whence.errors import WhenceError
from whence_papers import FOLDER
from whence_papers.ledger import load_sources
from whence_papers.ledger.computations import COMPUTATIONS
from whence_papers.ledger.evidence import KNOWN_NAMES
from whence_papers.ledger.trained_models import MEASUREMENTS

SOURCES = load_sources(FOLDER / "claims", KNOWN_NAMES)
CLAIMS = [claim for source in SOURCES for claim in source.claims]

GOOD = """
number = "900"
title = "A made-up source"
kind = "test"

[[claim]]
id = "made-sum"
claim = "Two and two are four."
quote = "Zwei und zwei sind vier."
where = "1"
how = "By adding."
compute = "product"
arguments = { factors = [2, 2] }
checks = [{ figure = "product", equals = "4" }]
"""


def ledger(folder, text):
    (folder / "made.toml").write_text(text)
    return load_sources(folder, KNOWN_NAMES)


def test_a_good_one(tmp_path):
    (source,) = ledger(tmp_path, GOOD)
    (claim,) = source.claims
    assert (claim.id, claim.method, claim.by, claim.checks[0].number, claim.checks[0].within) == (
        "made-sum", "compute", "product", 4.0, pytest.approx(0.5),
    )  # fmt: skip


@pytest.mark.parametrize(
    "old, new, expected_text",
    [
        ('title = "A made-up source"', "", "title = None"),
        ('kind = "test"', 'kind = "test"\ncolour = "red"', "an entry 'colour'"),
        ('id = "made-sum"', 'id = "other-sum"', "other-sum, got id = 'other-sum'"),
        ('where = "1"\n', "", "made-sum, got where = None"),
        ('quote = "Zwei und zwei sind vier."\n', "", "made-sum, got quote = None"),
        ("Zwei und zwei sind vier.", "vier" * 61, "made-sum, got a quote of 244 characters, but a quote has 4 to 240"),
        ('where = "1"', 'where = "1"\nrepository = "owner/name"', "made-sum, got repository = 'owner/name'"),
        ('where = "1"', 'where = "1"\nimplied = "yes"', "implied or by_definition of the wrong type"),
        ('compute = "product"', 'compute = "magic"', "made-sum, got compute = 'magic'"),
        ('compute = "product"', 'compute = "product"\nuntestable = "no"', "made-sum, got compute, untestable"),
        ('compute = "product"\n', "", "made-sum, got no method"),
        ("checks =", "check =", "made-sum, got an entry 'check'"),
        ('checks = [{ figure = "product", equals = "4" }]', "", "made-sum, got compute with 0 checks"),
        ('equals = "4"', 'equals = "four"', "'equals': 'four'"),
        ('equals = "4"', "equals = 4", "'equals': 4"),
        ('equals = "4"', 'equals = "4", below = "5"', "'below': '5'"),
        ('equals = "4"', 'below = "4", within = "1"', "'within': '1'"),
        ('equals = "4"', 'equals = "nan"', "'equals': 'nan'"),
        ("arguments = { factors", "arguments = { factors = [1]\nfactors", "valid TOML"),
        ("[[claim]]", "[[claims]]", "an entry 'claims'"),
    ],
)
def test_bad_data_is_one_sentence_with_file_and_id(tmp_path, old, new, expected_text):
    assert old in GOOD
    with pytest.raises(WhenceError) as refused:
        ledger(tmp_path, GOOD.replace(old, new))
    message = str(refused.value)
    assert message.startswith("claims/made.toml") and expected_text in message, message


def test_a_repository_has_a_commit_or_says_that_it_is_unknown(tmp_path):
    for commit in ("0123456789" * 4, "commit not recorded"):
        line = f'repository = "owner/name @ {commit}: docs/a.md"'
        (source,) = ledger(tmp_path, GOOD.replace('where = "1"', f'where = "1"\n{line}'))
        assert commit in source.claims[0].repository


def test_an_implied_claim_is_our_reading(tmp_path):
    (source,) = ledger(tmp_path, GOOD.replace('where = "1"', 'where = "1"\nimplied = true'))
    assert source.claims[0].statement == "Our reading: two and two are four."


def test_every_claim_quotes_its_source():
    for claim in CLAIMS:
        assert any(letter.isalnum() for letter in claim.quote) and not claim.claim.startswith("Implied"), claim.id
        if "ablation" in claim.where or "program" in claim.where or "report of" in claim.where:
            assert claim.repository, f"{claim.id}: what rests on a repository names it"


def test_an_id_twice_and_an_empty_folder(tmp_path):
    with pytest.raises(WhenceError, match="made-sum, got a duplicate id"):
        ledger(tmp_path, GOOD + GOOD.partition("\n\n")[2])
    with pytest.raises(WhenceError, match=r"no \.toml file"):
        load_sources(tmp_path / "nowhere", KNOWN_NAMES)


def test_the_five_sources_are_there():
    assert [source.number for source in SOURCES] == ["000", "001", "002", "003", "004"]
    assert min(len(source.claims) for source in SOURCES) >= 9 and len(CLAIMS) > 150


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_claim_has_a_test_or_a_reason(source):
    for claim in source.claims:
        assert claim.method in ("compute", "read", "untestable", "waits_for")
        assert bool(claim.checks) == (claim.method in ("compute", "read")), claim.id
        assert len(claim.by) > 3 and len(claim.how) > 10, claim.id


def test_every_computation_is_used():
    used = {claim.by for claim in CLAIMS if claim.method == "compute"}
    helpers = {"multiplications"}  # through equal_widths
    assert set(COMPUTATIONS) - helpers <= used and set(MEASUREMENTS) <= used


def test_only_what_is_not_built_yet_waits_without_a_reading():
    by_source = {source.name: [c for c in source.claims if c.method == "waits_for"] for source in SOURCES}
    # what is open there waits for a run and nothing else
    assert not by_source["speeches"] and not by_source["epar"] and not by_source["pointer"]


def test_the_studies_that_are_read_are_there_with_their_arms():
    """The ledger names studies, arms and questions that the folder of studies has."""
    known = {}
    for path in (FOLDER / "studies").rglob("*.py"):
        module = runpy.run_path(str(path))
        studies = module.get("studies", list)  # experiments have none
        scaled = studies is not list and "scale" in inspect.signature(studies).parameters
        for study in (*studies("cpu"), *studies("gpu")) if scaled else studies():
            known[study.name] = study
        known |= {study.name: study for data in module.get("DATA", ()) for study in studies(data=data)}
    for claim in CLAIMS:
        if "study" not in claim.arguments:
            continue
        study = known[claim.arguments["study"]]
        arms = {claim.arguments[key] for key in ("arm", "baseline") if key in claim.arguments}
        arms |= {name for key in ("arms", "others") for name in claim.arguments.get(key, ())}
        if claim.by != "between_splits":
            assert arms <= {arm.name for arm in study.arms}, claim.id
        assert claim.arguments.get("question", study.question) == study.question, claim.id
