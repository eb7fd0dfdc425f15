"""The site in a real browser, opened as files: its flows by keyboard only, no error, nothing asked of anybody."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import chromium
import pytest

from conftest import ROOT
from knowngood.project import checkout
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_pages import browser_program, site_build, site_files, site_pages
from knowngood_pages.run_commands import ImageOrigin, list_run_commands

pytestmark = pytest.mark.integration

PAGES = (
    "index",
    "matrix",
    "diagnose",
    "compatibility",
    "sizes",
    "incidents/index",
    "incidents/cuda-no-kernel-image",
)
LOG = """[rank1]: AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'
transformers==4.44.2 xtuner==0.1.23
/opt/xtuner/model/modules/dispatch/qwen2.py
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    here = checkout.Project(ROOT)
    place = tmp_path_factory.mktemp("site") / "public"
    places = site_pages.SitePlaces(program=browser_program.browser_files(ROOT / "templates/site"))
    site_files.write_site(place, site_build.build_site(here, here.evidence, load_incidents(), places).files)
    return place


@pytest.fixture(scope="module")
def address(site):
    """The site as a server shows it: browsers run no worker of a file."""
    serve = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from playwright.sync_api import sync_playwright

    program = chromium.unpack(tmp_path_factory.mktemp("chromium"))
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser):
    """A page that fails its test on any error, and on any request to another machine."""
    context = browser.new_context(viewport={"width": 360, "height": 800}, reduced_motion="reduce")
    made = context.new_page()
    wrong: list[str] = []
    made.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    own = ("file:", "data:", "http://127.0.0.1:")
    made.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    yield made
    context.close()
    assert wrong == []


def open_(page, site: Path, name: str) -> None:
    page.goto((site / f"{name}.html").as_uri())


