"""Tools that no errand needs: what an agent is offered in life, and must leave alone."""

from __future__ import annotations

from components.rng import derive

_SKIES = ("sunny", "rainy", "cloudy", "windy")


def weather(city: str) -> str:
    """The weather in a city; the same every time.

    Args:
        city: its name.
    """
    return _SKIES[derive("weather", city) % len(_SKIES)]


def translate(word: str) -> str:
    """A word in another language, its letters turned round.

    Args:
        word: to translate.
    """
    return word[::-1]
