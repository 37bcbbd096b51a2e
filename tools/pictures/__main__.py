"""``make pictures``: take the pictures of the dashboard for README and docs, light and dark.

python -m tools.pictures [--minutes 10] [--speed 1] [--only NAME,NAME] [--out docs/dashboard]

The factory (``factory.py``) works for ``--minutes``, so that charts, histories and queues have something to show. With
``--speed 5`` its clients do everything five times as often: ``--minutes 2 --speed 5`` produces the activity of ten
minutes in two, and the charts show two minutes. Each picture has 1280 by 760 points at double density."""

import argparse
import asyncio
import io
import os
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.async_api import Page, async_playwright, expect

from tests.support.browser import CHROMIUM, PATIENCE, Dashboard

from . import manifest
from .factory import Factory, make_node
from .shots import PAGES, SHOTS, Shot

SIZE: Final = {"width": 1280, "height": 760}
DENSITY: Final = 2
QUALITY: Final = 27


def compressed(png: bytes) -> bytes:
    """Return the picture as WebP."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(out, "WEBP", quality=QUALITY, method=5)
    return out.getvalue()


async def prepared(dashboard: Dashboard, shot: Shot) -> Page:
    """Return the page, ready for the picture."""
    role = "administrator" if shot.logged_in else None
    page = await dashboard.open(shot.path, role, viewport=SIZE, device_scale_factor=DENSITY)
    await expect(page.locator(shot.shows).first).to_be_visible()
    if shot.act is not None:
        await shot.act(page, dashboard.node)
    await page.evaluate("() => document.querySelectorAll('.toast button').forEach((one) => one.click())")
    await expect(page.locator(".reading, .toast")).to_have_count(0)
    return page


async def take(dashboard: Dashboard, shot: Shot, out: Path) -> None:
    page = await prepared(dashboard, shot)
    for theme in manifest.THEMES:
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 400)))")
        png = await page.screenshot(animations="disabled", caret="hide")
        file = out / manifest.file_of(shot.name, theme)
        # In a thread, so that the clients of the factory continue.
        file.write_bytes(await asyncio.to_thread(compressed, png))
        print(f"{file} {file.stat().st_size:,} bytes", flush=True)
    await page.context.close()


async def run(minutes: float, speed: float, only: set[str], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        node = make_node(Path(directory))
        await node.start()
        factory = Factory(node, speed)
        try:
            await factory.start()
            await asyncio.sleep(minutes * 60)
            expect.set_options(timeout=PATIENCE * 1000)
            async with async_playwright() as playwright:
                arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
                browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
                dashboard = Dashboard(browser, node)
                for shot in SHOTS:
                    if not only or shot.name in only:
                        await take(dashboard, shot, out)
                await browser.close()
        finally:
            await factory.stop()
            await node.stop()
    if out.resolve() == manifest.PICTURES:
        taken = manifest.read(out) if (out / manifest.MANIFEST).exists() else {}
        fresh = {name: manifest.digest(page) for name, page in PAGES.items() if not only or name in only}
        manifest.write({**{name: taken[name] for name in PAGES if name in taken}, **fresh}, out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the factory works first (10)")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster its clients are (1)")
    parser.add_argument("--only", default="", help="names of pictures, separated by commas")
    parser.add_argument("--out", type=Path, default=manifest.PICTURES, help="directory of the pictures")
    given = parser.parse_args()
    only = {name for name in given.only.split(",") if name}
    unknown = only - set(PAGES)
    if unknown:
        parser.error(f"no picture is named {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    asyncio.run(run(given.minutes, given.speed, only, given.out))


if __name__ == "__main__":
    main()
