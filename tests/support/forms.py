"""Forms of the dashboard, driven by the names of their fields."""

from typing import Any, Final

from playwright.async_api import Locator, Page, expect

HOSTILE: Final = "<img src=x onerror=alert(1)>\u202eevil\u2066&amp;\"'"
"""A name that would be markup, and would turn the direction of what stands beside it."""
SHOWN: Final = "<img src=x onerror=alert(1)>[RLO]evil[LRI]&amp;\"'"
"""The same as the pages show it."""


def control(scope: Page | Locator, name: str) -> Locator:
    """What is typed into, chosen from or switched for this field."""
    return scope.locator(f"[data-field='{name}']").locator("input, select, textarea").first


def fault(scope: Page | Locator, name: str) -> Locator:
    """What is said to be wrong at this field."""
    return scope.locator(f"[data-field='{name}'] .wrong")


async def fill_in(scope: Page | Locator, **values: Any) -> None:
    """``True`` and ``False`` for a switch, a dict for names and values; a field under "More settings" is opened."""
    for name, value in values.items():
        if isinstance(value, dict):
            await _pairs(scope.locator(f"[data-field='{name}']"), value)
            continue
        found = control(scope, name)
        await _reveal(found)
        if isinstance(value, bool):
            await found.set_checked(value)
        elif await found.evaluate("(one) => one.tagName") == "SELECT":
            await found.select_option(value)
        else:
            await found.fill(value)


async def _reveal(found: Locator) -> None:
    await found.evaluate("(one) => one.closest('details')?.setAttribute('open', '')")


async def _pairs(field: Locator, values: dict[str, str]) -> None:
    await _reveal(field)
    for index, (key, value) in enumerate(values.items(), 1):
        await field.get_by_role("button", name="Add").click()
        await field.get_by_label(f"Key {index}").fill(key)
        await field.get_by_label(f"Value {index}").fill(value)


async def submit(scope: Page | Locator) -> None:
    # Not the form that saves the filters of a list.
    await scope.locator("form button[type=submit]:not(.views *)").click()


async def send(scope: Page | Locator, **values: Any) -> None:
    """Filled in and sent."""
    await fill_in(scope, **values)
    await submit(scope)


async def confirmed(page: Page, action: str, hits: str = "") -> None:
    """The dialog that asks before something is destroyed: it names what it hits, and does it."""
    dialog = page.get_by_role("dialog")
    if hits:
        await expect(dialog).to_contain_text(hits)
    await dialog.get_by_role("button", name=action, exact=True).click()
    await expect(dialog).to_have_count(0)


def row(page: Page | Locator, text: str) -> Locator:
    """Of a table: that which has this text."""
    return page.locator("tbody tr").filter(has_text=text)


async def row_action(scope: Locator, item: str) -> Locator:
    """Open the menu of a row, and choose; the item is returned, whether or not it can be chosen."""
    await scope.get_by_role("button", name="Actions for").click()
    found = scope.get_by_role("button", name=item)
    await expect(found).to_be_visible()
    if await found.is_enabled():
        await found.click()
    return found