def reach(page, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("(it) => document.activeElement?.matches(it)", selector):
            return
    raise AssertionError(f"no way to {selector} by Tab")


def choose(page, name: str, value: str) -> None:
    """Choose in a list of the form."""
    page.locator(f"#{name}").select_option(value)


def title_has(page, text: str) -> None:
    page.wait_for_function("it => document.querySelector('#answer h2')?.textContent.includes(it)", arg=text)


def test_my_image_is_found_by_keyboard(page, site):
    open_(page, site, "index")
    page.wait_for_selector("#answer article.card")
    assert page.inner_text("#answer pre").startswith("knowngood run sm90-")
    reach(page, "#gpu")
    page.keyboard.type("rtx 4090")
    title_has(page, "RTX 4090 · torch")
    assert re.match(r"predicted; seen on a CPU only, on \d+ \w+ \d{4}", page.inner_text("#answer .badge"))
    reach(page, "#attn")
    page.keyboard.press("e")
    title_has(page, "eager")
    assert "attn=eager" in page.url
    reach(page, "#driver")
    page.keyboard.type("525.60.13")
    page.wait_for_function("() => document.querySelector('#answer article .id')?.textContent.match(/-cu12\\d-/)")
    reach(page, "#answer button")


def test_the_question_is_in_the_address_and_back_works(page, site):
    page.goto((site / "index.html").as_uri() + "?gpu=V100&attn=fa2")
    title_has(page, "Nothing fits")
    choose(page, "attn", "sdpa")
    title_has(page, "V100 · torch 2.10 · SDPA")
    assert page.url.endswith("?gpu=V100&attn=sdpa")
    page.go_back()
    title_has(page, "Nothing fits")
    assert page.locator("#attn").input_value() == "fa2"
    page.reload()
    title_has(page, "Nothing fits")


def test_a_command_of_every_tool_can_be_copied_without_tls(page, site):
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    open_(page, site, "index")
    page.wait_for_selector("#answer article.card")
    page.evaluate(
        "document.addEventListener('copy', () => { globalThis.copied = String(document.activeElement.value); })"
    )
    tabs = page.locator('#answer article.card >> nth=0 >> [role="tab"]')
    assert tabs.all_inner_texts() == [item.tool for item in list_run_commands(ImageOrigin.BUILT_HERE)]
    tabs.nth(0).focus()
    for place in range(tabs.count()):
        panel = page.locator('#answer article.card >> nth=0 >> [role="tabpanel"]:visible')
        assert panel.count() == 1
        panel.locator("button").click()
        assert page.evaluate("globalThis.copied") == panel.locator("code").inner_text()
        assert "{" not in panel.locator("code").inner_text().replace("{generateName", "").replace(
            "{limits", ""
        ).replace("{nvidia.com", "")
        tabs.nth(place).focus()
        page.keyboard.press("ArrowRight")


def test_what_collides_is_said_with_the_nearest_that_works(page, site):
    open_(page, site, "index")
    page.fill("#gpu", "V100")
    choose(page, "attn", "fa2")
    title_has(page, "Nothing fits")
    assert "FlashAttention 2 with V100" in page.inner_text("#answer .badge")
    ways = page.locator("#answer .ways button").all_inner_texts()
    assert ways == ["Take SDPA (sdpa)", "Take another card: A100, A800"]
    assert "knowngood run" in page.inner_text("#answer")
    page.click("#answer .ways button")
    title_has(page, "V100 · torch 2.10 · SDPA")


def test_without_scripts_the_matrix_leads_to_a_command(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    open_(page, site, "index")
    assert "Your card" not in page.inner_text("main")
    page.click('main a[href="matrix.html"]')
    page.locator('a[href^="cells/"]').first.click()
    assert "knowngood run" in page.inner_text("main")
    context.close()


def test_a_word_of_20000_letters_wraps(page, site):
    open_(page, site, "index")
    page.fill("#gpu", "x" * 20_000)
    assert page.locator("#answer article.card").count()  # nothing is said of a name that is still being typed
    page.locator("#gpu").blur()
    page.wait_for_function("() => document.querySelector('#answer').textContent.includes('There is no GPU')")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_an_answer_takes_no_time(page, site):
    assert soonest(page, site) < 1
    page.fill("#gpu", "H100")
    page.wait_for_selector("#answer h2")
    assert answering(page, "#attn", "fa2", "#answer h2", "FlashAttention 2") < 100


def test_the_first_page_is_light_and_the_matrix_leads_to_a_run_by_keyboard(page, site):
    named = re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', (site / "index.html").read_text())
    tables = [path.stat().st_size for path in (site / "data").glob("sm_*.js")]
    assert sum((site / name).stat().st_size for name in ("index.html", *named)) + max(tables) <= 300_000
    assert soonest(page, site) < 1
    open_(page, site, "matrix")
    reach(page, "a.square")
    page.keyboard.press("Enter")
    page.wait_for_url("**/cells/*.html#*")
    assert page.locator("ol.strip li").count() > 0


def soonest(page, site: Path) -> float:
    """Seconds until the first page takes what is typed: the best of a few, since others use this machine too."""
    taken = []
    for _ in range(5):
        begin = time.monotonic()
        open_(page, site, "index")
        assert page.evaluate("document.readyState") == "complete"
        taken.append(time.monotonic() - begin)
        if taken[-1] < 1:
            break
    return min(taken)


def answering(page, choice: str, value: str, where: str, text: str) -> float:
    """Milliseconds from a choice until the answer stands in the page."""
    return page.evaluate(
        """async ([choice, value, where, text]) => {
          const field = document.querySelector(choice);
          document.querySelector(where).textContent = "";
          const begin = performance.now();
          field.value = value;
          field.dispatchEvent(new Event("input", { bubbles: true }));
          while (!document.querySelector(where)?.textContent.includes(text)) await Promise.resolve();
          document.body.getBoundingClientRect();
          return performance.now() - begin;
        }""",
        [choice, value, where, text],
    )


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_command_stands_above_the_fold_and_the_form_does_not_move(page, site, size):
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    open_(page, site, "index")
    page.wait_for_selector("#answer .run")
    form = page.locator("#find").bounding_box()
    for name, value in (
        ("card", "sm_90-aarch64"),
        ("card", "sm_70"),
        ("attn", "fa2"),
        ("attn", "sdpa-math"),
        ("card", "sm_90"),
    ):
        choose(page, name, value)
        page.wait_for_function("() => document.querySelector('#answer h2')")
        assert page.locator("#find").bounding_box() == form
    command = page.locator("#answer .run pre").first.bounding_box()
    assert command["y"] + command["height"] < height


def test_a_name_that_is_not_known_gets_the_nearest_when_it_is_left(page, site):
    open_(page, site, "index")
    page.fill("#gpu", "H1000")
    page.locator("#gpu").blur()
    page.wait_for_function("() => document.querySelector('#answer').textContent.includes('the nearest name is H100.')")
    assert "nvidia-smi --query-gpu=compute_cap" in page.inner_text("#answer")


def test_grace_machines_get_their_own_images(page, site):
    for name, image in (("NVIDIA GH200 480GB", "aarch64"), ("NVIDIA GB200", "aarch64")):
        open_(page, site, "index")
        page.fill("#gpu", name)
        page.wait_for_function(
            "it => document.querySelector('#answer article .id')?.textContent.includes(it)", arg=image
        )
    page.fill("#gpu", "GB300")
    title_has(page, "Nothing fits")


def test_known_failures_are_found_by_a_word(page, site):
    open_(page, site, "incidents/index")
    page.fill("#words", "xtuner flash_attention_forward")
    assert page.locator(".incidents li:visible").count() >= 1
    assert "of" in page.inner_text("#found")
    page.fill("#words", "qqxxqq")
    assert page.locator(".incidents li:visible").count() == 0


def test_why_not_the_others_is_said(page, site):
    page.goto((site / "index.html").as_uri() + "?gpu=H100&attn=fa4")
    title_has(page, "FlashAttention 4")
    page.click("#others summary")
    text = page.inner_text("#others")
    assert "it is made for openrlhf 0.11.2" in text
    assert "flash-attn-4" in text
    page.fill("#driver", "525.60.13")
    page.wait_for_function("() => document.querySelector('#others').textContent.includes('driver')")
    page.locator("#others").evaluate("it => { it.open = true; }")
    assert "needs driver 580 or newer" in page.inner_text("#others")


def test_the_page_says_of_a_log_what_the_command_says(page, address, tmp_path):
    text = LOG + "<script>document.title = 'hostile'</script>]]>"
    page.goto(f"{address}/diagnose.html")
    reach(page, "#log")
    page.keyboard.insert_text(text)
    reach(page, "#diagnose button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer a", timeout=180_000)
    said = page.inner_text("#answer pre")
    (tmp_path / "log").write_text(text)
    command = subprocess.run(
        [sys.executable, "-m", "knowngood", "diagnose", "--why", tmp_path / "log"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.split() == command.stdout.split()
    assert "hostile" not in page.title()
    reach(page, "#answer a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/incidents/xtuner-qwen2-flash-attention-forward.html")


def test_a_square_leads_to_its_evidence(page, site):
    catalog = json.loads((site / "catalog.json").read_text())
    seen = next(cell for cell in catalog["cells"] if cell["attention"])
    open_(page, site, "matrix")
    setting = next(iter(seen["attention"]))
    page.focus(f'a.square[href="cells/{seen["id"]}.html#{setting}"]')
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/cells/{seen['id']}.html*")
    assert seen["evidence"] in page.inner_text("main")


@pytest.mark.parametrize(("scheme", "names"), [("light", PAGES), ("dark", ("index", "matrix", "diagnose"))])
def test_pages_are_accessible_and_fit_a_phone(page, site, scheme, names):
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    found = []
    cell = next((site / "cells").glob("sm90*fa4*.html")).stem
    for name in (*names, f"cells/{cell}"):
        open_(page, site, name)
        if name == "index":
            page.fill("#gpu", "H100")
            page.wait_for_selector("#answer .alternative")
            page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{name}: wider than the screen by {wide}"] if wide > 0 else []
        found += [
            f"{name}: {item['id']}: {item['nodes'][0]['html'][:150]}"
            for item in Axe().run(page, options={"preload": False}).response["violations"]
        ]
    assert found == []
