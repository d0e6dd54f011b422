"""The page of releases in a real browser: it draws its first figure and lists every release."""

import pytest

from tests.browser.conftest import Browser
from tokenmill.bench.history import history_page

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes")]

RELEASES = [
    {"ref": ref, "commit": "a" * 40, "usd_per_mtok_total": usd, "usd_per_mtok_output": None,
     "output_tput_per_s": 10.0, "ttft_s_p50": None, "tpot_s_p50": 0.1}
    for ref, usd in (("v0.1.0", 1.5), ("v0.2.0", 0.75))
]  # fmt: skip


def test_history_is_drawn_and_listed(browser: Browser, tmp_path) -> None:
    path = tmp_path / "history.html"
    result = {"releases": RELEASES, "settings": {}, "environment": {}, "problems": []}
    path.write_text(history_page(result), encoding="utf-8")
    text = browser.dump(path.as_uri())
    assert 'data-drawn="usd_per_mtok_total"' in text and "<canvas" in text
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    assert body.count("<tr>") == 2 and "v0.2.0" in body and "0.75" in body
    assert "$ per million output tokens" not in text.split("<thead>")[1].split("</thead>")[0]  # nobody knows it
