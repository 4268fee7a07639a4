"""Jobs for a database of items: prices that are set, raised and compared, rows that are added, removed, copied."""

from __future__ import annotations

import random

from components.data.jobs import Job, Maker

_ITEMS = "pen cup hat box bag jar map fan mug pot net rug key toy bow tie".split()
_LOOKS = ("SELECT sql FROM sqlite_schema", "SELECT * FROM items")


def _world(rng: random.Random) -> dict[str, tuple[int, int]]:
    """Items with price and quantity."""
    return {item: (rng.randint(2, 40), rng.randint(1, 20)) for item in rng.sample(_ITEMS, 6)}


def _job(family: str, instruction: str, items: dict[str, tuple[int, int]], *steps: str) -> Job:
    rows = ", ".join(f"('{name}', {price}, {qty})" for name, (price, qty) in items.items())
    script = f"CREATE TABLE items (name TEXT, price INTEGER, qty INTEGER);\nINSERT INTO items VALUES {rows};"
    return Job(family, "query", instruction, {"database": script}, steps, _LOOKS)


def _one(rng: random.Random, items: dict[str, tuple[int, int]]) -> str:
    return rng.choice(list(items))


def set_price(rng: random.Random) -> Job:
    items = _world(rng)
    name, price = _one(rng, items), rng.randint(41, 99)
    return _job(
        "set", f"set the price of {name} to {price}", items, f"UPDATE items SET price = {price} WHERE name = '{name}'"
    )


def raise_price(rng: random.Random) -> Job:
    items = _world(rng)
    name, more = _one(rng, items), rng.randint(2, 9)
    text = f"raise the price of {name} by {more}"
    return _job("raise", text, items, f"UPDATE items SET price = price + {more} WHERE name = '{name}'")


def remove(rng: random.Random) -> Job:
    items = _world(rng)
    name = _one(rng, items)
    return _job("remove", f"remove {name} , nothing else", items, f"DELETE FROM items WHERE name = '{name}'")


def add(rng: random.Random) -> Job:
    items = _world(rng)
    name = rng.choice([item for item in _ITEMS if item not in items])
    price, qty = rng.randint(2, 40), rng.randint(1, 20)
    return _job("add", f"add {qty} {name} at {price}", items, f"INSERT INTO items VALUES ('{name}', {price}, {qty})")


def rename(rng: random.Random) -> Job:
    items = _world(rng)
    name = _one(rng, items)
    other = rng.choice([item for item in _ITEMS if item not in items])
    return _job("rename", f"call the {name} {other}", items, f"UPDATE items SET name = '{other}' WHERE name = '{name}'")


def clear(rng: random.Random) -> Job:
    items = _world(rng)
    bound = sorted(qty for _, qty in items.values())[2] + 1
    if all(qty < bound for _, qty in items.values()):
        return clear(rng)
    return _job("clear", f"remove what has a quantity below {bound}", items, f"DELETE FROM items WHERE qty < {bound}")


def copy_price(rng: random.Random) -> Job:
    items = _world(rng)
    (a, price_a), (b, (price, _)) = rng.sample(list(items.items()), 2)
    if price_a[0] == price:
        return copy_price(rng)
    steps = (f"SELECT price FROM items WHERE name = '{b}'", f"UPDATE items SET price = {price} WHERE name = '{a}'")
    return _job("copy", f"make {a} cost as much as {b}", items, *steps)


def cheap_table(rng: random.Random) -> Job:
    items = _world(rng)
    bound = sorted(price for price, _ in items.values())[3]
    table = f"cheap{rng.randint(1, 99)}"
    step = f"CREATE TABLE {table} AS SELECT name, price FROM items WHERE price < {bound}"
    if not any(price < bound for price, _ in items.values()):
        return cheap_table(rng)
    return _job("table", f"make a table {table} of name and price of what costs less than {bound}", items, step)


def swap(rng: random.Random) -> Job:
    items = _world(rng)
    a, b = rng.sample(list(items), 2)
    (price_a, _), (price_b, _) = items[a], items[b]
    if price_a == price_b:
        return swap(rng)
    look = f"SELECT name, price FROM items WHERE name IN ('{a}', '{b}')"
    steps = [f"UPDATE items SET price = {p} WHERE name = '{n}'" for n, p in ((a, price_b), (b, price_a))]
    return _job("swap", f"swap the prices of {a} and {b}", items, look, *steps)


FAMILIES: dict[str, Maker] = {
    "set": set_price,
    "raise": raise_price,
    "remove": remove,
    "add": add,
    "rename": rename,
    "clear": clear,
    "copy": copy_price,
    "table": cheap_table,
    "swap": swap,
}
