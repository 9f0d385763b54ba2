"""A person at the Temporal UI: starts a run, pauses and resumes it, reads it, downloads its history."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import UNITTEST, Rig, _rig
from playwright.async_api import FrameLocator, Page, async_playwright, expect

from cli.replay import load_history, replay_history
from system.devserver import DevServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install it: sh tests/install_browser.sh"),
    pytest.mark.timeout(400),
]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000
RIGHT = """\
def mean(values):
    if not values:
        raise ValueError("mean of no values")
    return sum(values) / len(values)
"""
GAPS = """
table => [...table.rows].flatMap(row => [...row.cells].slice(1).map((cell, i) => {
    const text = document.createRange();
    const node = row.cells[i].lastChild;
    if (!node) return 99;
    text.setStart(node, 0);
    text.setEnd(node, node.data.trimEnd().length);
    return cell.getBoundingClientRect().left - text.getBoundingClientRect().right;
}))
"""
"""Space between the end of each cell's words and the next cell, in pixels."""


@dataclass(frozen=True)
class Ui:
    """The pages of one server's UI, driven by what stands on them."""

    page: Page
    url: str

    async def start(self, workflow_id: str, queue: str, flow_input: dict[str, Any], **said: str) -> None:
        """Fill in and send the form Start Workflow; ``said`` are its Summary and Details."""
        page = self.page
        await page.goto(f"{self.url}/namespaces/default/workflows")
        await page.get_by_text("Start Workflow", exact=True).first.click()
        await page.get_by_label("Workflow ID").fill(workflow_id)
        await page.get_by_label("Task Queue").fill(queue)
        await page.get_by_label("Workflow Type").fill("Flow")
        await page.get_by_role("textbox", name="Data").click()
        await page.keyboard.insert_text(json.dumps(flow_input, indent=2))
        # leaving the box lays its text out anew, which moves what is below it
        await page.get_by_role("heading", name="Start Workflow").click()
        await page.get_by_role("button", name="More options").click()
        boxes = page.locator(".cm-content[data-language=markdown]")
        for box, text in enumerate((said["summary"], said["details"])):
            await boxes.nth(box).click()
            await page.keyboard.insert_text(text)
        await page.get_by_role("button", name="Start Workflow").last.click()
        await page.get_by_role("link", name="Workflow started successfully").click()
        await expect(page.get_by_role("heading", name=workflow_id)).to_be_visible()

    async def signal(self, name: str) -> None:
        """Send a signal by its name alone: the box for its input stays empty."""
        page = self.page
        await page.get_by_role("button", name="More Actions").click()
        await page.get_by_role("menuitem", name="Send a Signal").filter(visible=True).first.click()
        dialog = page.get_by_role("dialog").filter(visible=True)
        await dialog.get_by_role("button", name="Select a signal").click()
        await dialog.get_by_role("option").filter(has_text=re.compile(rf"^\s*{name}\b")).click()
        await dialog.get_by_role("button", name="Submit").click()
        await expect(page.get_by_text("Workflow signaled.").last).to_be_visible()

    async def tab(self, name: str) -> None:
        """Open a tab of the run's page."""
        tab = self.page.get_by_role("tab", name=name)
        await tab.click()
        await expect(tab).to_have_attribute("aria-selected", "true")

    def box(self, heading: str) -> FrameLocator:
        """Return a box of the tab User Metadata; the UI lays out Markdown in a frame of its own."""
        number = ("Summary", "Details", "Current Details").index(heading)
        return self.page.locator("main iframe").nth(number).content_frame

    async def details(self) -> dict[str, list[str]]:
        """Return the rows of the details table by their first cell, as a person reads them, freshly asked for."""
        await self.page.reload()
        table = self.box("Current Details").get_by_role("table")
        await expect(table).to_be_visible()
        rows = [await row.locator("th, td").all_inner_texts() for row in await table.get_by_role("row").all()]
        gaps = await table.evaluate(GAPS)
        assert min(gaps) >= 6, f"the table's columns run into each other: {gaps}"
        cells = [[" ".join(cell.split()) for cell in row] for row in rows]
        return {row[0]: row[1:] for row in cells}

    async def download(self, path: Path) -> Path:
        """Download the history with the dialog's own choices."""
        page = self.page
        await page.get_by_role("button", name="Download").first.click()
        dialog = page.get_by_role("dialog").filter(visible=True)
        async with page.expect_download() as started:
            await dialog.get_by_role("button", name="Download").click()
        await (await started.value).save_as(path)
        return path


