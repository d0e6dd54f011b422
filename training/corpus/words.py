# ruff: noqa: SIM905
"""Word lists that the generators share. Not responsible for sentences."""

from __future__ import annotations

NAMES = (
    "Mia Tom Anna Leo Nora Finn Ida Max Lena Paul Emma Ben Clara Otto Rosa Emil Lucy Jonas Vera Hugo Ella Theo Greta "
    "Karl Alma Felix Ines Oskar Maya Levi Tilda Arlo Zoe Milo Ruth Sam Iris Noah Edda Hans Olga Peter June Mark Ava"
).split()
ANIMALS = "fox dog cat mouse hare frog goose bear hedgehog crow deer badger squirrel hen pony lamb".split()
PLACES = (
    "the old mill|the river|the market|the forest|the hill|the harbour|the library|the garden|the school|the bridge|"
    "the lake|the castle|the station|the bakery|the barn|the beach|the tower|the village square"
).split("|")
THINGS = (
    "kite lamp map key book basket drum boat rope bell clock letter coin ladder hat stone lantern whistle wheel "
    "bucket blanket mirror spoon feather candle box cake flute chair"
).split()
COLOURS = "red blue green yellow white black brown grey silver golden".split()
FEELINGS = "happy sad tired proud curious brave afraid calm surprised hungry glad lonely".split()
CITIES = (
    "Oslo Paris Rome Berlin Madrid Lisbon Vienna Prague Dublin Athens Cairo Tokyo Delhi Lima Boston Denver Toronto "
    "Sydney Nairobi Helsinki Warsaw Budapest Geneva Milan Porto Seville Bergen Lyon Turin Kyoto Quito Havana"
).split()
COUNTRIES = {
    "France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Ireland": "Dublin", "Greece": "Athens", "Egypt": "Cairo", "Japan": "Tokyo",
    "Norway": "Oslo", "Finland": "Helsinki", "Poland": "Warsaw", "Hungary": "Budapest", "Peru": "Lima",
    "Cuba": "Havana", "Kenya": "Nairobi", "Canada": "Ottawa", "India": "Delhi", "Ecuador": "Quito",
}  # fmt: skip
FOODS = "bread soup apples rice cheese beans carrots pears fish eggs honey plums tea milk nuts".split()
JOBS = "baker teacher farmer sailor doctor painter driver cook smith gardener nurse pilot".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
