"""Which blocks a prefix hit could use, and how that changed since somebody last asked: what KV events are made of.

Of a group without a window a block is told of only while its whole prefix is held too: eviction may take a middle,
and whoever keeps an index of a thousand workers must not have to look for holes. Pure. Not responsible for: blocks
themselves (pool.py), numbering and sending (operations/worker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVChange, KVFormat


class KVLog:
    """`format.groups` says which groups, and in which order changes number them."""

    def __init__(self, form: KVFormat) -> None:
        self.format = form
        self._index_of = {group.name: at for at, group in enumerate(form.groups)}
        self._groups: list[_Chains | _Loose] = [
            _Chains() if group.window_blocks is None else _Loose() for group in form.groups
        ]
        self._changes: list[KVChange] = []

    def tells_of(self, group: str) -> bool:
        return group in self._index_of

    def stored(self, group: str, hashes: Sequence[bytes], parent: bytes | None) -> None:
        """These blocks follow each other, the first behind `parent` (None: at the start). Known ones are fine."""
        at = self._index_of[group]
        news = self._groups[at].store(hashes, parent)
        if news:
            self._note(BlocksStored, at, news)

    def removed(self, group: str, block_hash: bytes) -> None:
        at = self._index_of[group]
        news = self._groups[at].remove(block_hash)
        if news:
            self._note(BlocksRemoved, at, news)

    def cleared(self) -> None:
        for group in self._groups:
            group.clear()
        self._changes = [CacheCleared()]

    def _note(self, kind: type[BlocksStored] | type[BlocksRemoved], at: int, hashes: list[bytes]) -> None:
        last = self._changes[-1] if self._changes else None
        if type(last) is kind and last.group == at:
            last.hashes.extend(hashes)
        else:
            self._changes.append(kind(at, hashes))

    def take(self) -> tuple[KVChange, ...]:
        """Changes since the last time, in order."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def held(self, group: str) -> set[bytes]:
        """For checks: all published blocks, usable or not."""
        return set(self._groups[self._index_of[group]].held())

    def snapshot(self) -> tuple[list[bytes], ...]:
        """All usable blocks by group; changes so far are in it."""
        self._changes = []
        return tuple(group.usable() for group in self._groups)


class _Loose:
    """Blocks of a window group: each for itself."""

    def __init__(self) -> None:
        self._held: set[bytes] = set()

    def store(self, hashes: Sequence[bytes], parent: bytes | None) -> list[bytes]:
        news = [block_hash for block_hash in hashes if block_hash not in self._held]
        self._held.update(news)
        return news

    def remove(self, block_hash: bytes) -> list[bytes]:
        self._held.discard(block_hash)
        return [block_hash]

    def clear(self) -> None:
        self._held.clear()

    def held(self) -> Iterable[bytes]:
        return self._held

    def usable(self) -> list[bytes]:
        return list(self._held)


class _Chains:
    """Blocks of a group without a window, and which of them hang on a held prefix."""

    def __init__(self) -> None:
        self._parent_of: dict[bytes, bytes | None] = {}  # of all held blocks
        self._children_of: dict[bytes, list[bytes]] = {}
        self._loose: set[bytes] = set()  # held, with a hole before them

    def store(self, hashes: Sequence[bytes], parent: bytes | None) -> list[bytes]:
        news: list[bytes] = []
        for block_hash in hashes:
            if block_hash not in self._parent_of:
                self._parent_of[block_hash] = parent
                if parent is not None:
                    self._children_of.setdefault(parent, []).append(block_hash)
                if parent is None or self._is_usable(parent):
                    news.append(block_hash)
                    news += self._attach(block_hash)
                else:
                    self._loose.add(block_hash)
            parent = block_hash
        return news

    def remove(self, block_hash: bytes) -> list[bytes]:
        parent = self._parent_of.pop(block_hash)
        if parent is not None:
            siblings = self._children_of[parent]
            siblings.remove(block_hash)
            if not siblings:
                del self._children_of[parent]
        if block_hash in self._loose:
            self._loose.discard(block_hash)
            return []
        return [block_hash, *self._detach(block_hash)]

    def _is_usable(self, block_hash: bytes) -> bool:
        return block_hash in self._parent_of and block_hash not in self._loose

    def _attach(self, block_hash: bytes) -> list[bytes]:
        """All that hangs on this block is usable from now on."""
        return self._walk(block_hash, self._loose.discard)

    def _detach(self, block_hash: bytes) -> list[bytes]:
        return self._walk(block_hash, self._loose.add)

    def _walk(self, block_hash: bytes, mark: Callable[[bytes], None]) -> list[bytes]:
        walked: list[bytes] = []
        todo = list(self._children_of.get(block_hash, ()))
        while todo:
            child = todo.pop()
            mark(child)
            walked.append(child)
            todo += self._children_of.get(child, ())
        return walked

    def clear(self) -> None:
        self._parent_of.clear()
        self._children_of.clear()
        self._loose.clear()

    def held(self) -> Iterable[bytes]:
        return self._parent_of

    def usable(self) -> list[bytes]:
        return [block_hash for block_hash in self._parent_of if block_hash not in self._loose]