@pytest.fixture
async def ui_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig with one worker on a server that serves its UI."""
    with DevServer.start(db=tmp_path / "ui-temporal.sqlite", ui=True) as server:
        rig = await _rig(server, tmp_path, "stepwise")
        rig.worker()
        try:
            yield rig
        finally:
            rig.kill_all()


@pytest.fixture
async def ui(ui_rig: Rig) -> AsyncIterator[Ui]:
    """The rig's UI in a headless browser that reaches nothing but it."""
    url = ui_rig.server.ui_url
    assert url is not None
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1400, "height": 1100}, accept_downloads=True)
        await page.route(lambda to: not to.startswith(url), lambda route: route.abort())
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield Ui(page, url)
        await browser.close()


def scenario(hold: Path) -> str:
    """Return a script for ``fix``: a first try that waits for the file ``hold`` and is wrong, a second that is right."""
    first = [
        {"do": "wait_for_file", "path": str(hold)},
        {"do": "edit", "path": "calc/stats.py", "replace": "values[1:]", "with": "values"},
    ]
    second = [{"do": "edit", "path": "calc/stats.py", "content": RIGHT}]
    turns = [{"work": work} for work in (first, second)]
    return json.dumps({"version": 1, "steps": {"implement": {"turns": turns}}})


async def test_a_run_is_started_steered_read_and_replayed_from_the_temporal_ui(
    ui: Ui, ui_rig: Rig, demo_repo: Path, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    await ui.start(
        "from-the-ui",
        ui_rig.task_queue,
        {
            "flow": "fix",
            "repo": str(demo_repo),
            "task": "mean() is wrong: the tests fail.",
            "params": {"test": UNITTEST},
            "transport": "stub",
            "scenario": {"name": "ui.yaml", "text": scenario(hold)},
        },
        summary="fix: mean() is wrong",
        details="Asked for by *support*.",
    )
    page = ui.page
    await expect(page.get_by_text("work • implement (iteration 1)")).to_be_visible()

    await ui.signal("pause")
    await ui_rig.until("from-the-ui", lambda status: bool(status["pause_requested"]))
    await ui.tab("User Metadata")
    assert (await ui.details())["implement"] == ["work (iteration 1)", "", "1", ""]
    now = ui.box("Current Details")
    await expect(now.get_by_text("will pause at the next phase boundary")).to_be_visible()

    hold.touch()
    await ui_rig.until("from-the-ui", lambda status: status["state"] == "waiting")
    assert (await ui.details())["implement"] == ["waits after work (iteration 1)", "", "1", ""]
    await expect(ui.box("Summary").get_by_text("fix: mean() is wrong")).to_be_visible()
    await expect(ui.box("Details").locator("em", has_text="support")).to_be_visible()
    commands = now.locator("pre", has_text="temporal workflow update execute")
    next_command = "temporal workflow update execute \\ --workflow-id from-the-ui --name resume"
    await expect(commands).to_contain_text(next_command)
    assert await commands.evaluate("box => box.scrollWidth <= box.clientWidth"), "a command is cut off"

    await ui.signal("resume")
    assert (await ui_rig.result("from-the-ui")).outcome == "verified"
    assert await ui.details() == {
        "step": ["now", "status", "visits", "gates"],
        "implement": ["", "VERIFIED", "2", "tests ✓"],
        "review": ["", "UNVERIFIED", "1", "none"],
        "finish": ["", "UNVERIFIED", "1", "none"],
    }
    await expect(now.get_by_text("Last decision: finish #1 terminate")).to_be_visible()

    await ui.tab("Timeline")
    await expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    for label in (
        "acquire_workspace • acquire the workspace",
        "measure • implement (iteration 2)",
        "work • review (iteration 1)",
        "finalize • finish (iteration 1)",
    ):
        await expect(page.get_by_text(label, exact=True)).to_be_visible()
    await ui.tab("Search Attributes")
    await expect(page.get_by_text('"StepwiseState": "verified"')).to_be_visible()

    await ui.tab("Event History")
    report = await replay_history(load_history(await ui.download(tmp_path / "downloaded.json")))
    assert (report.failure, report.workflow_id) == (None, "from-the-ui")
    routes = [one["outcome"]["decision"] for one in report.decisions]
    assert routes == ["loop", "advance", "advance", "terminate"]


async def test_the_temporal_ui_says_at_once_why_a_run_failed(ui: Ui, ui_rig: Rig, demo_repo: Path) -> None:
    ui_rig.start(
        "unverified-run",
        {
            "flow": "direct",
            "repo": str(demo_repo),
            "task": "Mend mean().",
            "params": {"test": UNITTEST},
            "transport": "stub",
            "scenario": "noop",
        },
    )
    assert (await ui_rig.result("unverified-run")).outcome == "unverified"
    await ui.page.goto(f"{ui.url}/namespaces/default/workflows/unverified-run")
    shown = ui.page.locator(".cm-content", has_text="workflowExecutionFailedEventAttributes")
    await expect(shown).to_contain_text("unverified: failed on the final tree: implement/tests")
    await expect(shown).to_contain_text('"outcome": "unverified"')
    await expect(shown).not_to_contain_text("stackTrace")
