"""Short stories written from a small grammar: who wants what, what goes wrong, how it ends.

Names, things and places of the beginning come back later, so that a reader of the text has to carry them along.
"""

from __future__ import annotations

from random import Random

from training.corpus.words import ANIMALS, COLOURS, FEELINGS, FOODS, JOBS, NAMES, PLACES, THINGS, WEEKDAYS


def story(rng: Random, hero: str | None = None, thing: str | None = None, place: str | None = None) -> str:
    """One story of 80 to 200 words; what is given is used, the rest is drawn."""
    return _Story(rng, hero, thing, place).text()


class _Story:
    def __init__(self, rng: Random, hero: str | None, thing: str | None, place: str | None) -> None:
        self.rng = rng
        self.hero = hero or rng.choice(NAMES)
        self.friend = rng.choice([name for name in NAMES if name != self.hero])
        self.animal = rng.choice(ANIMALS)
        self.thing = thing or rng.choice(THINGS)
        self.place = place or rng.choice(PLACES)
        self.colour, self.food, self.job = rng.choice(COLOURS), rng.choice(FOODS), rng.choice(JOBS)
        self.day, self.feeling = rng.choice(WEEKDAYS), rng.choice(FEELINGS)
        self.he, self.his, self.him = rng.choice((("he", "his", "him"), ("she", "her", "her")))

    def text(self) -> str:
        parts = [self.opening(), self.wish(), self.trouble(), self.help(), self.ending()]
        if self.rng.random() < 0.5:
            parts.insert(2, self.talk())
        breaks = " " if self.rng.random() < 0.6 else "\n\n"
        return breaks.join(parts)

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def opening(self) -> str:
        return self.pick(
            f"Once upon a time there was a {self.job} named {self.hero}. {self.hero} lived near {self.place} with "
            f"a little {self.animal}.",
            f"On a {self.pick('cold', 'warm', 'rainy', 'windy', 'bright')} {self.day} morning {self.hero} went to "
            f"{self.place}.",
            f"{self.hero} was a young {self.job} who had a {self.colour} {self.thing}.",
            f"Every {self.day} {self.hero} walked to {self.place} to buy {self.food}.",
            f"There was once a {self.animal} that lived by {self.place}, and its best friend was {self.hero}.",
        )

    def wish(self) -> str:
        he, his = self.he, self.his
        return self.pick(
            f"One day {he} wanted to show the {self.colour} {self.thing} to {self.friend}.",
            f"{self.hero} had lost {his} {self.thing} and felt {self.feeling}.",
            f"{he.capitalize()} hoped to find a {self.thing} for {self.friend}, who was {self.feeling}.",
            f'"I need a {self.thing}," {self.hero} said, "and I know that there is one at {self.place}."',
            f"More than anything {self.hero} wished for a {self.colour} {self.thing}.",
        )

    def talk(self) -> str:
        return self.pick(
            f'"Where are you going?" asked {self.friend}. "To {self.place}," said {self.hero}. "Come with me!"',
            f'"Can you see the {self.thing}?" asked {self.hero}. "No," said {self.friend}, "but I can hear the '
            f'{self.animal}."',
            f'{self.friend} laughed. "A {self.colour} {self.thing}? I have never seen one," {self.pick("he", "she")} '
            f"said.",
            f'"Do not be {self.feeling}," said {self.friend}. "We will look for it together."',
        )

    def trouble(self) -> str:
        return self.pick(
            f"But the {self.animal} took the {self.thing} and ran to {self.place}.",
            f"Then it began to rain, and the way to {self.place} was full of water.",
            f"But when {self.hero} came to {self.place}, the {self.thing} was gone.",
            f"Suddenly the {self.thing} fell into the water, and nobody could reach it.",
            f"It grew dark, and {self.hero} could not find the way home. {self.he.capitalize()} was {self.feeling}.",
        )

    def help(self) -> str:
        return self.pick(
            f"{self.friend} had an idea. They tied a rope to a stone and pulled until the {self.thing} came back.",
            f"The {self.animal} was clever. It showed {self.hero} a small path behind {self.place}.",
            f"So {self.hero} asked {self.friend} for help, and together they looked under every tree until they found "
            f"the {self.thing}.",
            f"An old {self.job} heard them and brought a lamp, some {self.food} and a warm blanket.",
            f"{self.hero} gave the {self.animal} some {self.food}, and the {self.animal} gave the {self.thing} back.",
        )

    def ending(self) -> str:
        return self.pick(
            f"In the evening {self.hero} and {self.friend} ate {self.food} and were happy.",
            f"From that day on {self.hero} always took care of the {self.colour} {self.thing}.",
            f"{self.hero} thanked {self.friend}, and they walked home from {self.place} before night came.",
            f'"Thank you," said {self.hero}. "You are a good friend." And the {self.animal} slept by the fire.',
            f"And {self.hero} never went to {self.place} alone again. The end.",
        )
