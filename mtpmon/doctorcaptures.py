"""Findings about the captures that a server is compared with. Pure."""

from collections.abc import Iterator

from mtpmon.capture import Use
from mtpmon.facts import CaptureFacts, Facts, Finding

_ANEW = {
    Use.REFERENCE: "capture the original anew with this mtpmon.yaml: mtpmon capture",
    Use.BASELINE: "start this server without --spec-type and capture it anew: mtpmon capture",
}


def capture_findings(facts: Facts) -> Iterator[Finding]:
    """Judge whether each configured capture fits the server as it runs now."""
    for found in facts.captures:
        name = f"the {found.use.value} capture"
        if not found.judged:
            yield Finding(
                "captures",
                "warning",
                f"{name} cannot be judged: {'; '.join(found.refused)}",
                "run this again when the server answers",
            )
        elif found.refused:
            reasons = "; ".join(found.refused)
            yield Finding("captures", "problem", f"{name} is not used: {reasons}", _ANEW[found.use])
        elif found.told is False:
            yield Finding(
                "captures",
                "warning",
                f"{name} fits, but the test prompt comes to the server as other tokens than it did"
                " then: with another chat template or thinking mode nothing can be compared",
                _ANEW[found.use],
            )
        else:
            prompts = f"{found.prompts} of {found.asked} prompts"
            yield Finding("captures", "ok", f"{name} fits, with {prompts}: {found.origin}")


def fits(facts: Facts, use: Use) -> bool:
    """Whether there is a capture for this use that fits."""
    return any(_usable(found) for found in facts.captures if found.use is use)


def _usable(found: CaptureFacts) -> bool:
    return not found.refused and found.told is not False
