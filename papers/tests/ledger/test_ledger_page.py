"""The ledger's page: it holds all claims, asks for nothing, filters by verdict and fits a phone."""

import html
from pathlib import Path

import pytest

from whence.errors import WhenceError
from whence_papers.ledger.formulas import plain_quote
from whence_papers.ledger.page import render_claims_page

CHROMIUM = Path("/usr/bin/chromium")
ABOUT = {"command": "whence claims", "when": "today", "environment": {"commit": "<none>", "source_hash": "0"}}


@pytest.fixture
def ledger(judged_ledger):
    return judged_ledger | ABOUT


def test_every_claim_stands_on_it_escaped(ledger):
    text = render_claims_page(ledger)
    for source in ledger["sources"]:
        for claim in source["claims"]:
            assert f'id="{claim["id"]}"' in text
            quote = plain_quote(claim["quote"])
            assert f"<blockquote>{html.escape(quote)}</blockquote>" in text and not set(quote) & set("\\$")
            assert not claim["repository"] or html.escape(claim["repository"]) in text
    apart = sum(ledger["identities"].values())
    assert text.count('<span class="note">by definition</span>') == apart > 20
    assert f"<b>all {sum(ledger['counts'].values()) + apart}</b>" in text
    assert "Re(f(qₘ, m)ᵀ f(kₙ, n))" in text and "|α d|ᵝ" in text and "α/(1+γ)" in text
    assert "p &lt; 0.01" in text and "&lt;none&gt;" in text and "http://" not in text and "https://" not in text
    assert text == render_claims_page(ledger)


def test_a_page_of_nothing_is_refused():
    with pytest.raises(WhenceError, match="no claims"):
        render_claims_page({"sources": []})


def test_in_a_browser(ledger, tmp_path):
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "claims.html"
    path.write_text(render_claims_page(ledger), encoding="utf-8")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        tab, wrong = browser.new_page(viewport={"width": 390, "height": 900}), []
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith(path.as_uri()) else wrong.append(request.url))
        tab.goto(f"{path.as_uri()}#epar-retention-ratio")
        assert tab.evaluate("document.getElementById('epar-retention-ratio').open")
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        tab.focus("button[data-verdict='arithmetic wrong']")
        tab.keyboard.press("Enter")
        left = tab.evaluate("[...document.querySelectorAll('.claim:not([hidden])')].map(one => one.dataset.verdict)")
        assert set(left) == {"arithmetic wrong"} and len(left) == ledger["counts"]["arithmetic wrong"]
        tab.keyboard.press("Enter")
        assert tab.evaluate("document.querySelectorAll('.claim[hidden]').length") == 0 and wrong == []
        browser.close()
