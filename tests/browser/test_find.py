"""The search dialog: what readers look for is among the first three places, and keys lead there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import serve
from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

#: What is typed, and the beginning of an address that is to be among the first three.
WANTED = {
    "activation checkpointing": "one-gpu/recomputation",
    "gradient checkpointing": "one-gpu/recomputation",
    "FSDP": "data-parallelism/zero",
    "fully sharded": "data-parallelism/zero",
    "ZeRO stage 3": "data-parallelism/zero.html#stage-3",
    "HSDP": "data-parallelism/zero",
    "DDP": "data-parallelism/data-parallel",
    "all-reduce cost": "communication/ring-all-reduce",
    "out of memory": "one-gpu/memory",
    "OOM": "one-gpu/memory",
    "torchrun": "communication/collectives",
    "mixture of experts": "model-parallelism/expert",
    "MoE": "model-parallelism/expert",
    "gradient clipping": "data-parallelism/zero",
    "1F1B": "model-parallelism/pipeline",
    "interleaved": "model-parallelism/pipeline",
    "bubble": "model-parallelism/zero-bubble",
    "DualPipe": "model-parallelism/zero-bubble",
    "NVLink": "communication/ring-all-reduce",
    "NCCL": "communication/",
    "parralelism": "model-parallelism/",
    "FlashAtention": "inside-the-gpu/flash-attention",
    "flash attn": "inside-the-gpu/flash-attention",
    "LoRA": "glossary.html#term-LoRA",
    "QLoRA": "glossary.html#term-LoRA",
    "ring attention": "model-parallelism/context",
    "Ulysses": "model-parallelism/context",
    "tensor parallel": "model-parallelism/tensor",
    "sequence parallelism": "model-parallelism/sequence",
    "MFU": "one-gpu/recomputation",
    "loss scaling": "inside-the-gpu/mixed-precision",
    "bf16": "inside-the-gpu/mixed-precision",
    "fp8": "inside-the-gpu/fp8",
    "roofline": "inside-the-gpu/gpu-primer",
    "bank conflict": "inside-the-gpu/memory-access",
    "Triton": "inside-the-gpu/writing-kernels",
    "memory calculator": "tools/memory-calculator",
    "my cluster": "tools/my-cluster",
    "Slurm": "run-it.html#slurm",
    "checkpoint": "data-parallelism/fault-tolerance",
    "error feedback": "data-parallelism/communication-efficient",
    "overlap communication and computation": "data-parallelism/data-parallel",
    "batch size": "one-gpu/first-steps",
    "Chinchilla": "at-scale/scaling-laws",
    "parallelize": "reference.html#playbook.parallel",
}
RANK = """
import fs from "node:fs";
const [vendor, rankjs, sections, queries] = process.argv.slice(1);
const { default: MiniSearch } = await import(vendor), { indexOf, rank } = await import(rankjs);
const entries = JSON.parse(fs.readFileSync(sections)), index = indexOf(entries, MiniSearch);
const found = (query) => rank(index, entries, query, 3).map(({ u, a }) => (a ? `${u}#${a}` : u));
console.log(JSON.stringify(JSON.parse(queries).map(found)));
"""


def test_what_readers_look_for_is_among_the_first_three(built_book: Path) -> None:
    files = "vendor/minisearch/minisearch.mjs", "_static/pb/rank.mjs", "_static/sections.json"
    given = [*(str(built_book / file) for file in files), json.dumps(list(WANTED))]
    command = ["node", "--input-type=module", "-e", RANK, *given]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    missed = {
        query: places
        for (query, wanted), places in zip(WANTED.items(), json.loads(told.stdout), strict=True)
        if not any(place.startswith(f"book/{wanted}") for place in places)
    }
    assert not missed


def test_the_dialog_leads_to_a_section_by_keys_alone(browser: Browser, site: str) -> None:
    with browser.new_context() as context:
        context.add_init_script(path=serve.ROOT / "widgets" / "node_modules" / "axe-core" / "axe.min.js")
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site + "book/one-gpu/profiling.html")
        assert not any("minisearch" in url for url in asked)  # before anybody wants to search
        page.keyboard.press("Control+K")
        page.keyboard.type("stage 3")
        hits = page.get_by_role("listbox", name="Found").get_by_role("option")
        hits.first.wait_for()
        chosen = page.locator('.pb-hits [aria-selected="true"]')
        assert chosen.get_attribute("id") == "pb-hit-0"
        page.keyboard.press("ArrowDown")
        assert chosen.get_attribute("id") == "pb-hit-1"
        assert page.locator("#search-input").get_attribute("aria-activedescendant") == "pb-hit-1"
        found = page.evaluate("axe.run('.search-button__wrapper').then(({ violations }) => violations)")
        assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_url("**/zero.html*")
        assert all(url.startswith(site) for url in asked)
