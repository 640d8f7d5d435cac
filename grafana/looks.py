"""Units, colours, and words: what figures look like, whatever kind of panel they are on."""

from collections.abc import Mapping

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from mtpmon.model import State
from mtpmon.verdict import Verdict

SHARE, SECONDS, COUNT, BYTES = "percentunit", "s", "short", "bytes"
TOKENS_PER_SECOND, TIMES, NATS, TOKENS = "suffix:tok/s", "suffix:×", "suffix:nats", "short"
AGO = "dateTimeFromNow"  # of milliseconds since 1970

NO_TRAFFIC = "no traffic"
NOT_MEASURED = "not measured"
NOT_SEEN = "not seen yet"

GREEN, RED, YELLOW, BLUE, ORANGE, PURPLE, GREY = (
    *("green", "red", "yellow", "blue", "orange", "purple", "#8e8e8e"),
)
VERDICT_COLOURS: Mapping[str, str] = {
    Verdict.PAYING: GREEN,
    Verdict.COSTING: RED,
    Verdict.UNDECIDED: YELLOW,
    Verdict.NO_DATA: GREY,
}
STATE_COLOURS: Mapping[str, str] = {
    State.READY: GREEN,
    State.LOADING: BLUE,
    State.SLEEPING: PURPLE,
    State.UNAUTHORIZED: ORANGE,
    State.METRICS_DISABLED: ORANGE,
    State.UNREACHABLE: RED,
    State.MALFORMED: RED,
}

# The page of one server; a link adds which one.
SERVER_PAGE = "/d/mtpmon-server?${datasource:queryparam}&${window:queryparam}&${__url_time_range}"


def setting(name: str, value: object) -> models.DynamicConfigValue:
    """One setting of an override."""
    return models.DynamicConfigValue(id_val=name, value=value)


def fixed(colour: str) -> models.DynamicConfigValue:
    """A colour that does not depend on the value."""
    return setting("color", {"mode": "fixed", "fixedColor": colour})


def sign() -> dashboard.ThresholdsConfig:
    """Red below 0, green from 0 on: of a margin, where drafting begins to pay."""
    steps = [models.Threshold(value=None, color=RED), models.Threshold(value=0, color=GREEN)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def neutral() -> dashboard.ThresholdsConfig:
    """One colour: the panel judges nothing."""
    steps = [models.Threshold(value=None, color=BLUE)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def words(colours: Mapping[str, str], *, numbered: bool) -> models.ValueMap:
    """Texts and colours of a closed set, by place in it or by the word itself."""
    return models.ValueMap(
        options={
            str(place) if numbered else word: models.ValueMappingResult(
                text=word.replace("_", " "), color=colour, index=place
            )
            for place, (word, colour) in enumerate(colours.items())
        }
    )


def nothing(text: str) -> models.SpecialValueMap:
    """Words in grey where there is no sample: the colour of the lowest value would judge it."""
    return models.SpecialValueMap(
        options=models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN,
            result=models.ValueMappingResult(text=text, color=GREY),
        )
    )


def server_link(name: str) -> dashboard.DashboardLink:
    """To the page of the server whose name Grafana finds in ``name``, for the same time."""
    return (
        dashboard.DashboardLink("Open the server")
        .type(models.DashboardLinkType.LINK)
        .url(f"{SERVER_PAGE}&var-server=${{{name}:percentencode}}")
    )
