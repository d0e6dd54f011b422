"""Functions a model may call, requests that need them, results they give. Not responsible for the chat format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from training.corpus.words import CITIES, COLOURS, FOODS, MONTHS, NAMES, THINGS, WEEKDAYS


@dataclass(frozen=True, slots=True)
class Task:
    """A request that one call answers: what the user says, the arguments, what comes back, how it is told."""

    request: str
    arguments: dict[str, Any]
    result: str
    answer: str


@dataclass(frozen=True, slots=True)
class Tool:
    """`properties`: name -> (JSON type, description); all are required. make: a task for it."""

    name: str
    description: str
    properties: dict[str, tuple[str, str]]
    make: Callable[[Random], Task]

    def schema(self) -> dict[str, Any]:
        """As OpenAI's API declares it."""
        properties = {n: {"type": kind, "description": text} for n, (kind, text) in self.properties.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def _weather(rng: Random) -> Task:
    city, degrees, sky = rng.choice(CITIES), rng.randint(-9, 35), rng.choice(("sunny", "cloudy", "rain", "snow"))
    ask = rng.choice(("What is the weather in {}?", "How is the weather in {} today?", "Will I need a coat in {}?"))
    return Task(ask.format(city), {"city": city}, f"{degrees} C, {sky}", f"In {city} it is {degrees} C and {sky}.")


def _time(rng: Random) -> Task:
    city, clock = rng.choice(CITIES), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    ask = rng.choice(("What time is it in {}?", "Tell me the time in {}.", "How late is it in {} now?"))
    return Task(ask.format(city), {"city": city}, clock, f"It is {clock} in {city}.")


def _add(rng: Random) -> Task:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    ask = rng.choice(("What is {} plus {}?", "Please add {} and {}.", "Add {} and {} for me."))
    return Task(ask.format(a, b), {"a": a, "b": b}, str(a + b), f"The sum is {a + b}.")


def _multiply(rng: Random) -> Task:
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    ask = rng.choice(("What is {} times {}?", "Multiply {} by {}.", "How much is {} times {}?"))
    return Task(ask.format(a, b), {"a": a, "b": b}, str(a * b), f"The product is {a * b}.")


def _remind(rng: Random) -> Task:
    thing, day = f"buy {rng.choice(FOODS)}", rng.choice(WEEKDAYS)
    ask = rng.choice(("Remind me to {} on {}.", "Please remind me to {} on {}.", "I must {} on {}, remind me."))
    return Task(ask.format(thing, day), {"text": thing, "day": day}, "saved", f"I will remind you to {thing} on {day}.")


def _mail(rng: Random) -> Task:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    text = rng.choice((f"The {thing} is ready", f"I have your {thing}", f"Please bring the {thing}"))
    ask = rng.choice(('Write to {}: "{}".', 'Send {} the message "{}".', 'Tell {} this: "{}".'))
    return Task(ask.format(name, text), {"to": name, "text": text}, "sent", f"I have written to {name}.")


def _search(rng: Random) -> Task:
    what = rng.choice((f"{rng.choice(COLOURS)} {rng.choice(THINGS)}", f"{rng.choice(THINGS)} in {rng.choice(CITIES)}"))
    ask, price = rng.choice(("Search for a {}.", "Find me a {}.", "Look for a {}, please.")), rng.randint(2, 90)
    return Task(
        ask.format(what), {"query": what}, f"1 found: {what}, {price} euros", f"I found a {what} for {price} euros."
    )


def _convert(rng: Random) -> Task:
    amount, (a, b) = rng.randint(1, 500), rng.sample(("USD", "EUR", "GBP", "NOK", "JPY"), 2)
    ask, out = rng.choice(("Convert {} {} to {}.", "How much is {} {} in {}?")), rng.randint(1, 900)
    arguments = {"amount": amount, "source": a, "target": b}
    return Task(ask.format(amount, a, b), arguments, f"{out} {b}", f"{amount} {a} is {out} {b}.")


def _light(rng: Random) -> Task:
    room, on = rng.choice(("kitchen", "bedroom", "hall", "bathroom", "garden", "cellar")), rng.random() < 0.5
    word = "on" if on else "off"
    ask = rng.choice(("Turn {1} the light in the {0}.", "Switch the {0} light {1}, please.", "Light {1} in the {0}!"))
    return Task(ask.format(room, word), {"room": room, "on": on}, "ok", f"The light in the {room} is {word}.")


def _holiday(rng: Random) -> Task:
    month, year = rng.choice(MONTHS), rng.randint(2024, 2030)
    day = rng.randint(1, 28)
    ask = rng.choice(("Which holidays are there in {} {}?", "Show the holidays of {} {}.", "Any holidays in {} {}?"))
    arguments = {"month": month, "year": year}
    return Task(ask.format(month, year), arguments, f"{month} {day}", f"There is one on {month} {day}, {year}.")


def _book(rng: Random) -> Task:
    name, city, nights = rng.choice(NAMES), rng.choice(CITIES), rng.randint(1, 14)
    ask = "Book a room in {} for {} for {} nights."
    arguments = {"city": city, "guest": name, "nights": nights}
    return Task(
        ask.format(city, name, nights), arguments, "booked", f"{name} has a room in {city} for {nights} nights."
    )


TOOLS = (
    Tool("get_weather", "Current weather of a city.", {"city": ("string", "Name of the city")}, _weather),
    Tool("get_time", "Local time of a city.", {"city": ("string", "Name of the city")}, _time),
    Tool("add", "Add two numbers.", {"a": ("integer", "First number"), "b": ("integer", "Second number")}, _add),
    Tool("multiply", "Multiply two numbers.", {"a": ("integer", "First"), "b": ("integer", "Second")}, _multiply),
    Tool("set_reminder", "Save a reminder.", {"text": ("string", "What"), "day": ("string", "Weekday")}, _remind),
    Tool("send_message", "Send a message.", {"to": ("string", "Who"), "text": ("string", "Message")}, _mail),
    Tool("search", "Search the shop.", {"query": ("string", "What to look for")}, _search),
    Tool(
        "convert",
        "Convert money.",
        {"amount": ("number", "How much"), "source": ("string", "Currency"), "target": ("string", "Currency")},
        _convert,
    ),
    Tool("set_light", "Switch a light.", {"room": ("string", "Which room"), "on": ("boolean", "On or off")}, _light),
    Tool("list_holidays", "Public holidays.", {"month": ("string", "Month"), "year": ("integer", "Year")}, _holiday),
    Tool(
        "book_room",
        "Book a hotel room.",
        {"city": ("string", "Where"), "guest": ("string", "Name"), "nights": ("integer", "How many nights")},
        _book,
    ),
)
