"""The live page in a real browser, over a real server: chat by keyboard, cost of each answer, figures, phone width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.fakes import FakeDispatcher, ids
from tests.api.live import LiveServer
from tests.browser.conftest import Browser
from tests.browser.devtools import Tab
from tokenmill.api.config import ApiConfig

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes")]


@pytest.fixture
def dispatcher() -> FakeDispatcher:
    fake = FakeDispatcher()
    fake.script = lambda request: ids("The mill grinds tokens. ") * 40
    return fake


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with Tab(browser.program, browser.folder) as tab:
        yield tab


def _chat(tab: Tab, text: str) -> None:
    tab.value("document.getElementById('prompt').focus()")
    tab.type(text)
    tab.press("Enter")


def test_a_conversation_by_keyboard_shows_what_each_answer_cost(
    tab: Tab, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    with LiveServer(dispatcher) as server:
        tab.size(1300, 950)
        tab.open(server.url)
        tab.wait("document.getElementById('link').textContent === 'connected'")
        tab.value("document.getElementById('max_tokens').value = 24")
        _chat(tab, "what <b>is</b> it?")
        tab.wait("document.body.dataset.answers === '1'")
        text = tab.value("document.getElementById('log').innerText")
        assert "what <b>is</b> it?" in text and "The mill grinds tokens." in text
        assert "24 tokens" in text and "$" in text and "J modelled" in text and "cut at the most tokens" in text
        tab.wait("Number(document.body.dataset.points) >= 1")
        assert tab.value("document.getElementById('tile-usd').textContent").startswith("$")
        assert tab.value("document.querySelectorAll('canvas').length") == 4
        assert tab.value("document.querySelectorAll('#workers tbody tr').length") == 1
        light = tab.screenshot(tmp_path / "live.png")
        assert light.colors().most_common(1)[0][1] < 0.99 * light.width * light.height
        tab.size(1300, 950, dark=True)
        assert sum(tab.screenshot(tmp_path / "dark.png").at(2, 2)) < 200 < sum(light.at(2, 2))


def test_stop_regenerate_and_history(tab: Tab, dispatcher: FakeDispatcher) -> None:
    dispatcher.pause_s = 0.02
    with LiveServer(dispatcher) as server:
        tab.open(server.url)
        tab.wait("document.getElementById('model').value === 'bytes'")
        _chat(tab, "go on for long")
        tab.wait("document.querySelector('.assistant .text').textContent.length > 3")
        tab.press("Escape")
        tab.wait("document.body.dataset.answers === '1'")
        assert "stopped" in tab.value("document.getElementById('log').innerText")
        tab.wait("document.querySelector('.assistant .note:last-child').textContent.startsWith('$')")  # the ledger's
        dispatcher.pause_s = 0.0
        tab.value("document.getElementById('again').click()")
        tab.wait("document.body.dataset.answers === '2'")
        assert tab.value("document.querySelectorAll('.assistant').length") == 1
        _chat(tab, "and then?")
        tab.wait("document.body.dataset.answers === '3'")
        prompt = bytes(dispatcher.seen[-1].prompt_token_ids).decode()
        assert "go on for long" in prompt and "grinds" in prompt and prompt.count("and then?") == 1
        assert dispatcher.seen[-1].session_id == dispatcher.seen[0].session_id is not None


def test_an_error_is_shown_and_the_chat_goes_on(tab: Tab, dispatcher: FakeDispatcher) -> None:
    with LiveServer(dispatcher) as server:
        tab.open(server.url)
        tab.wait("document.getElementById('model').value === 'bytes'")
        tab.value("document.getElementById('temperature').value = -1")
        _chat(tab, "too cold")
        tab.wait("document.querySelector('.error') !== null")
        assert "temperature" in tab.value("document.querySelector('.error').textContent")
        assert not tab.value("document.getElementById('send').disabled")


def test_the_page_asks_for_the_key(tab: Tab, dispatcher: FakeDispatcher) -> None:
    with LiveServer(dispatcher, ApiConfig(port=0, api_key="secret")) as server:
        tab.open(server.url)
        tab.wait("!document.getElementById('keyForm').hidden")
        tab.type("wrong")
        tab.press("Enter")
        tab.wait("document.getElementById('keyNote').textContent === 'this key is wrong'")
        tab.value("document.getElementById('key').value = ''")
        tab.type("secret")
        tab.press("Enter")
        tab.wait("document.getElementById('link').textContent === 'connected'")
        tab.wait("document.getElementById('model').value === 'bytes'")


def test_the_page_fits_a_phone(tab: Tab, dispatcher: FakeDispatcher, tmp_path: Path) -> None:
    with LiveServer(dispatcher) as server:
        tab.size(375, 800)
        tab.open(server.url)
        tab.wait("document.getElementById('link').textContent === 'connected'")
        assert tab.value("document.documentElement.scrollWidth") <= 375
        for width in (1300, 375):
            tab.size(width, 800)
            for text in ("12.5 ms / 1.25 s", "$1.25e-6", "100 / 1,000"):
                tab.value(f"document.querySelectorAll('#tiles dd').forEach((e) => {{ e.textContent = '{text}'; }})")
                fits = "[...document.querySelectorAll('#tiles dd')].every((e) => e.scrollWidth <= e.clientWidth)"
                assert tab.value(fits), (width, text)
        tab.screenshot(tmp_path / "phone.png")
