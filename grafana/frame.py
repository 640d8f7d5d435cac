"""What all dashboards share: variables, links between them, events on their time axes."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from grafana.looks import BLUE, ORANGE, PURPLE, RED
from grafana.parts import SOURCE
from grafana.promql import MANY, ONE, SHIFTS, firing, series

TAG = "mtpmon"
USUAL_WINDOW = "5m"
_EVENT_STEP = "1m"  # how finely events are looked for
_EVENT_SPAN = "2m"  # holds two scrapes, even rare ones

# Both are there for every server that is configured, whether or not it ever answered; the
# throughput of a window is there without drafts as well.
SERVERS = "label_values(mtpmon_server_restarts_total, server)"
WINDOWS = (
    'label_values({__name__=~"mtpmon_acceptance_ratio|mtpmon_throughput_tokens_per_second"},'
    " window)"
)


def framed(
    uid: str, title: str, description: str, *, many_servers: bool, hours: int
) -> dashboard.Dashboard:
    """A dashboard without panels yet."""
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time(f"now-{hours}h", "now")
        .refresh("30s")
        .variables([_source(), _server(many=many_servers), _window()])
        .link(_others())
    )
    return builder.annotations([_Ready(each) for each in _events(MANY if many_servers else ONE)])


def _source() -> dashboard.DatasourceVariable:
    chosen = models.VariableOption(text="default", value="default")
    return (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus that scrapes mtpmon.")
        .type("prometheus")
        .current(chosen)
    )


def _asked(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(SOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )


def _server(*, many: bool) -> dashboard.QueryVariable:
    variable = _asked("server", SERVERS).label("Server")
    if not many:
        return variable.description("The server this page is about.").multi(False)
    every = models.VariableOption(text=["All"], value=["$__all"])
    described = variable.description("The servers shown, by their names in mtpmon's configuration.")
    return described.multi(True).include_all(True).all_value(".+").current(every)


def _window() -> dashboard.QueryVariable:
    chosen = models.VariableOption(text=USUAL_WINDOW, value=USUAL_WINDOW)
    return (
        _asked("window", WINDOWS)
        .label("Window")
        .description("Span that live figures are over, one of those mtpmon is configured with.")
        .multi(False)
        .current(chosen)
    )


def _others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("mtpmon")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .tooltip("The other dashboards, for the same time.")
        .keep_time(True)
        # A choice of several servers would be none on the page of one.
        .include_vars(False)
    )


class Events(models.AnnotationQuery):
    """Events from a query. Grafana's schema of annotations lacks what its Prometheus needs."""

    def __init__(
        self, name: str, expr: str, colour: str, title: str, *, at_value: bool = False
    ) -> None:
        super().__init__(name=name, datasource=SOURCE, expr=expr, icon_color=colour)
        self._details = {
            "step": _EVENT_STEP,
            "titleFormat": title,
            "textFormat": "",
            "tagKeys": "",
            "useValueForTime": at_value,
        }

    def to_json(self) -> dict[str, object]:
        """The schema's fields and those of the data source."""
        return {**super().to_json(), **self._details}


class _Ready(Builder[models.AnnotationQuery]):
    """A finished annotation, where a builder is asked for."""

    def __init__(self, built: models.AnnotationQuery) -> None:
        self._built = built

    def build(self) -> models.AnnotationQuery:
        return self._built


def _changes(servers: str) -> str:
    """When each detected change began, in milliseconds, as long as it stands."""
    parts = (
        f'label_replace(mtpmon_{figure}_shift_start_timestamp_seconds{{{servers}}}, "figure",'
        f' "{words}", "", "")'
        for figure, words in SHIFTS
    )
    return f"({' or '.join(parts)}) * 1000"


def _events(servers: str) -> Sequence[Events]:
    alerts = firing()
    info = series("mtpmon_server_info", servers)
    what = "max by (server, build, model, quantization)"
    return (
        Events("Firing alerts", alerts, RED, "{{alertname}} {{server}}"),
        Events(
            "Detected changes",
            _changes(servers),
            ORANGE,
            "{{server}}: {{figure}}, {{direction}}",
            at_value=True,
        ),
        Events(
            "Restarts",
            f"increase({series('mtpmon_server_restarts_total', servers)}[{_EVENT_SPAN}]) > 0",
            BLUE,
            "{{server}} restarted",
        ),
        # Another build or model than any of the hour before, of a server known by then.
        Events(
            "New build or model",
            f"{what} ({info})"
            f" unless {what} (last_over_time({info}[1h] offset {_EVENT_STEP}))"
            f" and on (server) last_over_time({info}[1h] offset {_EVENT_STEP})",
            PURPLE,
            "{{server}} runs {{build}}, {{model}} {{quantization}}",
        ),
    )
